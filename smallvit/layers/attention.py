"""Attention: one softmax(QKᵀ)V for every model, the two halves of LSA as switches.

Locality Self-Attention (arXiv 2112.13492) is attention with two changes, each of use alone:
one learned temperature per head (kept as the scale that multiplies the scores), and a diagonal
mask, so that no token attends to itself.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.arguments import Share, Width, checked
from smallvit.layers.kernels import fused_attention, fusible


class TalkingHeads(nn.Module):
    """Two learned (heads × heads) matrices that mix the score maps around the softmax."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.randn(num_heads, num_heads))
        self.after = nn.Parameter(torch.randn(num_heads, num_heads))

    @staticmethod
    def mix(maps: Float[Tensor, "B M n N"], matrix: Tensor) -> Float[Tensor, "B M n N"]:
        """New head g is the sum over old heads h of matrix[h, g] · map h."""
        return torch.einsum("bhij,hg->bgij", maps, matrix.to(maps.dtype))


def attend(
    q: Float[Tensor, "B M n E"],
    k: Float[Tensor, "B M N E"],
    v: Float[Tensor, "B M N e"],
    *,
    scale: Tensor | float,
    masked: bool = False,
    bias: Tensor | None = None,
    talking: TalkingHeads | None = None,
    dropout: float = 0.0,
    weights: list[Tensor] | None = None,
) -> Float[Tensor, "B M n e"]:
    """softmax(scale · q kᵀ + bias) v: the only attention in this package.

    Args:
        scale: A number, or one per head, shaped (M, 1, 1).
        masked: Sets the diagonal to −∞, after bias and head mixing. A single token keeps its
            diagonal: there is nothing else to attend to.
        bias: Added to the scores; broadcasts to (B, M, n, N).
        talking: Mixes the heads before the mask and after the softmax.
        dropout: Probability of dropping a weight; the caller passes 0 outside training.
        weights: A list to which the weights are appended, (B, M, n, N). With a list the plain
            path is taken instead of the fused kernel.
    """
    allowed = None
    if masked and q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"{q.shape[-2]} queries and {k.shape[-2]} keys have no diagonal to mask: masked=False"
        )
    if masked and q.shape[-2] > 1:
        allowed = ~torch.eye(q.shape[-2], dtype=torch.bool, device=q.device)
    if isinstance(scale, Tensor):
        q, scale = (q * scale).to(q.dtype), 1.0  # one rounding, also when q is half precision

    slow = dropout or q.dtype is torch.bfloat16  # in torch's own attention on a CPU
    if talking is None and weights is None and q.device.type == "cpu" and slow:
        return _attend_on_cpu(q, k, v, scale, allowed is not None, bias, dropout)
    if talking is None and weights is None:
        mask = allowed
        if bias is not None:
            mask = bias.to(q.dtype)
            if allowed is not None:
                mask = mask.masked_fill(~allowed, float("-inf"))
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale
        )

    scores = (q * scale) @ k.transpose(-2, -1)
    if talking is not None:
        scores = talking.mix(scores, talking.before)
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    weight = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    if talking is not None:
        weight = talking.mix(weight, talking.after)
    if weights is not None:
        weights.append(weight)
    return F.dropout(weight, dropout).to(v.dtype) @ v


