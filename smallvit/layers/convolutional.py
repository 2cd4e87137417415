"""Attention whose queries, keys and values come from depthwise convolutions, as in CvT."""

from functools import partial

from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers.attention import attend
from smallvit.layers.features import AttentionLayout, token_range
from smallvit.layers.soft_split import soft_split


class ConvProjection(nn.Module):
    """Depthwise 3×3 convolution, batch norm, and a linear layer over the channels."""

    def __init__(self, dim: int, out_dim: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, stride, 1, groups=dim, bias=False)
        self.norm = nn.BatchNorm2d(dim)
        self.proj = nn.Linear(dim, out_dim, bias=False)

    def forward(self, x: Float[Tensor, "B D h w"]) -> Float[Tensor, "B N d"]:
        """Returns projected tokens, row by row."""
        return self.proj(self.norm(self.conv(x)).flatten(2).transpose(1, 2))


class ConvAttention(nn.Module):
    """Multi-head attention with convolutional projections; keys and values at stride 2.

    Args:
        dim: Width of the tokens.
        num_heads: Number of heads.
        grid: Rows and columns of tokens.
        head_dim: Width of a head.
        dropout: On the output.
        attn_dropout: On the weights.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        grid: tuple[int, int],
        head_dim: int,
        dropout: float = 0.0,
        attn_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.grid = num_heads, head_dim, grid
        inner = num_heads * head_dim
        self.q = ConvProjection(dim, inner, stride=1)
        self.kv = ConvProjection(dim, 2 * inner, stride=2)
        self.proj = nn.Linear(inner, dim)
        self.dropout = nn.Dropout(dropout)
        self.attn_dropout = attn_dropout

    @property
    def layout(self) -> AttentionLayout:
        """Every token attends to keys that are made of 3×3 tokens at stride 2."""
        view = partial(soft_split, kernel=3, stride=2, padding=1)
        return AttentionLayout(token_range(0, self.grid[0] * self.grid[1]), view=view)

    def forward(
        self, x: Float[Tensor, "B N D"], *, weights: list[Tensor] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Tokens attend to a grid of half the resolution.

        Args:
            weights: A list to which the attention weights are appended.
        """
        image = x.transpose(1, 2).unflatten(2, self.grid)
        q = self.q(image).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        kv = self.kv(image).unflatten(-1, (2, self.num_heads, self.head_dim))
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        x = attend(
            q,
            k,
            v,
            scale=self.head_dim**-0.5,
            dropout=self.attn_dropout if self.training else 0.0,
            weights=weights,
        )
        return self.dropout(self.proj(x.transpose(1, 2).flatten(2)))
