"""Sizes of images, and the ways an image of another shape comes to one."""

from collections.abc import Iterable
from typing import Literal, get_args

Size = tuple[int, int]
Fit = Literal["letterbox", "stretch", "crop"]


def as_size(value: int | Iterable[int]) -> Size:
    """Height and width from one number or two."""
    sides = (value, value) if isinstance(value, int) else tuple(value)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ValueError(
            f"image_size is {value!r}: give one positive number, or two as (height, width)"
        )
    return sides[0], sides[1]


def check_fit(fit: str) -> None:
    """Refuses a fit that does not exist."""
    if fit not in get_args(Fit):
        raise ValueError(f"fit is {fit!r}: allowed are {', '.join(get_args(Fit))}")