def _attend_on_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    masked: bool,
    bias: Tensor | None,
    dropout: float,
) -> Tensor:
    """`attend` on a CPU in bf16 or with dropout, where plain kernels are faster.

    Each kernel sums in float32; what lies between them is rounded, as on the plain path above.
    """
    with torch.autocast("cpu", enabled=False):  # which would have softmax return float32
        scores = (q if scale == 1.0 else q * scale) @ k.transpose(-2, -1)
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        if masked:
            scores.diagonal(dim1=-2, dim2=-1).fill_(float("-inf"))
        weight = scores.softmax(-1)
        if not dropout:
            return weight @ v
        # 16 random bits for each weight, four from one draw: drawing takes the time on a CPU.
        wide = torch.randint(-(2**63), 2**63 - 1, (-(-weight.numel() // 4),), device=weight.device)
        draws = wide.view(torch.int16)[: weight.numel()].view(weight.shape)
        threshold = min(round(dropout * 2**16), 2**16 - 1)
        kept = weight.masked_fill(draws < threshold - 2**15, 0.0) @ v
        return kept * (2**16 / (2**16 - threshold))


class MultiHead(nn.Module):
    """What all multi-head attentions over one set of tokens share: projections and switches.

    Args:
        dim: Width of the tokens.
        num_heads: Number of heads.
        head_dim: Width of a head; by default dim / num_heads.
        out_dim: Width of the output; by default dim.
        qkv_bias: Gives the query, key and value projections a bias.
        scale: What the scores are multiplied with; by default head_dim^−½.
        temperature: Makes the scale a learned parameter, one per head (half of LSA); by default
            in `LSA` only.
        masked: Hides every token from itself (the other half); by default in `LSA` only.
        talking: Mixes the heads before and after the softmax.
        dropout: On the output.
        attn_dropout: On the weights.

    Attributes:
        initial_scale: The scale before training, which a temperature of 1 stands for.
        fused: Whether to use the fused kernel where it can be used.
    """

    local: ClassVar[bool] = False
    fused: bool = True

    @checked
    def __init__(
        self,
        dim: Width,
        num_heads: Width,
        *,
        head_dim: Width | None = None,
        out_dim: Width | None = None,
        qkv_bias: bool = False,
        scale: float | None = None,
        temperature: bool | None = None,
        masked: bool | None = None,
        talking: bool = False,
        dropout: Share = 0.0,
        attn_dropout: Share = 0.0,
    ) -> None:
        super().__init__()
        if head_dim is None:
            if dim % num_heads:
                raise ValueError(f"dim {dim} is not a multiple of num_heads {num_heads}")
            head_dim = dim // num_heads
        self.num_heads, self.head_dim = num_heads, head_dim
        self.masked = self.local if masked is None else masked
        inner = num_heads * head_dim
        self.qkv = nn.Linear(dim, 3 * inner, bias=qkv_bias)
        self.talking = TalkingHeads(num_heads) if talking else None
        self.proj = nn.Linear(inner, dim if out_dim is None else out_dim)
        self.dropout = nn.Dropout(dropout)
        self.attn_dropout = attn_dropout
        self.initial_scale = head_dim**-0.5 if scale is None else scale
        self.scale: nn.Parameter | float = self.initial_scale
        if self.local if temperature is None else temperature:
            self.scale = nn.Parameter(torch.full((num_heads,), self.initial_scale))

    @property
    def head_scale(self) -> Tensor | float:
        """The scale as `attend` takes it."""
        return self.scale.view(-1, 1, 1) if isinstance(self.scale, Tensor) else self.scale

    @property
    def dropped(self) -> float:
        """Probability of dropping a weight now."""
        return self.attn_dropout if self.training else 0.0

    def split(self, x: Float[Tensor, "B N MEs"], parts: int) -> tuple[Tensor, ...]:
        """Splits a projection into `parts` tensors of heads, each (B, M, N, E)."""
        heads = x.unflatten(-1, (parts, self.num_heads, self.head_dim))
        return heads.permute(2, 0, 3, 1, 4).unbind(0)

    def mix_values(
        self, q: Tensor, k: Tensor, v: Tensor, weights: list[Tensor] | None
    ) -> Float[Tensor, "B n ME"]:
        """Attends and lays the heads side by side."""
        x = attend(
            q,
            k,
            v,
            scale=self.head_scale,
            masked=self.masked,
            talking=self.talking,
            dropout=self.dropped,
            weights=weights,
        )
        return x.transpose(1, 2).flatten(2)

    def mix_packed(
        self, qkv: Float[Tensor, "B N MEs"], weights: list[Tensor] | None
    ) -> Float[Tensor, "B N ME"]:
        """Attends within one set of tokens, in the fused kernel where that is possible."""
        alone = self.fused and weights is None
        heads, dropout, talking = self.num_heads, self.dropped, self.talking
        if alone and fusible(qkv, heads, dropout=dropout, talking=talking is not None):
            return fused_attention(
                qkv,
                heads,
                scale=self.scale,
                masked=self.masked,
                dropout=dropout,
                mixing=None if talking is None else (talking.before, talking.after),
            )
        q, k, v = self.split(qkv, 3)
        return self.mix_values(q, k, v, weights)


class Attention(MultiHead):
    """Multi-head attention, plain or local, with the arguments of `MultiHead`."""

    def forward(
        self,
        x: Float[Tensor, "B n D"],
        context: Float[Tensor, "B N D"] | None = None,
        *,
        weights: list[Tensor] | None = None,
    ) -> Float[Tensor, "B n d"]:
        """Tokens attend to each other, or to `context` when it is given.

        Args:
            context: Where keys and values come from.
            weights: A list to which the attention weights are appended.
        """
        if context is None:
            return self.dropout(self.proj(self.mix_packed(self.qkv(x), weights)))
        q, kv = self._project(x, context)
        (q,), (k, v) = self.split(q, 1), self.split(kv, 2)
        return self.dropout(self.proj(self.mix_values(q, k, v, weights)))

    def _project(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Queries of `x`; keys and values of `context`.

        Only the rows of the weight that are needed are used, unless the layer is wrapped, replaced
        or has hooks: then it is called as a whole, so that nothing of what it does is lost.
        """
        inner, qkv = self.num_heads * self.head_dim, self.qkv
        if type(qkv) is not nn.Linear or qkv._forward_hooks or qkv._forward_pre_hooks:
            return qkv(x)[..., :inner], qkv(context)[..., inner:]
        weight, bias = qkv.weight, qkv.bias
        q_bias, kv_bias = (None, None) if bias is None else (bias[:inner], bias[inner:])
        return F.linear(x, weight[:inner], q_bias), F.linear(context, weight[inner:], kv_bias)


class LSA(Attention):
    """Locality Self-Attention: `Attention` with a learned temperature and a masked diagonal."""

    local = True
