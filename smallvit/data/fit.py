"""How an image of any shape comes to the model's size: one definition of the pixels.

`place` says which part of the image is used, its new size and its offset on the canvas;
`fit_image` does it with Pillow for the cache, prediction and serving, with the antialiased triangle
filter ("bilinear"), and for "imagenet" with the cubic one; `fit_tensor`, in
`smallvit.data.tensors`, gives the same bytes with PyTorch operations, so that an exported model can
carry it. Importing this needs no PyTorch.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from smallvit.arguments import check
from smallvit.data.images import Decoded, as_array, as_decoded
from smallvit.sizes import Fit, Size, as_size

FILL = 128
"""The grey of letterbox bars: the middle of the range, near zero once images are normalised."""


class Placement(NamedTuple):
    """Where an image goes.

    Attributes:
        box: Top, left, height and width of the part of the image that is used.
        inner: Height and width it is resized to.
        offset: Top and left of it on the canvas; negative where it is larger than the canvas.
    """

    box: tuple[int, int, int, int]
    inner: Size
    offset: Size

    def seen(self, size: Size) -> tuple[int, int, int, int]:
        """Top, left, height and width of the part of the image that is on the canvas."""
        sides = zip(self.box[:2], self.box[2:], self.inner, self.offset, size, strict=True)
        first, length = [], []
        for start, whole, inner, offset, canvas in sides:
            first.append(start + divide(max(-offset, 0) * whole, inner))
            length.append(max(1, divide(min(inner, canvas) * whole, inner)))
        return first[0], first[1], length[0], length[1]


def place(height: int, width: int, size: Size, fit: Fit) -> Placement:
    """Where an image of `height` × `width` goes on a canvas of `size`.

    Whole numbers only, so that `smallvit.data.tensors` can say the same in a traced graph.
    Letterbox keeps the whole image and its proportions and centres it; stretch keeps the whole
    image; crop keeps the proportions and cuts the longer side, equally on both ends; imagenet makes
    the shorter side 8/7 of the canvas and keeps the middle, as ImageNet's tests do (256 and 224).
    All of them leave an image of the canvas's size as it is: exported graphs fit once more what
    `Card.prepare` has fitted.
    """
    check("fit", fit, Fit)
    rows, columns = size
    if fit == "stretch":
        return Placement((0, 0, height, width), size, (0, 0))
    if fit == "crop":
        h = min(height, max(1, divide(width * rows, columns)))
        w = min(width, max(1, divide(height * columns, rows)))
        return Placement(((height - h) // 2, (width - w) // 2, h, w), size, (0, 0))
    if fit == "imagenet" and (height, width) != (rows, columns):
        tall, wide = 8 * rows // 7, 8 * columns // 7
        inner = max(tall, wide * height // width), max(wide, tall * width // height)
        return Placement(
            (0, 0, height, width), inner, (-half(inner[0] - rows), -half(inner[1] - columns))
        )
    h = min(rows, max(1, divide(height * columns, width)))
    w = min(columns, max(1, divide(width * rows, height)))
    return Placement((0, 0, height, width), (h, w), ((rows - h) // 2, (columns - w) // 2))


def divide(a: Any, b: Any) -> Any:
    """The quotient of whole numbers, or of tensors of them, rounded half up."""
    return (2 * a + b) // (2 * b)


def half(length: Any) -> Any:
    """Half of a whole number, or of a tensor of them; halves become even."""
    return length // 2 + (length % 4 == 3)


def fit_image(image: Decoded, size: Size, fit: Fit = "letterbox") -> UInt8[np.ndarray, "h w C"]:
    """A decoded image at the model's size, in any number of channels."""
    size, image = as_size(size), as_decoded(image)
    height, width = image.shape[:2] if isinstance(image, np.ndarray) else image.size[::-1]
    (top, left, height, width), (rows, columns), offset = place(height, width, size, fit)
    if not isinstance(image, np.ndarray):
        box = left, top, left + width, top + height
        part = image if fit != "crop" else image.crop(box)
        pixels = as_array(_resized(part, rows, columns, fit))
    else:
        # Pillow has no images of two, five or more channels; one channel at a time is the same.
        channels = np.moveaxis(image[top : top + height, left : left + width], 2, 0)
        grey = (Image.fromarray(np.ascontiguousarray(channel)) for channel in channels)
        pixels = np.dstack([np.asarray(_resized(each, rows, columns, fit)) for each in grey])
    if (rows, columns) == size:
        return pixels
    if fit == "imagenet":
        top, left = -offset[0], -offset[1]
        return pixels[top : top + size[0], left : left + size[1]].copy()
    canvas = np.full((*size, pixels.shape[2]), FILL, np.uint8)
    canvas[offset[0] : offset[0] + rows, offset[1] : offset[1] + columns] = pixels
    return canvas


def _resized(image: Image.Image, rows: int, columns: int, fit: Fit) -> Image.Image:
    """First across, then down."""
    way = Image.Resampling.BICUBIC if fit == "imagenet" else Image.Resampling.BILINEAR
    # In one call, versions of Pillow resize in different order, and the bytes depend on it.
    return image.resize((columns, image.height), way).resize((columns, rows), way)
