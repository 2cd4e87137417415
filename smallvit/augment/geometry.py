"""Where pixels come from: flip, padded crop, resized crop and affine maps, image by image."""

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from smallvit.augment.boxes import Box, draw_box
from smallvit.augment.config import Interpolation, Range
from smallvit.augment.randomness import written
from smallvit.sizes import Size

_FOUR = (-1, 0, 1, 2)
_TAPS = {"nearest": (0,), "bilinear": (0, 1)}
_TAPS |= dict.fromkeys(("bicubic", "random", "shears"), _FOUR)


def _mirror(lines: Tensor, flipped: Bool[Tensor, " B"]) -> Tensor:
    """Reverses axis 1 of some images."""
    return torch.where(flipped.view(-1, *[1] * (lines.ndim - 1)), lines.flip(1), lines)


def crop(
    images: UInt8[Tensor, "B C H W"],
    top: Int64[Tensor, " B"],
    left: Int64[Tensor, " B"],
    size: Size,
    *,
    mirrored: Bool[Tensor, " B"],
    upturned: Bool[Tensor, " B"],
) -> UInt8[Tensor, "B C h w"]:
    """Cuts a window out of each image, black outside the frame, and flips it.

    Args:
        top: First row of the window; negative in the padding above the image.
        left: First column of the window.
        size: Height and width of the windows.
        mirrored: Whether left and right are swapped.
        upturned: Whether top and bottom are swapped.
    """
    channels, height, width = images.shape[1:]
    rows = _mirror(top[:, None] + torch.arange(size[0], device=top.device), upturned)
    columns = _mirror(left[:, None] + torch.arange(size[1], device=top.device), mirrored)
    index = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    high, wide = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    within = high[:, :, None] & wide[:, None]
    picked = images.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, channels, -1))
    return written(torch.where(within[:, None], picked.view(-1, channels, *size), 0))


