"""Picture files to pixels: every mode of the usual formats, and what is wrong with the rest.

- Transparent pictures are laid on white.
- 16-bit pictures keep the high byte of every value; their range is that of the type, never that
  of the single picture.
- EXIF orientation is applied.
- The first frame of an animation or page of a stack is the picture.
- A TIFF whose further channels are not transparency keeps them all.
"""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.Image import Image as Picture

from smallvit.extras import require

SUFFIXES = frozenset(
    [".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"]
)
MAX_PIXELS = 89_000_000
"""Larger pictures are refused as decompression bombs; Pillow's own limit lies just above."""

THUMB = 16
"""Side of the grey thumbnails by which pictures are compared."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
_TIFF_SAMPLES, _TIFF_PHOTOMETRIC, _TIFF_EXTRA, _TIFF_RGB = 277, 262, 338, 2


Decoded = Picture | UInt8[np.ndarray, "H W C"]
"""A grey or coloured picture of Pillow's, or the pixels of one with other channels."""


class UnreadableError(ValueError):
    """The picture cannot be read; the message says why, as the rest of "NAME: …"."""


class Glance(NamedTuple):
    """What one look at a picture tells.

    Attributes:
        size: Height and width, upright.
        channels: 1, 3, or what a multi-channel TIFF holds.
        animated: Whether there are further frames or pages.
        contrast: Largest minus smallest grey value, seen coarsely.
        thumb: The picture in grey, squeezed to `THUMB` × `THUMB`.
    """

    size: tuple[int, int]
    channels: int
    animated: bool
    contrast: int
    thumb: UInt8[np.ndarray, "T T"]


def read_image(source: bytes | str | os.PathLike[str]) -> UInt8[np.ndarray, "H W C"]:
    """Decodes a picture at full resolution.

    Args:
        source: A file, or the bytes of one.

    Returns:
        Its pixels with 1 (grey), 3 (colour) or, from TIFF, any number of channels.

    Raises:
        UnreadableError: It is damaged, too large, or no picture.
    """
    data = source if isinstance(source, bytes) else read_bytes(Path(source))
    return as_array(decode(data))


def decode(data: bytes) -> Decoded:
    """`read_image` without the last step, which resizing would only have to undo."""
    with _explained():
        picture = _open(data)
        return _channels_of_tiff(data) if picture is None else _plain(picture)


