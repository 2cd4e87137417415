"""From images to tokens: patches, shifted patches (SPT) and convolutions (CCT).

Each has a `receptive_field`: the side, in pixels, of what one token sees.
"""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.arguments import Between, Width, checked
from smallvit.layers.kernels import fused_pool, plain_pool, poolable

Directions = Literal["diagonal", "cardinal", "all"]

# Signs of (row, column): the view at (r, c) shows the image at (r + row·s, c + column·s).
_DIAGONAL = ((-1, -1), (-1, 1), (1, -1), (1, 1))
_CARDINAL = ((-1, 0), (1, 0), (0, -1), (0, 1))
_OFFSETS = {"diagonal": _DIAGONAL, "cardinal": _CARDINAL, "all": _DIAGONAL + _CARDINAL}


def reach(layers: Iterable[tuple[int, int]]) -> int:
    """The side, in pixels, of what the last of some layers sees; each is a kernel and a stride."""
    side = jump = 1
    for kernel, stride in layers:
        side, jump = side + (kernel - 1) * jump, jump * stride
    return side


def num_views(directions: Directions) -> int:
    """The image and its shifted copies: 5, or 9 for all directions."""
    if directions not in _OFFSETS:
        raise ValueError(f"directions is {directions!r}: allowed are {get_args(Directions)}")
    return 1 + len(_OFFSETS[directions])


def shift_pixels(shift: float, patch_size: int) -> int:
    """A shift in pixels from a fraction of the patch, rounded down; refuses less than one."""
    pixels = math.floor(shift * patch_size)
    if pixels < 1:
        raise ValueError(
            f"shift {shift} of a patch of {patch_size} pixels is less than one pixel; "
            f"use a shift of at least {1 / patch_size:g} or larger patches"
        )
    return pixels


def _views(images: Tensor, shift: int, directions: Directions) -> list[Tensor]:
    """The image and its copies, shifted by `shift` pixels with zeros moving in."""
    height, width = images.shape[-2:]
    padded = F.pad(images, (shift, shift, shift, shift))
    rows = ((row + 1) * shift for row, _ in _OFFSETS[directions])
    columns = ((column + 1) * shift for _, column in _OFFSETS[directions])
    moved = [padded[..., r : r + height, c : c + width] for r, c in zip(rows, columns, strict=True)]
    return [images, *moved]


def shifted_stack(
    images: Float[Tensor, "B C H W"], shift: int, directions: Directions = "diagonal"
) -> Float[Tensor, "B VC H W"]:
    """The image and its shifted copies, side by side on the channel axis, original first.

    The diagonal copies follow in the order x[r−s, c−s], x[r−s, c+s], x[r+s, c−s], x[r+s, c+s],
    the cardinal ones in the order x[r−s, c], x[r+s, c], x[r, c−s], x[r, c+s].
    """
    return torch.cat(_views(images, shift, directions), 1)


class PatchTokenizer(nn.Module):
    """Non-overlapping patches through one linear layer (stored as a convolution)."""

    def __init__(self, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.receptive_field = patch_size
        self.proj = nn.Conv2d(in_channels, dim, patch_size, patch_size)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """Returns one token per patch, row by row."""
        return self.proj(images).flatten(2).transpose(1, 2)


class SPT(nn.Module):
    """Shifted Patch Tokenization (arXiv 2112.13492): LN(patches([x, s₁ … s₄])) · E.

    Args:
        in_channels: Channels of the image.
        dim: Width of the tokens.
        patch_size: Side of a patch.
        shift: How far the copies move, as a fraction of the patch, rounded down to pixels.
        directions: Where they move: the four diagonals, the four cardinals, or all eight.
    """

    @checked
    def __init__(
        self,
        in_channels: Width,
        dim: Width,
        patch_size: Width,
        *,
        shift: Annotated[float, Between(0, 1_000)] = 0.5,
        directions: Directions = "diagonal",
    ) -> None:
        super().__init__()
        self.in_channels, self.patch_size, self.directions = in_channels, patch_size, directions
        self.shift = shift_pixels(shift, patch_size)
        self.receptive_field = patch_size + 2 * self.shift
        width = num_views(directions) * in_channels * patch_size**2
        self.norm = nn.LayerNorm(width)
        self.proj = nn.Linear(width, dim)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """Returns one token per patch, row by row.

        Raises:
            ValueError: The images are not whole patches of the channels that it was made for.
        """
        p = self.patch_size
        if images.ndim != 4 or images.shape[1] != self.in_channels:
            raise ValueError(
                f"expected images of (batch, {self.in_channels}, height, width) and got "
                f"{tuple(images.shape)}"
            )
        if images.shape[2] % p or images.shape[3] % p:
            raise ValueError(
                f"images of {images.shape[2]}×{images.shape[3]} do not divide into patches of {p}"
            )
        # Each view as (B, h, w, p, p, C) without a copy; one stack then writes every patch once,
        # flattened row, column, view, channel.
        patches = [
            view.unflatten(3, (-1, p)).unflatten(2, (-1, p)).permute(0, 2, 4, 3, 5, 1)
            for view in _views(images, self.shift, self.directions)
        ]
        return self.proj(self.norm(torch.stack(patches, 5).flatten(3).flatten(1, 2)))


class ConvTokenizer(nn.Module):
    """The compact transformer's tokenizer: convolution, ReLU, max-pool, repeated.

    Args:
        in_channels: Channels of the image.
        dim: Width of the tokens.
        kernel: Side of the convolution kernels.
        layers: How many convolutions; all but the last have 64 channels.
        stride: Stride of the convolutions; each pool halves once more.

    Attributes:
        fused: Whether to use the fused kernel for ReLU and pool where it can be used.
    """

    fused: bool = True

    @checked
    def __init__(
        self, in_channels: Width, dim: Width, *, kernel: Width, layers: Width, stride: Width
    ) -> None:
        super().__init__()
        self.receptive_field = reach([(kernel, stride), (3, 2)] * layers)
        widths = [in_channels, *[64] * (layers - 1), dim]
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, kernel, stride, kernel // 2, bias=False) for a, b in pairwise(widths)
        )

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """Returns one token per position of the last feature map, row by row."""
        x = images
        if self.fused and poolable(x):  # convolutions keep the layout that the kernel writes
            x = x.contiguous(memory_format=torch.channels_last)
        for conv in self.convs:
            x = conv(x)
            x = fused_pool(x) if self.fused and poolable(x) else plain_pool(x)
        return x.flatten(2).transpose(1, 2)