def draw_resized_crop(
    uniforms: Float[Tensor, "B draws"], size: Size, scale: Range, aspect: Range
) -> Box:
    """The window of a random resized crop, as torchvision and timm draw it.

    Where ten attempts fail it is the largest centred one whose shape is allowed.
    """
    height, width = size
    box = draw_box(uniforms, size, scale, aspect, smaller=False)
    h = min(height, round(width / aspect[0]))
    w = min(width, round(height * aspect[1]))
    failed = box.height == 0
    largest = ((height - h) // 2, (width - w) // 2, h, w)
    sides = [torch.where(failed, side, drawn) for side, drawn in zip(largest, box, strict=True)]
    return Box(*written(torch.stack(sides)))


def _resampling(
    start: Int64[Tensor, " B"],
    length: Int64[Tensor, " B"],
    old: int,
    new: int,
    cubic: Bool[Tensor, " B"],
) -> Float[Tensor, "B new old"]:
    """Weights that stretch `length` of `old` pixels to `new`, antialiased where they shrink."""
    device = start.device
    scale = length[:, None] / new
    centre = start[:, None] + scale * (torch.arange(new, device=device) + 0.5)
    pixel = torch.arange(old, device=device)
    distance = (pixel + 0.5 - centre[:, :, None]).abs() / scale[:, :, None].clamp(min=1)
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    curve = torch.where(distance < 1, near, far * (distance < 2))
    kernel = torch.lerp((1 - distance).clamp(min=0), curve, cubic[:, None, None].float())
    window = (pixel >= start[:, None]) & (pixel < (start + length)[:, None])
    kernel = kernel * window[:, None]
    return written(kernel / kernel.sum(2, keepdim=True))


def resized_crop(
    images: UInt8[Tensor, "B C H W"],
    box: Box,
    size: Size,
    *,
    cubic: Bool[Tensor, " B"],
    mirrored: Bool[Tensor, " B"],
    upturned: Bool[Tensor, " B"],
) -> UInt8[Tensor, "B C h w"]:
    """Cuts a rectangle out of each image, resizes it (antialiased) and flips it.

    Two small matrices per image do all of it; between them the values are rounded to bytes, as in
    torchvision and Pillow.

    Args:
        cubic: Whether to interpolate bicubically, else bilinearly.
        mirrored: Whether left and right are swapped.
        upturned: Whether top and bottom are swapped.
    """
    channels, height, width = images.shape[1:]
    down = _mirror(_resampling(box.top, box.height, height, size[0], cubic), upturned)
    along = _mirror(_resampling(box.left, box.width, width, size[1], cubic), mirrored)
    # Weights in bf16 would be wrong by more than a grey level.
    with torch.autocast(images.device.type, enabled=False):
        x = torch.bmm(along, images.flatten(1, 2).float().mT).round_().clamp_(0, 255)
        x = torch.bmm(x.view(-1, size[1] * channels, height), down.mT).round_().clamp_(0, 255)
    return written(x.to(torch.uint8).view(-1, size[1], channels, size[0]).permute(0, 2, 3, 1))


def _weights(
    distance: Float[Tensor, "B H W"], interpolation: Interpolation, cubic: Tensor | None
) -> list[Tensor]:
    """The weight of each tap, at a distance in [0, 1) from tap 0 towards tap 1."""
    d = distance
    if interpolation == "nearest":
        return [torch.ones_like(d)]
    linear = [1 - d, d]
    if interpolation == "bilinear":
        return linear
    # Pillow's cubic (a = −1) is sharper than that of resizing (a = −½).
    curve = [((2 - d) * d - 1) * d, (d - 2) * d * d + 1, ((1 - d) * d + 1) * d, (d - 1) * d * d]
    if interpolation == "bicubic" or cubic is None:
        return curve
    # Nearest, counted from the pixel's centre: tap 0 up to half of the way, then tap 1.
    step = [(d < 0.5).to(d.dtype), (d >= 0.5).to(d.dtype)]
    plain = step if interpolation == "shears" else linear
    flat = [torch.zeros_like(d), *plain, torch.zeros_like(d)]
    chosen = cubic[:, None, None].float()
    return [torch.lerp(f, c, chosen) for f, c in zip(flat, curve, strict=True)]


def _line_taps(
    position: Float[Tensor, "B H W"], side: int, interpolation: Interpolation, cubic: Tensor | None
) -> list[tuple[Tensor, Tensor]]:
    """The lines to read around a position on an axis, and their weights; outside, the edge."""
    position = position if interpolation == "nearest" else position - 0.5
    first = position.floor()
    weights = _weights(position - first, interpolation, cubic)
    taps = zip(_TAPS[interpolation], weights, strict=True)
    return [((first + tap).clamp(0, side - 1), weight) for tap, weight in taps]


def affine(
    images: UInt8[Tensor, "B C H W"],
    matrix: Float[Tensor, "B 2 3"],
    fill: UInt8[Tensor, " C"],
    *,
    interpolation: Interpolation = "nearest",
    cubic: Bool[Tensor, " B"] | None = None,
) -> Float[Tensor, "B C H W"]:
    """Moves each image by its own map; returns whole numbers, with bicubic ones beyond 0 to 255.

    As Pillow does it: the edge of an image is hard, and bicubic numbers are cut, not rounded.

    Args:
        matrix: The map from an output pixel to its source, both as (x, y) from the centre.
        fill: The colour that moves in.
        interpolation: "random" leaves the choice of bilinear or bicubic to `cubic`, "shears" that
            of nearest or bicubic.
        cubic: Which images are interpolated bicubically.
    """
    channels, height, width = images.shape[1:]
    x = torch.arange(width, device=images.device) + (0.5 - width / 2)
    y = torch.arange(height, device=images.device)[:, None] + (0.5 - height / 2)
    xx, xy, x0, yx, yy, y0 = matrix.flatten(1)[:, :, None, None].unbind(1)
    down, along = yx * x + (yy * y + (y0 + height / 2)), xx * x + (xy * y + (x0 + width / 2))
    rows = _line_taps(down, height, interpolation, cubic)
    columns = _line_taps(along, width, interpolation, cubic)
    source = images.flatten(2).float()
    total = torch.zeros_like(images, dtype=torch.float32)
    for row, share in rows:
        for column, part in columns:
            index = (row * width + column).long().flatten(1)[:, None].expand(-1, channels, -1)
            total.addcmul_(source.gather(2, index).view_as(images), (share * part)[:, None])
    cut: Tensor | bool = interpolation not in ("nearest", "bilinear")
    if cubic is not None and interpolation in ("random", "shears"):
        cut = cubic[:, None, None, None]
    # Cut a little above, so that what is whole but for float32's rounding stays.
    total.add_(0.5 - 0.499 * cut).floor_()
    inside = (down >= 0) & (down < height) & (along >= 0) & (along < width)
    return torch.where(inside[:, None], total, fill[:, None, None])
