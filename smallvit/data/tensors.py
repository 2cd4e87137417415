"""`fit_image` in PyTorch operations: the same bytes, for graphs that take images of any shape.

Pillow resizes in whole numbers: weights of `_BITS` bits, and a rounding to bytes after the
horizontal and after the vertical pass. Each pass is a matrix product here. Weights and sums stay
far below 2**53, so in double precision the product is exact in whatever order it is summed, and
every runtime gives the bytes that Pillow gives.

Sizes of images are tensors here and canvases are filled by masks, so that nothing in an exported
graph depends on the shape of the image it was traced with.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from smallvit.arguments import check
from smallvit.data.fit import FILL, divide, half
from smallvit.sizes import Fit, Size

_BITS = 22


class _Side(NamedTuple):
    """Where one side of an image goes: which part, resized to which length, at which offset."""

    start: Int64[Tensor, ""]
    length: Int64[Tensor, ""]
    inner: Int64[Tensor, ""]
    offset: Int64[Tensor, ""]


def fit_tensor(
    images: UInt8[Tensor, "B C H W"], size: Size, fit: Fit = "letterbox"
) -> UInt8[Tensor, "B C h w"]:
    """`fit_image` for a batch of decoded images of one shape; the bytes are the same."""
    check("fit", fit, Fit)
    device = images.device
    height = torch.full((), images.shape[2], dtype=torch.int64, device=device)
    width = torch.full((), images.shape[3], dtype=torch.int64, device=device)
    rows, columns = _side(height, width, size, fit), _side(width, height, size[::-1], fit)
    cubic = fit == "imagenet"
    wide, wide_used = _weights(columns, size[1], images.shape[3], cubic=cubic)
    tall, tall_used = _weights(rows, size[0], images.shape[2], cubic=cubic)
    across = _bytes(images.double() @ wide.T)
    fitted = _bytes(tall @ across)
    used = tall_used[:, None] & wide_used
    return torch.where(used, fitted, float(FILL)).to(torch.uint8)


def _side(length: Int64[Tensor, ""], other: Int64[Tensor, ""], size: Size, fit: Fit) -> _Side:
    """One side of what `smallvit.data.fit.place` says; `size` has this side's length first."""
    canvas, beside = size
    full, zero = torch.full_like(length, canvas), torch.zeros_like(length)
    if fit == "stretch":
        return _Side(zero, length, full, zero)
    if fit == "crop":
        part = torch.minimum(length, divide(other * canvas, torch.full_like(other, beside)))
        part = part.clamp(min=1)
        return _Side((length - part) // 2, part, full, zero)
    if fit == "imagenet":
        inner = (8 * beside // 7 * length // other).clamp(min=8 * canvas // 7)
        inner = torch.where((length == canvas) & (other == beside), length, inner)
        return _Side(zero, length, inner, -half(inner - canvas))
    inner = divide(length * beside, other).clamp(1, canvas)
    return _Side(zero, length, inner, (canvas - inner) // 2)


def _weights(
    side: _Side, canvas: int, length: int, *, cubic: bool
) -> tuple[Float64[Tensor, "canvas length"], Tensor]:
    """The weight of each pixel for each position on the canvas, and which positions are covered."""
    device = side.start.device
    position = torch.arange(canvas, device=device) - side.offset
    pixel = (torch.arange(length, device=device) - side.start).double()
    scale = side.length.double() / side.inner.double()
    reach = scale.clamp(min=1)
    centre = (position.double() + 0.5) * scale
    distance = (pixel - centre[:, None] + 0.5) * (1 / reach)
    inside = (pixel >= 0) & (pixel < side.length)
    raw = torch.where(inside, (_cubic if cubic else _triangle)(distance.abs()), 0.0)
    used = (position >= 0) & (position < side.inner)
    total = torch.where(used, raw.sum(1), 1.0)
    weights = raw / total[:, None] * 2**_BITS
    return torch.where(weights < 0, torch.ceil(weights - 0.5), torch.floor(weights + 0.5)), used


def _triangle(distance: Float64[Tensor, "canvas length"]) -> Float64[Tensor, "canvas length"]:
    return (1 - distance).clamp(min=0)


def _cubic(d: Float64[Tensor, "canvas length"]) -> Float64[Tensor, "canvas length"]:
    """Pillow's bicubic filter."""
    near, far = (1.5 * d - 2.5) * d * d + 1, (((d - 5) * d + 8) * d - 4) * -0.5
    return torch.where(d < 1, near, torch.where(d < 2, far, 0.0))


def _bytes(sums: Float64[Tensor, "*B h w"]) -> Float64[Tensor, "*B h w"]:
    """Sums of weighted bytes to bytes again, halves upwards as Pillow rounds them."""
    return torch.floor(sums / 2**_BITS + 0.5).clamp(0, 255)
