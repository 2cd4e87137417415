"""What pixels become: lookup tables, saturation, hue and sharpness, image by image.

Most colour operations on bytes are a table of 256 entries: those here return it, and `look_up`
applies it. Saturation and sharpness return what they add to an image. Arithmetic follows
torchvision's on byte tensors, which cuts to whole numbers where Pillow rounds.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from smallvit.augment.memory import written

Images = UInt8[Tensor, "B C H W"]
Argument = Float[Tensor, " B"]
Table = Float[Tensor, "B #C 256"]


def to_bytes(images: Float[Tensor, "B C H W"]) -> Images:
    """Cuts to bytes."""
    return images.clamp(0, 255).to(torch.uint8)


def _places(images: Images) -> Int64[Tensor, " pixels"]:
    """Each value's place in a list of one table a channel, image after image."""
    batch, channels = images.shape[:2]
    tables = torch.arange(batch * channels, device=images.device).view(batch, channels, 1)
    return (images.flatten(2) + 256 * tables).flatten()


def look_up(images: Images, table: Float[Tensor, "B C 256"]) -> Images:
    """Replaces each value by its entry, cut to a byte."""
    entries = written(table.clamp(0, 255).to(torch.uint8).flatten())
    return entries.index_select(0, _places(images)).view(images.shape)


def values(images: Images) -> Float[Tensor, "256"]:
    """The table that changes nothing."""
    return torch.arange(256, device=images.device, dtype=torch.float32)


def _grey(images: Images) -> Float[Tensor, "B 1 H W"]:
    """Luma of red, green and blue, cut to whole numbers."""
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    luma: Tensor = 0.2989 * red + 0.587 * green + 0.114 * blue
    return luma.floor()


def brightness(images: Images, factor: Argument) -> Table:
    """0 is black, 1 the image."""
    return values(images) * factor[:, None, None]


def contrast(images: Images, factor: Argument) -> Table:
    """0 is the image's mean luma (without red, green and blue: its mean), 1 the image."""
    grey = _grey(images) if images.shape[1] == 3 else images.float()
    factor, mean = factor[:, None, None], grey.flatten(1).mean(1)[:, None, None]
    return values(images) * factor + mean * (1 - factor)


def posterize(images: Images, bits: Argument) -> Table:
    """Keeps that many leading bits."""
    step = torch.exp2(8 - bits.clamp(0, 8))[:, None, None]
    return (values(images) / step).floor() * step


def solarize(images: Images, threshold: Argument) -> Table:
    """Inverts the values from the threshold on."""
    table = values(images)
    return torch.where(table >= threshold[:, None, None], 255 - table, table)


def solarize_add(images: Images, addition: Argument) -> Table:
    """Adds to the values of the darker half."""
    table = values(images)
    return torch.where(table < 128, table + addition[:, None, None], table)


def invert(images: Images, _: Argument) -> Table:
    """The negative."""
    return (255 - values(images)).expand(len(images), 1, -1)


def autocontrast(images: Images, _: Argument) -> Table:
    """Stretches each channel to the full range."""
    pixels = images.flatten(2).float()  # torch 2.15 compiles the least of bytes on CPUs wrongly
    low, high = pixels.amin(2, keepdim=True), pixels.amax(2, keepdim=True)
    scale = (high - low) * (1 / 255)
    stretched = (values(images) - low) / torch.where(scale > 0, scale, 1)
    return torch.where(scale > 0, stretched, values(images))


def equalize(images: Images, _: Argument) -> Table:
    """Spreads each channel's values evenly (Pillow's rule, which counts in whole steps)."""
    batch, channels = images.shape[:2]
    places = _places(images)
    counts = torch.zeros(batch * channels * 256, dtype=torch.int32, device=images.device)
    counts = counts.scatter_add(0, places, torch.ones_like(counts[:1]).expand_as(places))
    counts = counts.view(batch, channels, 256)
    below = counts.cumsum(2, dtype=torch.int32) - counts
    # All but the pixels of the brightest value, below which every other one lies.
    step = below.gather(2, images.flatten(2).amax(2, keepdim=True).long()) // 255
    table = (below + step // 2) // step.clamp(min=1)
    return torch.where(step > 0, table.float(), values(images))


def saturation(images: Images, factor: Argument) -> Float[Tensor, "B C H W"]:
    """What to add; 0 makes grey, 1 changes nothing, nor does any factor without three channels."""
    if images.shape[1] != 3:
        return torch.zeros_like(images, dtype=torch.float32)
    return (_grey(images) - images) * (1 - factor[:, None, None, None])


def shift_hue(images: Images, turn: Argument) -> Images:
    """Turns the colour wheel by a fraction of it; images without colour stay as they are."""
    if images.shape[1] != 3:
        return images
    red, green, blue = (images / 255).unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    divisor = torch.where(chroma > 0, chroma, 1)
    sector = torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    sector = torch.where(value == red, (green - blue) / divisor, sector)
    sector = sector + 6 * turn[:, None, None]
    # Each channel is the value, less the chroma outside its own third of the wheel.
    places = [(offset + sector) % 6 for offset in (5, 3, 1)]
    out = [value - chroma * torch.minimum(p, 4 - p).clamp(0, 1) for p in places]
    return (torch.stack(out, 1) * 255.999).to(torch.uint8)


def sharpness(images: Images, factor: Argument) -> Float[Tensor, "B C H W"]:
    """What to add; 0 blurs, 1 changes nothing; the outermost pixels are left alone."""
    x = images.float()
    if min(images.shape[2:]) < 3:
        return torch.zeros_like(x)
    rows = x[..., :-2] + x[..., 1:-1] + x[..., 2:]
    centre = x[..., 1:-1, 1:-1]
    blurred = (rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :] + 4 * centre) / 13
    return F.pad((blurred.round() - centre) * (1 - factor[:, None, None, None]), (1, 1, 1, 1))


def normalise(
    images: Images, mean: Float[Tensor, " C"], std: Float[Tensor, " C"]
) -> Float[Tensor, "B C H W"]:
    """Bytes to numbers of mean 0 and standard deviation 1, given both on a scale of 0 to 1."""
    mean, std = mean[:, None, None], std[:, None, None]
    return images.float().mul_(1 / (255 * std)).sub_(mean / std)
