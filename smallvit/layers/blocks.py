"""The transformer block and its small parts (written here, as timm.layers is slow to import).

A block may compute activations again in its backward pass instead of keeping them. Those that a
matrix made wider (queries, keys and values side by side, the hidden layer of the MLP) take most of
the memory and are the cheapest to compute again: one product each, from an input that is kept
anyway. Attention is never computed again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

Norm = Callable[[int], nn.Module]
Recompute = Literal["nothing", "wide", "everything"]

_KEPT = ("attention", "bmm", "softmax", "batch_norm")  # attention in one kernel or in three
_MATRIX = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1}


class DropPath(nn.Module):
    """Stochastic depth: drops a whole branch for some images of a batch, scales up the rest.

    Attributes:
        chosen: Which images keep the branch in the next passes, and 1 − rate, set by whoever wants
            the choice to be a function of the image's position in the batch; None draws from
            torch's own generator. (As tensors: blocks that differ in their rate alone are then one
            program to a compiler.)
    """

    chosen: tuple[Bool[Tensor, " B"], Float[Tensor, ""]] | None = None

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"drop_path is {rate}: it must be at least 0 and below 1")
        self.rate = rate

    def forward(self, x: Float[Tensor, " B *rest"]) -> Float[Tensor, " B *rest"]:
        """Returns the branch, or zeros for the images that drop it."""
        if not self.training:
            return x
        keep: Tensor
        share: Tensor | float
        if self.chosen is not None:
            keep, share = self.chosen
        elif self.rate == 0:
            return x
        else:
            keep = torch.rand(x.shape[:1], device=x.device) >= self.rate
            share = 1 - self.rate
        return x * keep.view(-1, *[1] * (x.ndim - 1)) / share


class LayerScale(nn.Module):
    """One learned factor per channel on a residual branch."""

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((dim,), start))

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Multiplies each channel with its factor."""
        return x * self.factor


class ChannelNorm(nn.Module):
    """CvT's norm over channels: (x − mean) / (std + eps) · weight + bias, population std."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Normalises the last axis, in at least 32 bits, as autocast has it for LayerNorm."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        std, mean = torch.std_mean(wide, -1, correction=0, keepdim=True)
        y = (wide - mean) / (std + self.eps) * self.weight + self.bias
        return y.to(torch.promote_types(x.dtype, self.weight.dtype))


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them.

    Args:
        dim: Width of the tokens.
        hidden: Width between the layers.
        dropout: After the GELU and at the end.
        grid: Rows and columns of the tokens, which then see their neighbours: a depthwise 3×3
            convolution is added to what the GELU takes, z + dw(z). There must be no class token.
    """

    def __init__(
        self, dim: int, hidden: int, dropout: float = 0.0, *, grid: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.grid = grid
        self.fc1 = nn.Linear(dim, hidden)
        self.depthwise: nn.Module | None = None
        if grid is not None:
            self.depthwise = nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden, bias=False)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Applies the perceptron to every token."""
        x = self.fc1(x)
        if self.depthwise is not None:
            image = x.transpose(1, 2).unflatten(2, self.grid)
            x = x + self.depthwise(image).flatten(2).transpose(1, 2)
        return self.dropout(self.fc2(self.dropout(self.act(x))))


class Block(nn.Module):
    """Attention and MLP, each on a residual branch.

    Args:
        attention: Any attention of this package.
        dim: Width of the tokens.
        mlp_ratio: Hidden width of the MLP over dim.
        dropout: Inside and after the MLP.
        drop_path: Stochastic depth on both branches.
        layer_scale: Starting value of one learned factor per channel; None for no factors.
        post_norm: The published compact-transformer block, which normalises the residual stream
            itself after attention: x = x + attn(norm1(x)); x = norm2(x); x = x + mlp(x).
        norm: Makes a norm from a width.
        grid: Rows and columns of the tokens, for an MLP that sees neighbours; see `Mlp`.

    Attributes:
        recompute: What training computes again for the backward pass instead of keeping it
            (never while attention weights are collected).
        narrow: Under autocast, tokens leave each branch in the number format of its products
            instead of float32: half the bytes to move, and one more rounding.
    """

    recompute: Recompute = "nothing"
    narrow: bool = False

    def __init__(
        self,
        attention: nn.Module,
        dim: int,
        mlp_ratio: float,
        *,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        post_norm: bool = False,
        norm: Norm = nn.LayerNorm,
        grid: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.norm1 = norm(dim)
        self.attention = attention
        self.norm2 = norm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), dropout, grid=grid)
        self.drop_path1 = DropPath(drop_path)
        self.drop_path2 = DropPath(drop_path)
        self.post_norm = post_norm
        self.scale1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.scale2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        *context: Float[Tensor, "B n D"],
        weights: list[Tensor] | None = None,
    ) -> Float[Tensor, "B N D"]:
        """Applies both branches.

        Args:
            context: Further arguments of the attention, such as the tokens it attends to.
            weights: A list to which the attention weights are appended.
        """
        trains = self.training and weights is None and torch.is_grad_enabled()
        if self.recompute == "nothing" or not trains:
            return self.branches(x, *context, weights=weights)
        options: dict[str, Any] = {}
        if self.recompute == "wide":
            policy = _keeps_on_gpu if x.is_cuda else _keeps
            options["context_fn"] = partial(create_selective_checkpoint_contexts, policy)
            options["preserve_rng_state"] = not x.is_cuda
        tokens: Tensor = checkpoint(self.branches, x, *context, use_reentrant=False, **options)
        return tokens

    def branches(
        self, x: Tensor, *context: Tensor, weights: list[Tensor] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Attention, then the MLP."""
        y = self.attention(self.norm1(x), *context, weights=weights)
        x = self._narrowed(x + self.drop_path1(self.scale1(y)), y)
        if self.post_norm:
            x = self._narrowed(self.norm2(x), y)
        y = self.mlp(x if self.post_norm else self.norm2(x))
        return self._narrowed(x + self.drop_path2(self.scale2(y)), y)

    def _narrowed(self, x: Float[Tensor, "B N D"], like: Tensor) -> Float[Tensor, "B N D"]:
        return x.to(like.dtype) if self.narrow else x


def _keeps(_: Any, op: Any, *args: Any, **__: Any) -> CheckpointPolicy:
    """Keeps attention, products no wider than what came in, and batch norms, which count passes."""
    kept = any(part in str(op) for part in _KEPT)
    if op in _MATRIX:
        x, matrix = args[_MATRIX[op] :][:2]
        kept = matrix.shape[-1] <= x.shape[-1]
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _keeps_on_gpu(context: Any, op: Any, *args: Any, **named: Any) -> CheckpointPolicy:
    """Also keeps what was drawn: a captured graph cannot wind the generator back."""
    if torch.Tag.nondeterministic_seeded in getattr(op, "tags", ()):
        return CheckpointPolicy.MUST_SAVE
    return _keeps(context, op, *args, **named)


class Stack(nn.ModuleList):
    """Blocks one after the other."""

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        *context: Float[Tensor, "B n D"],
        weights: list[Tensor] | None = None,
        intermediates: list[Tensor] | None = None,
    ) -> Float[Tensor, "B N D"]:
        """Applies every block; the other arguments are those of `Block`.

        Args:
            intermediates: A list to which the tokens are appended as they leave each block.
        """
        for block in self:
            x = block(x, *context, weights=weights)
            if intermediates is not None:
                intermediates.append(x)
        return x
