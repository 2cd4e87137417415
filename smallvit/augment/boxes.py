"""Random rectangles, which a crop keeps, erasing replaces and CutMix pastes."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from smallvit.augment.config import EraseShape, Range
from smallvit.augment.randomness import whole, written
from smallvit.sizes import Size

_ATTEMPTS = 10
#: Uniform numbers per image that `draw_box` takes.
BOX_DRAWS = 2 * _ATTEMPTS + 2


class Box(NamedTuple):
    """One rectangle per image, in pixels."""

    top: Int64[Tensor, " B"]
    left: Int64[Tensor, " B"]
    height: Int64[Tensor, " B"]
    width: Int64[Tensor, " B"]


def draw_box(
    uniforms: Float[Tensor, "B draws"],
    size: Size,
    area: Range,
    aspect: Range,
    *,
    smaller: bool,
    shape: EraseShape = "log",
) -> Box:
    """A rectangle of random area and shape: the first of ten attempts that fits the frame.

    If none fits, it is empty (height and width 0).

    Args:
        size: Height and width of the frame.
        area: Smallest and largest area, as a fraction of the frame's.
        aspect: Smallest and largest width over height.
        smaller: Whether it must be strictly smaller than the frame on both sides.
        shape: Whether the logarithm of width over height is uniform, or height over width itself.
    """
    height, width = size
    areas = (area[0] + (area[1] - area[0]) * uniforms[:, :_ATTEMPTS]) * (height * width)
    drawn = uniforms[:, _ATTEMPTS : 2 * _ATTEMPTS]
    if shape == "log":
        low, high = math.log(aspect[0]), math.log(aspect[1])
        aspects = torch.exp(low + (high - low) * drawn)
    else:
        low, high = 1 / aspect[1], 1 / aspect[0]
        aspects = 1 / (low + (high - low) * drawn)
    heights = torch.sqrt(areas / aspects).round().long()
    widths = torch.sqrt(areas * aspects).round().long()
    fits = (heights <= height - smaller) & (widths <= width - smaller)
    fits &= (heights > 0) & (widths > 0)
    # Of the attempts that fit, the earliest has the highest rank.
    rank = fits * torch.arange(_ATTEMPTS, 0, -1, device=fits.device)
    first = rank.argmax(1, keepdim=True)
    some = fits.any(1)
    h = torch.where(some, heights.gather(1, first)[:, 0], 0)
    w = torch.where(some, widths.gather(1, first)[:, 0], 0)
    top = whole(uniforms[:, 2 * _ATTEMPTS], height - h + 1)
    left = whole(uniforms[:, 2 * _ATTEMPTS + 1], width - w + 1)
    return Box(*written(torch.stack([top, left, h, w])))


def inside(box: Box, size: Size) -> Bool[Tensor, "B 1 H W"]:
    """Which pixels of the frame are in the rectangle."""
    rows, columns = (torch.arange(side, device=box.top.device) for side in size)
    row = (rows >= box.top[:, None]) & (rows < (box.top + box.height)[:, None])
    column = (columns >= box.left[:, None]) & (columns < (box.left + box.width)[:, None])
    return (row[:, :, None] & column[:, None])[:, None]


def erase(
    images: Float[Tensor, "B C H W"], box: Box, filling: Float[Tensor, "#B #C #H #W"]
) -> Float[Tensor, "B C H W"]:
    """Replaces the pixels in the rectangle."""
    return torch.where(inside(box, (images.shape[2], images.shape[3])), filling, images)
