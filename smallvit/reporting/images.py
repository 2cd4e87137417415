"""Images small enough to stand in a page."""

import base64
import io

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from smallvit.data.previews import coloured

SIDE = 144
"""Longest side of an image in the page; larger ones are made smaller."""

_TINY = 64
_LARGEST = 128


def data_uri(image: UInt8[np.ndarray, "H W C"]) -> str:
    """An image as text for an src attribute; tiny ones keep every pixel."""
    thumbnail = Image.fromarray(coloured(image))
    tiny = max(thumbnail.size) <= _TINY
    if not tiny:
        thumbnail.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    kind = "PNG" if tiny else "WEBP"
    thumbnail.save(file, kind, optimize=True) if tiny else thumbnail.save(file, kind, quality=75)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def enlarged(image: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "h w 3"]:
    """A whole number of times as large, so that a map over it is smooth; colour in any case."""
    times = max(1, _LARGEST // max(image.shape[:2]))
    return np.asarray(coloured(image).repeat(times, 0).repeat(times, 1))
