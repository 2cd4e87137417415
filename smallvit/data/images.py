"""Image files to pixels: all modes of the usual formats, and reasons why a file cannot be read.

- Transparent images get a white background.
- 16-bit images keep the high byte of every value, whatever range the single image uses.
- EXIF orientation is applied.
- The first frame of an animation or page of a stack is the image.
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
from PIL.Image import Image as PilImage

from smallvit.arguments import Width, checked
from smallvit.extras import require

MAX_PIXELS = 89_000_000
"""Larger images are refused as decompression bombs; Pillow's own limit is just above."""

THUMB = 16
"""Side of the grey thumbnails by which images are compared."""

_MAX_CHANNELS = 4
"""Of an image of `MAX_PIXELS` pixels; smaller ones may have more."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
_ORIENTATION = 0x0112
_TIFF_SAMPLES, _TIFF_PHOTOMETRIC, _TIFF_EXTRA, _TIFF_RGB = 277, 262, 338, 2


Decoded = PilImage | UInt8[np.ndarray, "H W C"]
"""A grey or colour image of Pillow's, or the pixels of an image with other channels."""


class UnreadableError(ValueError):
    """The image cannot be read; the message says why, as the rest of "NAME: …"."""


class NoImageError(UnreadableError):
    """The file has none of the formats that are read."""


class TooManyPixelsError(UnreadableError):
    """Its header says it has more pixels than are decoded."""


class Glance(NamedTuple):
    """What is known of an image without decoding it in full.

    Attributes:
        size: Height and width, upright.
        channels: 1, 3, or what a multi-channel TIFF holds.
        animated: Whether there are further frames or pages.
        contrast: Largest minus smallest grey value of a small copy.
        thumb: The image in grey, squeezed to `THUMB` × `THUMB`.
    """

    size: tuple[int, int]
    channels: int
    animated: bool
    contrast: int
    thumb: UInt8[np.ndarray, "T T"]


@checked
def read_image(source: bytes | str | os.PathLike[str]) -> UInt8[np.ndarray, "H W C"]:
    """Decodes an image at full resolution.

    Args:
        source: A file, or the bytes of one.

    Returns:
        Its pixels with 1 (grey), 3 (colour) or, from TIFF, any number of channels.

    Raises:
        UnreadableError: It is damaged, too large, or not an image.
    """
    data = source if isinstance(source, bytes) else read_bytes(Path(source))
    return as_array(decode(data))


def decode(data: bytes, limit: int = MAX_PIXELS) -> Decoded:
    """`read_image` without the conversion to an array, which resizing would have to undo.

    Args:
        data: The bytes of a file.
        limit: Images of more pixels are refused by their header.
    """
    with _explained(limit):
        image = _open(data, limit)
        return _channels_of_tiff(data, limit) if image is None else _plain(image)


def as_decoded(image: Any) -> Decoded:
    """An image of Pillow's or an array as `decode` would give its file.

    Images of Pillow's may have any mode. Arrays have rows, columns and, unless they are grey,
    channels: bytes from 0 to 255, 16 bits without sign, true and false, or numbers from 0 to 1.
    What `decode` returned stays as it is.

    Raises:
        TypeError: It is neither.
        UnreadableError: It has no pixels, too many, or values without a fixed range.
    """
    if isinstance(image, PilImage):
        if not (pixels := image.width * image.height):
            raise UnreadableError("it has no pixels")
        if pixels > MAX_PIXELS:
            raise _bomb(MAX_PIXELS)
        with _explained():
            if _hides_channels(image):
                raise UnreadableError(
                    "Pillow leaves out some of its channels: read the file with "
                    "smallvit.data.read_image"
                )
            return _plain(image)
    if isinstance(image, np.ndarray):
        return _bytes_of(image)
    raise TypeError(
        f"an image is a {type(image).__name__}: expected is Pillow's or an array of NumPy's; "
        "smallvit.data.read_image reads a file, smallvit.predict takes files"
    )


