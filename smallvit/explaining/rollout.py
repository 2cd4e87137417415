"""Attention rollout for every family, carried backwards from what the head reads.

Abnar & Zuidema, Quantifying Attention Flow in Transformers (2020): the heads of a layer are
averaged, the identity is added for the residual branch, rows are renormalised, and the matrices of
all layers are multiplied. Only one row of the product is wanted, that of the vector the head
reads; so a row is carried from the last layer to the first and no product of matrices is made.

What is exact and what is not:
- ViT, CVT and CCT are the paper's rule, read at the class token or by SeqPool's weights.
- Swin's windows are put back where they were; that is exact too. The mean over tokens reads it.
- Wherever a token is made of several others (PiT's pooling, Swin's merging, soft splits, the
  embeddings and strided keys of CvT) its share goes to what it is made of, and a place gets the
  mean of the tokens that see it. The learned weights in there are ignored.
- CaiT mixes heads after the softmax, so weights may be negative and rows need not sum to one:
  their absolute values are taken. Its class layers are rows over the patches.
- LayerScale, MLPs and the size of the values are ignored, as in the paper.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from smallvit.layers import (
    ConvAttention,
    SPTPooling,
    WindowAttention,
    shifted_stack,
    soft_split,
)
from smallvit.models.base import Backbone
from smallvit.models.cait import CaiT
from smallvit.models.cvt import CvT
from smallvit.models.pit import PiT
from smallvit.models.swin import Swin
from smallvit.models.t2t import T2T
from smallvit.models.vit import ViT
from smallvit.sizes import Size

See = Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B N s"]]
"""From a map to what each token is made of; a sum over s counts it."""


class Shares(NamedTuple):
    """How much each token counts for what the head reads; all of an image sum to one.

    Attributes:
        lead: Of the class token; without one it has no entries.
        places: Of the tokens on the grid.
    """

    lead: Float[Tensor, "B P"]
    places: Float[Tensor, "B h w"]


@dataclass(frozen=True)
class Tokens:
    """Attention of all tokens; `joined` says whether the class token takes part."""

    joined: bool = True

    def back(
        self, after: Shares, weight: Float[Tensor, "B M n N"]
    ) -> tuple[Shares, Float[Tensor, "B M h w"]]:
        """Shares in front of the layer, and what each head looks at."""
        lead, places = after
        row = places.flatten(1)
        if self.joined:
            row = torch.cat([lead, row], 1)
        row = row / (1 + weight.mean(1).sum(-1))
        seen = torch.einsum("bn,bmnk->bmk", row, weight)
        row = row + seen.mean(1)
        prefix = lead.shape[1] if self.joined else 0
        grid = places.shape[1:]
        before = Shares(
            row[:, :prefix] if self.joined else lead, row[:, prefix:].unflatten(1, grid)
        )
        return before, seen[..., prefix:].unflatten(2, grid)


@dataclass(frozen=True)
class Asking:
    """A class layer: the class token alone asks, and only patches answer."""

    def back(
        self, after: Shares, weight: Float[Tensor, "B M 1 N"]
    ) -> tuple[Shares, Float[Tensor, "B M h w"]]:
        """Shares in front of the layer, and what each head looks at."""
        lead = after.lead / (1 + weight.mean(1).sum(-1))
        seen = (lead[:, None, :, None] * weight)[:, :, 0].unflatten(2, after.places.shape[1:])
        return Shares(lead, after.places + seen.mean(1)), seen


@dataclass(frozen=True)
class Windows:
    """Attention inside windows of a grid that may be rolled."""

    attention: WindowAttention

    def back(
        self, after: Shares, weight: Float[Tensor, "B WM n n"]
    ) -> tuple[Shares, Float[Tensor, "B M h w"]]:
        """Shares in front of the layer, and what each head looks at."""
        weight = weight.unflatten(1, (-1, self.attention.num_heads))
        row = self._cut(after.places)
        row = row / (1 + weight.mean(2).sum(-1))
        seen = self._laid(torch.einsum("bvn,bvmnk->bmvk", row, weight))
        return Shares(after.lead, self._laid(row) + seen.mean(1)), seen

    def _cut(self, places: Float[Tensor, "B h w"]) -> Float[Tensor, "B W n"]:
        (height, width), (down, right) = self.attention.window, self.attention.shift
        places = places.roll((-down, -right), (-2, -1))
        places = places.unflatten(2, (-1, width)).unflatten(1, (-1, height))
        return places.transpose(2, 3).flatten(3).flatten(1, 2)

    def _laid(self, cut: Float[Tensor, "*B W n"]) -> Float[Tensor, "*B h w"]:
        """The inverse of `_cut`."""
        across = self.attention.grid[1] // self.attention.window[1]
        places = cut.unflatten(-1, self.attention.window).unflatten(-3, (-1, across))
        places = places.transpose(-3, -2).flatten(-2).flatten(-3, -2)
        return places.roll(self.attention.shift, (-2, -1))


@dataclass(frozen=True)
class Strided:
    """Attention to keys that are made by a strided 3×3 convolution."""

    def back(
        self, after: Shares, weight: Float[Tensor, "B M N n"]
    ) -> tuple[Shares, Float[Tensor, "B M h w"]]:
        """Shares in front of the layer, and what each head looks at, on the grid of the tokens."""
        grid = after.places.shape[1], after.places.shape[2]
        row = after.places.flatten(1)
        row = row / (1 + weight.mean(1).sum(-1))
        keys = torch.einsum("bn,bmnk->bmk", row, weight)
        seen = spread(keys.flatten(0, 1), grid, _KEYS).unflatten(0, keys.shape[:2])
        return Shares(after.lead, row.unflatten(1, grid) + seen.mean(1)), seen


@dataclass(frozen=True)
class Made:
    """Tokens made of several others, on a finer grid."""

    grid: Size
    see: See

    def back(self, after: Shares) -> Shares:
        """Shares of what they are made of."""
        return Shares(after.lead, spread(after.places.flatten(1), self.grid, self.see))


Step = Tokens | Asking | Windows | Strided | Made


def split(kernel: int, stride: int, padding: int) -> See:
    """What a convolution or soft split sees."""
    return partial(soft_split, kernel=kernel, stride=stride, padding=padding)


_KEYS = split(3, 2, 1)


def spread(shares: Float[Tensor, "B N"], grid: Size, see: See) -> Float[Tensor, "B h w"]:
    """Shares of tokens on the places they are made of.

    A place gets the mean of all tokens that see it, so that even shares stay even where kernels
    overlap or reach over the border; then the sum is made what it was.
    """
    with torch.enable_grad():
        places = shares.new_ones(len(shares), 1, *grid).requires_grad_()
        counts = see(places).sum(-1)
        # The transpose of counting is its gradient, whatever `see` is made of.
        back, cover = (
            torch.autograd.grad(counts, places, given, retain_graph=True)[0][:, 0]
            for given in (shares, torch.ones_like(shares))
        )
    mean = back / cover.clamp(min=1)
    total = mean.sum((1, 2), keepdim=True)
    return mean * (shares.sum(1)[:, None, None] / total.where(total > 0, 1))


def _between(merging: Any, plain: See) -> Made:
    """What a merging or pooling layer makes its tokens of."""
    if isinstance(merging, SPTPooling):
        spt, patches = merging.spt, split(2, 2, 0)
        return Made(
            merging.before,
            lambda image: patches(shifted_stack(image, spt.shift, spt.directions)),
        )
    return Made(merging.before, plain)


def _t2t(model: T2T) -> Iterator[Step]:
    tokenizer = model.tokenizer
    for grid, kernel in zip(tokenizer.grids, tokenizer.splits[1:], strict=False):
        yield Tokens(joined=False)
        yield Made(grid, split(*kernel))
    yield from [Tokens()] * len(model.blocks)


def _staged(model: PiT | Swin | CvT) -> Iterator[Step]:
    parts: Any = model
    for index, stage in enumerate(parts.stages):
        if index and isinstance(model, CvT):
            kernel, stride = model.config.kernels[index], model.config.strides[index]
            yield Made(model.grids[index - 1], split(kernel, stride, kernel // 2))
        elif index and isinstance(model, Swin):
            yield _between(parts.mergings[index - 1], split(2, 2, 0))
        elif index:
            yield _between(parts.poolings[index - 1], split(3, 2, 1))
        for block in stage:
            attention = block.attention
            if isinstance(attention, WindowAttention):
                yield Windows(attention)
            else:
                yield Strided() if isinstance(attention, ConvAttention) else Tokens()


def steps(model: Backbone) -> list[Step] | None:
    """What a model does to its tokens, first to last; None for a family without a rule."""
    if isinstance(model, ViT):
        return [Tokens()] * len(model.blocks)
    if isinstance(model, CaiT):
        patches = [Tokens(joined=False)] * len(model.blocks)
        return [*patches, *[Asking()] * len(model.class_blocks)]
    if isinstance(model, T2T):
        return list(_t2t(model))
    if isinstance(model, PiT | Swin | CvT):
        return list(_staged(model))
    return None


def carry(
    plan: list[Step], weights: list[Tensor], shares: Shares
) -> tuple[Shares, list[Float[Tensor, "B _M _h _w"]]]:
    """Carries shares from behind the last layer to the first tokens.

    Args:
        plan: From `steps`.
        weights: Of every attention, first layer first.
        shares: What the head reads of the final tokens.

    Returns:
        Shares of the first tokens, and for each attention, first layer first, what each head
        looks at: its rows, weighted by how much each token counts behind the layer.
    """
    left, maps = list(weights), []
    for step in reversed(plan):
        if isinstance(step, Made):
            shares = step.back(shares)
        else:
            shares, seen = step.back(shares, left.pop().detach().float().abs())
            maps.append(seen)
    return shares, maps[::-1]
