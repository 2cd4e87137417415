"""Pictures small enough to stand in a page."""

import base64
import io

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from smallvit.data.previews import coloured

SIDE = 144
"""Longest side of a picture in the page; larger ones are made smaller."""

_TINY = 64
_LARGEST = 128


def data_uri(picture: UInt8[np.ndarray, "H W C"]) -> str:
    """A picture as text for an src attribute; tiny ones keep every pixel."""
    image = Image.fromarray(coloured(picture))
    tiny = max(image.size) <= _TINY
    if not tiny:
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    kind = "PNG" if tiny else "WEBP"
    image.save(file, kind, optimize=True) if tiny else image.save(file, kind, quality=75)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def enlarged(picture: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "h w 3"]:
    """A whole number of times as large, so that a map over it is smooth; colour in any case."""
    times = max(1, _LARGEST // max(picture.shape[:2]))
    return np.asarray(coloured(picture).repeat(times, 0).repeat(times, 1))