def as_array(image: Decoded) -> UInt8[np.ndarray, "H W C"]:
    """The pixels, channels last."""
    if isinstance(image, np.ndarray):
        return image
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, or `UnreadableError`."""
    with _explained():
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for ever
            raise UnreadableError("it is not a regular file")
        return path.read_bytes()


@checked
def to_channels(image: Any, channels: Width) -> Decoded:
    """Grey to colour or colour to grey; any other change is refused.

    Args:
        image: Whatever `as_decoded` takes.
        channels: How many it is to have.
    """
    image = as_decoded(image)
    present = image.shape[2] if isinstance(image, np.ndarray) else len(image.getbands())
    if present == channels:
        return image
    if {present, channels} != {1, 3}:
        hint = "; pass Pillow's image, which says what they are" if present in (2, 4) else ""
        raise UnreadableError(f"it has {present} channels where {channels} are expected{hint}")
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image if present == 3 else image[..., 0])
    return image.convert("L" if channels == 1 else "RGB")


def glance(data: bytes) -> Glance:
    """Reads what a survey needs of an image, quickly: JPEG is decoded small and grey."""
    with _explained():
        image = _open(data)
        if image is None:
            pixels = _channels_of_tiff(data)
            height, width, channels = pixels.shape
            animated, grey = False, Image.fromarray(pixels.mean(axis=2).astype(np.uint8))
        elif image.format in ("JPEG", "MPO"):
            channels, animated = 1 if image.mode in _GREY else 3, False
            width, height = image.size
            if image.getexif().get(_ORIENTATION) in (5, 6, 7, 8):
                width, height = height, width
            image.draft("L", (4 * THUMB, 4 * THUMB))
            ImageOps.exif_transpose(image, in_place=True)
            grey = image
        else:
            grey, animated = _plain(image), bool(getattr(image, "is_animated", False))
            channels, (width, height) = len(grey.getbands()), grey.size
        if grey.mode != "L":
            grey = grey.convert("RGB").convert("L")
        low, high = (int(value) for value in grey.getextrema())  # type: ignore[arg-type]
        thumb = np.asarray(grey.resize((THUMB, THUMB), Image.Resampling.BILINEAR))
    return Glance((height, width), channels, animated, high - low, thumb)


@contextmanager
def _explained(limit: int = MAX_PIXELS) -> Iterator[None]:
    """Turns whatever a decoder raises on a damaged file into `UnreadableError` with a reason."""
    try:
        yield
    except (UnreadableError, MemoryError):
        raise
    except ImportError as error:
        raise UnreadableError(str(error)) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _bomb(limit) from error
    except UnidentifiedImageError as error:
        raise NoImageError(
            "it is none of JPEG, PNG, WebP, BMP, TIFF and GIF, whatever its name says"
        ) from error
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    except Exception as error:  # pylint: disable=broad-exception-caught
        # Damaged bytes make decoders raise almost any exception: struct, zlib, index, type…
        raise UnreadableError(f"damaged ({type(error).__name__}: {error})") from error


def _bomb(limit: int) -> TooManyPixelsError:
    return TooManyPixelsError(
        f"it has more than {limit:,} pixels and is not decoded: save it smaller"
    )


def _open(data: bytes, limit: int = MAX_PIXELS) -> PilImage | None:
    """The image, not yet decoded, or None for a TIFF with channels that Pillow would drop."""
    if not data:
        raise UnreadableError("the file is empty")
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:
        if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            return None
        raise
    if image.width * image.height > limit:
        raise _bomb(limit)
    return None if _hides_channels(image) else image


def _hides_channels(image: PilImage) -> bool:
    """Whether it is a TIFF with further channels, which Pillow drops."""
    tags: Any = getattr(image, "tag_v2", None)
    if tags is None:
        return False
    extra, samples = tags.get(_TIFF_EXTRA, ()), tags.get(_TIFF_SAMPLES, 1)
    coloured = tags.get(_TIFF_PHOTOMETRIC) == _TIFF_RGB
    return 0 in extra or (coloured and samples > 3 and not extra)


def _plain(image: PilImage) -> PilImage:
    """Decodes, turns upright and brings any mode to grey ("L") or colour ("RGB").

    The image itself stays as it was.
    """
    kind, mode = image.format, image.mode
    plain = "L" if mode in _GREY else "RGB"
    if image.getexif().get(_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if mode.startswith("I;16") or (mode == "I" and kind == "PNG"):
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if mode in ("I", "F"):
        raise UnreadableError("it has 32-bit values without a fixed range: save 8 or 16 bits")
    if mode == "La":
        image = image.convert("LA")  # nothing else can be made of it
    if image.has_transparency_data:
        canvas = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(canvas, image.convert("RGBA"))
    image.load()
    return image if image.mode == plain else image.convert(plain)


def _bytes_of(pixels: np.ndarray) -> UInt8[np.ndarray, "H W C"]:
    """An array as bytes, channels last."""
    if pixels.ndim not in (2, 3):
        raise UnreadableError(
            f"its shape is {pixels.shape}: expected are rows and columns, and channels last"
        )
    if not pixels.size:
        raise UnreadableError(f"its shape is {pixels.shape}: it has no pixels")
    kind, width = pixels.dtype.kind, pixels.dtype.itemsize
    if kind == "u" and width == 2:
        pixels = (pixels >> 8).astype(np.uint8)
    elif kind == "b":
        pixels = pixels.astype(np.uint8) * 255
    elif kind == "f" and pixels.min() >= 0 and pixels.max() <= 1:
        pixels = np.floor(pixels.astype(np.float64) * 255 + 0.5).astype(np.uint8)
    elif kind != "u" or width != 1:
        numbers = f", from {pixels.min():.4g} to {pixels.max():.4g}" if kind in "iuf" else ""
        raise UnreadableError(
            f"its values are {pixels.dtype}{numbers}: expected are bytes (uint8), 16 bits (uint16) "
            "or floating-point numbers from 0 to 1"
        )
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _channels_of_tiff(data: bytes, limit: int = MAX_PIXELS) -> UInt8[np.ndarray, "H W C"]:
    """The first page of a TIFF with all its channels."""
    tifffile = require("tifffile", "tiff", "reading TIFF of many channels")
    with tifffile.TiffFile(io.BytesIO(data)) as tiff:
        page = tiff.pages[0]
        axes: str = page.axes
        if axes not in ("YX", "YXS", "SYX"):
            raise UnreadableError(
                f"its axes are {axes}: one page of rows, columns, channels is read"
            )
        if page.dtype not in (np.uint8, np.uint16):
            raise UnreadableError(f"its values are {page.dtype}: save 8 or 16 bits without sign")
        # Channels count too: a header of a few bytes can declare thousands of them.
        if page.imagelength * page.imagewidth > limit or page.size > _MAX_CHANNELS * limit:
            raise _bomb(limit)
        pixels: np.ndarray = page.asarray()
    if not pixels.size or pixels.ndim != len(axes):
        raise UnreadableError("damaged (it has no pixels)")
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    if axes == "SYX":
        pixels = np.moveaxis(pixels, 0, 2)
    return np.ascontiguousarray(pixels if pixels.ndim == 3 else pixels[..., None])
