"""Tokens-to-token: the soft split, and the two kinds of transformer that follow one."""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers.attention import MultiHead
from smallvit.layers.blocks import Mlp


def soft_split(
    images: Float[Tensor, "B C H W"], kernel: int, stride: int, padding: int
) -> Float[Tensor, "B N CKK"]:
    """Overlapping patches as tokens, channel slowest."""
    return F.unfold(images, kernel, stride=stride, padding=padding).transpose(1, 2)


class ValueAttention(MultiHead):
    """One head whose values skip the attention: V + proj(attention)."""

    def forward(
        self, x: Float[Tensor, "B N D"], *, weights: list[Tensor] | None = None
    ) -> Float[Tensor, "B N d"]:
        """Tokens attend to each other.

        Args:
            weights: A list to which the attention weights are appended.
        """
        qkv = self.qkv(x)
        v = qkv[..., 2 * self.head_dim :]
        return v + self.dropout(self.proj(self.mix_packed(qkv, weights)))


class TokenTransformer(nn.Module):
    """The transformer between two soft splits of T2T: one head, and a skip from the values.

    Args:
        dim: Width of the soft split's tokens.
        out_dim: Width it works at and returns.
        temperature: Learns the scale (half of LSA), which starts at dim^−½ either way.
        masked: Hides every token from itself (the other half).
        dropout: On both branches.
        attn_dropout: On the weights.
    """

    def __init__(
        self,
        dim: int,
        out_dim: int,
        *,
        temperature: bool = False,
        masked: bool = False,
        dropout: float = 0.0,
        attn_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = ValueAttention(
            dim,
            1,
            head_dim=out_dim,
            out_dim=out_dim,
            scale=dim**-0.5,
            temperature=temperature,
            masked=masked,
            dropout=dropout,
            attn_dropout=attn_dropout,
        )
        self.norm2 = nn.LayerNorm(out_dim)
        self.mlp = Mlp(out_dim, out_dim, dropout)

    def forward(
        self, x: Float[Tensor, "B N D"], *, weights: list[Tensor] | None = None
    ) -> Float[Tensor, "B N d"]:
        """Returns tokens of the new width; there is no residual from the input.

        Args:
            weights: A list to which the attention weights are appended.
        """
        x = self.attention(self.norm1(x), weights=weights)
        return x + self.mlp(self.norm2(x))


class Performer(nn.Module):
    """T2T-ViT-14's transformer between two soft splits: linear attention over random features.

    There is no similarity matrix, so neither half of LSA applies.

    Args:
        dim: Width of the soft split's tokens.
        out_dim: Width it works at and returns.
        dropout: At the end of both branches.
    """

    eps = 1e-8

    def __init__(self, dim: int, out_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.kqv = nn.Linear(dim, 3 * out_dim)
        self.proj = nn.Linear(out_dim, out_dim)
        self.norm2 = nn.LayerNorm(out_dim)
        self.mlp = Mlp(out_dim, out_dim)
        self.dropout = nn.Dropout(dropout)
        features = out_dim // 2
        rows = nn.init.orthogonal_(torch.empty(features, out_dim)) * math.sqrt(features)
        self.rows = nn.Parameter(rows, requires_grad=False)

    def features(self, x: Float[Tensor, "B N d"]) -> Float[Tensor, "B N m"]:
        """exp(w·x − |x|²/2) / √m, in float32 at least: it overflows half precision."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        rows = self.rows.to(x.dtype)
        return (x @ rows.T - x.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(len(rows))

    def forward(
        self, x: Float[Tensor, "B N D"], *, weights: list[Tensor] | None = None
    ) -> Float[Tensor, "B N d"]:
        """Returns tokens of the new width.

        Args:
            weights: A list to which the weights are appended, (B, 1, N, N); without it they are
                never computed.
        """
        k, q, v = self.kqv(self.norm1(x)).chunk(3, -1)
        casts = not x.is_meta and torch.is_autocast_enabled(x.device.type)
        # It would compute the products in half precision after all.
        with torch.autocast(x.device.type, enabled=False) if casts else nullcontext():
            k, q = self.features(k), self.features(q)
            total = (q @ k.sum(1).unsqueeze(-1)) + self.eps
            if weights is not None:
                weights.append((q @ k.transpose(1, 2) / total).unsqueeze(1))
            y = (q @ (k.transpose(1, 2) @ v.to(k.dtype)) / total).to(v.dtype)
        x = v + self.dropout(self.proj(y))
        return x + self.dropout(self.mlp(self.norm2(x)))
