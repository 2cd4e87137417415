"""Fused attention in plain PyTorch: the same numbers from the same arguments, dropout included."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from smallvit.layers.kernels.philox import WORD, multiply, philox


class Windows(NamedTuple):
    """How the tokens of an image fall into windows; tokens attend inside theirs.

    Attributes:
        rows: Of tokens in the image.
        columns: Of tokens in the image.
        height: Rows of a window.
        width: Columns of a window.
        up: Rows the image is rolled by before it is cut.
        left: Columns it is rolled by.
    """

    rows: int
    columns: int
    height: int
    width: int
    up: int = 0
    left: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of a window."""
        return self.height * self.width

    @property
    def number(self) -> int:
        """Windows of an image."""
        return (self.rows // self.height) * (self.columns // self.width)

    def places(self, device: torch.device) -> Int[Tensor, "W n"]:
        """Each window's tokens, as their numbers in the image."""
        row = (torch.arange(self.rows, device=device) + self.up) % self.rows
        column = (torch.arange(self.columns, device=device) + self.left) % self.columns
        return self.cut(row[:, None] * self.columns + column)

    def cut(self, x: Tensor) -> Int[Tensor, "W n"]:
        """A number for each place of the rolled image, window by window."""
        x = x.unflatten(1, (-1, self.width)).unflatten(0, (-1, self.height))
        return x.transpose(1, 2).flatten(2).flatten(0, 1)

    def apart(self, device: torch.device) -> Bool[Tensor, "W n n"]:
        """True between tokens of a window that the roll brought together."""

        def band(size: int, side: int, by: int) -> Tensor:
            place = torch.arange(size, device=device)
            return (place >= size - side).int() + (place >= size - by).int() if by else place * 0

        rows = band(self.rows, self.height, self.up)
        columns = band(self.columns, self.width, self.left)
        bands = self.cut(3 * rows[:, None] + columns)
        return bands[:, :, None] != bands[:, None, :]


def threshold_of(dropout: float) -> int:
    """Below which of the 2³² numbers from −2³¹ on a weight is dropped."""
    return min(round(dropout * 2**32), 2**32 - 1) - 2**31


def precision_of_sums(x: Tensor) -> torch.dtype:
    """Of the logarithms of a softmax's sums: beside a score of 1e5 float32 has two digits left."""
    return torch.float64 if x.dtype == torch.float32 else torch.float32


def keep_mask(seed: Int[Tensor, "1"], maps: int, n: int, dropout: float) -> Bool[Tensor, "A n n"]:
    """Which weights of each map survive dropout.

    Args:
        seed: Any 64 bits.
        maps: Number of maps.
        n: Queries, and keys, of a map.
        dropout: Probability of dropping a weight.
    """
    number = torch.arange(maps, device=seed.device)
    none = torch.zeros_like(number)
    key = seed & WORD, (seed >> 32) & WORD
    first, second, *_ = philox((number, none, none, none), key)
    place = torch.arange(n * n, device=seed.device)
    x = (multiply(place, 0x9E3779B9)[1] + first[:, None]) & WORD
    x = multiply(x ^ (x >> 16), 0x7FEB352D)[1]
    x = multiply(x ^ (x >> 15) ^ second[:, None], 0x846CA68B)[1]
    signed = torch.where(x < 2**31, x, x - 2**32)
    return (signed >= threshold_of(dropout)).view(maps, n, n)


def plain_attention(
    qkv: Float[Tensor, "B N MEs"],
    num_heads: int,
    *,
    scale: Tensor | float,
    masked: bool = False,
    bias: Float[Tensor, "M n n"] | None = None,
    windows: Windows | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
    mixing: tuple[Tensor, Tensor] | None = None,
) -> Float[Tensor, "B N ME"]:
    """What `fused_attention` computes, with the same arguments, in any precision."""
    images, tokens, _ = qkv.shape
    windows = windows or Windows(1, tokens, 1, tokens)
    n, places = windows.tokens, windows.places(qkv.device)
    heads = qkv[:, places.flatten()].view(images, windows.number, n, 3, num_heads, -1)
    q, k, v = heads.permute(3, 0, 1, 4, 2, 5).unbind(0)
    if isinstance(scale, Tensor):
        scale = scale.view(-1, 1, 1)
    scores = (q * scale).to(q.dtype) @ k.transpose(-2, -1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mixing is not None:
        scores = torch.einsum("bwhij,hg->bwgij", scores, mixing[0].to(scores.dtype))
    if bias is not None:
        scores = scores + bias
    if windows.up or windows.left:
        scores = scores - 100.0 * windows.apart(qkv.device)[:, None]
    if masked and n > 1:
        scores = scores.masked_fill(torch.eye(n, dtype=torch.bool, device=qkv.device), -torch.inf)
    weight = scores.softmax(-1)
    if mixing is not None:
        weight = torch.einsum("bwhij,hg->bwgij", weight, mixing[1].to(weight.dtype))
    if dropout:
        if seed is None:
            raise ValueError("dropout without a seed: give a tensor with one 64-bit integer")
        keep = keep_mask(seed, images * windows.number * num_heads, n, dropout)
        weight = weight * keep.view(weight.shape) / (1.0 - dropout)
    mixed = (weight.to(v.dtype) @ v).transpose(2, 3).reshape(images, tokens, -1)
    return mixed[:, places.flatten().argsort()]
