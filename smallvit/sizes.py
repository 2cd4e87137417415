"""Height and width of images and of grids of tokens, in this order."""

from collections.abc import Iterable
from typing import Any

Size = tuple[int, int]


def as_size(value: int | Iterable[int]) -> Size:
    """Height and width from one number or two."""
    sides: tuple[Any, ...] = tuple(value) if isinstance(value, Iterable) else (value, value)
    if len(sides) != 2 or not all(hasattr(side, "__index__") and side > 0 for side in sides):
        raise ValueError(
            f"image_size is {value!r}: give one positive number, or two as (height, width)"
        )
    return int(sides[0]), int(sides[1])
