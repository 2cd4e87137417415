"""Height and width of images and of grids of tokens, and the ways an image comes to a size."""

from collections.abc import Iterable
from typing import Any, Literal

Size = tuple[int, int]
Fit = Literal["letterbox", "stretch", "crop", "imagenet"]

_LONGEST = 10_000
"""Pixels of a side; more would not fit any memory."""


def as_size(value: int | Iterable[int]) -> Size:
    """Height and width from one number or two."""
    sides: tuple[Any, ...] = tuple(value) if isinstance(value, Iterable) else (value, value)
    if len(sides) != 2 or not all(hasattr(s, "__index__") and 0 < s <= _LONGEST for s in sides):
        raise ValueError(
            f"image_size is {value!r}: give one positive number, or two as (height, width), of up "
            f"to {_LONGEST:,} pixels"
        )
    return int(sides[0]), int(sides[1])