def as_array(image: Decoded) -> UInt8[np.ndarray, "H W C"]:
    """The pixels, channels last."""
    if isinstance(image, np.ndarray):
        return image
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, or `UnreadableError`."""
    with _explained():
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise UnreadableError("it is no regular file")
        return path.read_bytes()


def to_channels(image: Decoded, channels: int) -> Decoded:
    """Grey to colour or colour to grey; any other change is refused."""
    found = image.shape[2] if isinstance(image, np.ndarray) else len(image.getbands())
    if found == channels:
        return image
    if {found, channels} != {1, 3}:
        raise UnreadableError(f"it has {found} channels where {channels} are expected")
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image if found == 3 else image[..., 0])
    return image.convert("L" if channels == 1 else "RGB")


def glance(data: bytes) -> Glance:
    """Looks at a picture quickly: JPEG is decoded small and grey."""
    with _explained():
        picture = _open(data)
        if picture is None:
            pixels = _channels_of_tiff(data)
            height, width, channels = pixels.shape
            animated, grey = False, Image.fromarray(pixels.mean(axis=2).astype(np.uint8))
        elif picture.format in ("JPEG", "MPO"):
            channels, animated = _channels(picture), False
            width, height = picture.size
            if picture.getexif().get(0x0112, 1) >= 5:
                width, height = height, width
            picture.draft("L", (4 * THUMB, 4 * THUMB))
            ImageOps.exif_transpose(picture, in_place=True)
            grey = picture
        else:
            channels, animated = _channels(picture), bool(getattr(picture, "is_animated", False))
            grey = _plain(picture)
            width, height = grey.size
        if grey.mode != "L":
            grey = grey.convert("RGB").convert("L")
        low, high = (int(value) for value in grey.getextrema())  # type: ignore[arg-type]
        thumb = np.asarray(grey.resize((THUMB, THUMB), Image.Resampling.BILINEAR))
    return Glance((height, width), channels, animated, high - low, thumb)


@contextmanager
def _explained() -> Iterator[None]:
    """Whatever a decoder raises on a damaged file becomes one kind of error with a reason."""
    try:
        yield
    except (UnreadableError, MemoryError):
        raise
    except ImportError as error:
        raise UnreadableError(str(error)) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableError(_bomb()) from error
    except UnidentifiedImageError as error:
        raise UnreadableError(
            "it is none of JPEG, PNG, WebP, BMP, TIFF and GIF, whatever its name says"
        ) from error
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    except Exception as error:  # pylint: disable=broad-exception-caught
        # Decoders meet damaged bytes with almost any exception: struct, zlib, index, type…
        raise UnreadableError(f"damaged ({type(error).__name__}: {error})") from error


def _bomb() -> str:
    return f"it has more than {MAX_PIXELS:,} pixels and is refused unread: save it smaller"


def _open(data: bytes) -> Picture | None:
    """The picture, not yet decoded, or None for a TIFF of channels that Pillow would drop."""
    if not data:
        raise UnreadableError("the file is empty")
    try:
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:
        if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            return None
        raise
    if picture.width * picture.height > MAX_PIXELS:
        raise UnreadableError(_bomb())
    if picture.format == "TIFF":
        tags: Any = picture.tag_v2  # type: ignore[attr-defined]
        extra, samples = tags.get(_TIFF_EXTRA, ()), tags.get(_TIFF_SAMPLES, 1)
        coloured = tags.get(_TIFF_PHOTOMETRIC) == _TIFF_RGB
        if 0 in extra or (coloured and samples > 3 and not extra):
            return None
    return picture


def _channels(picture: Picture) -> int:
    return 1 if picture.mode in _GREY else 3


def _plain(picture: Picture) -> Picture:
    """Decodes, turns upright and brings any mode to grey ("L") or colour ("RGB")."""
    ImageOps.exif_transpose(picture, in_place=True)
    mode, plain = picture.mode, "L" if picture.mode in _GREY else "RGB"
    if mode.startswith("I;16") or (mode == "I" and picture.format == "PNG"):
        return Image.fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))
    if mode in ("I", "F"):
        raise UnreadableError("it has 32-bit values without a fixed range: save 8 or 16 bits")
    if picture.has_transparency_data:
        canvas = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(canvas, picture.convert("RGBA"))
    picture.load()
    return picture if picture.mode == plain else picture.convert(plain)


def _channels_of_tiff(data: bytes) -> UInt8[np.ndarray, "H W C"]:
    """The first page of a TIFF with all its channels."""
    tifffile = require("tifffile", "tiff", "reading TIFF of many channels")
    with tifffile.TiffFile(io.BytesIO(data)) as tiff:
        page = tiff.pages[0]
        if page.imagelength * page.imagewidth > MAX_PIXELS:
            raise UnreadableError(_bomb())
        pixels: np.ndarray = page.asarray()
        axes: str = page.axes
    if axes not in ("YX", "YXS", "SYX"):
        raise UnreadableError(f"its axes are {axes}: one page of rows, columns, channels is read")
    if pixels.ndim != len(axes) or not pixels.size:  # its tags promise what is not there
        raise UnreadableError("damaged: its pixels are missing")
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise UnreadableError(f"its values are {pixels.dtype}: save 8 or 16 bits without sign")
    if axes == "SYX":
        pixels = np.moveaxis(pixels, 0, 2)
    return np.ascontiguousarray(pixels if pixels.ndim == 3 else pixels[..., None])
