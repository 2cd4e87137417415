"""The operations that policies choose from: one operation and one argument per image.

Every operation is an affine map, a lookup table or a change to add (see `Operation`). Each image
passes through all three, with parameters that change nothing in the kinds it did not choose: so
the whole batch goes through together, whatever was chosen.

Arithmetic follows torchvision's on byte tensors, which truncates where Pillow rounds. To add an
operation, write its function, add its row to `OPERATIONS`, and name it in a policy.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from smallvit.augment.config import Interpolation
from smallvit.augment.geometry import affine
from smallvit.augment.randomness import written

Images = UInt8[Tensor, "B C H W"]
Argument = Float[Tensor, " B"]
Map = dict[str, Float[Tensor, " B"]]
Table = Float[Tensor, "B #C 256"]
Change = Float[Tensor, "B C H W"]


def shear_x(images: Images, slope: Argument) -> Map:
    """Moves each row along by `slope` times its distance from the top."""
    return {"xy": slope, "x0": slope * (images.shape[2] / 2)}


def shear_y(images: Images, slope: Argument) -> Map:
    """Moves each column down by `slope` times its distance from the left."""
    return {"yx": slope, "y0": slope * (images.shape[3] / 2)}


def translate_x(images: Images, pixels: Argument) -> Map:
    """Moves the image to the right."""
    return {"x0": -pixels}


def translate_y(images: Images, pixels: Argument) -> Map:
    """Moves the image down."""
    return {"y0": -pixels}


def rotate(images: Images, degrees: Argument) -> Map:
    """Turns the image anticlockwise about its centre."""
    turn = torch.deg2rad(degrees)
    cosine, sine = torch.cos(turn), torch.sin(turn)
    return {"xx": cosine, "xy": -sine, "yx": sine, "yy": cosine}


def _values(images: Images) -> Float[Tensor, "256"]:
    """The table that changes nothing."""
    return torch.arange(256, device=images.device, dtype=torch.float32)


def _grey(images: Images) -> Float[Tensor, "B 1 H W"]:
    """Luma of red, green and blue, cut to whole numbers."""
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    luma: Tensor = 0.2989 * red + 0.587 * green + 0.114 * blue
    return luma.floor()


def brightness(images: Images, factor: Argument) -> Table:
    """0 is black, 1 the image."""
    return _values(images) * factor[:, None, None]


def contrast(images: Images, factor: Argument) -> Table:
    """0 is the image's mean luma (without red, green and blue: its mean), 1 the image."""
    grey = _grey(images) if images.shape[1] == 3 else images.float()
    factor, mean = factor[:, None, None], grey.flatten(1).mean(1)[:, None, None]
    return _values(images) * factor + mean * (1 - factor)


def posterize(images: Images, bits: Argument) -> Table:
    """Keeps that many leading bits."""
    step = torch.exp2(8 - bits.clamp(0, 8))[:, None, None]
    return (_values(images) / step).floor() * step


def solarize(images: Images, threshold: Argument) -> Table:
    """Inverts the values from the threshold on."""
    table = _values(images)
    return torch.where(table >= threshold[:, None, None], 255 - table, table)


def solarize_add(images: Images, addition: Argument) -> Table:
    """Adds to the values of the darker half."""
    table = _values(images)
    return torch.where(table < 128, table + addition[:, None, None], table)


def invert(images: Images, _: Argument) -> Table:
    """The negative."""
    return (255 - _values(images)).expand(len(images), 1, -1)


def autocontrast(images: Images, _: Argument) -> Table:
    """Stretches each channel to the full range."""
    pixels = images.flatten(2).float()  # torch 2.15 compiles the least of bytes on CPUs wrongly
    low, high = pixels.amin(2, keepdim=True), pixels.amax(2, keepdim=True)
    scale = (high - low) * (1 / 255)
    stretched = (_values(images) - low) / torch.where(scale > 0, scale, 1)
    return torch.where(scale > 0, stretched, _values(images))


def equalize(images: Images, _: Argument) -> Table:
    """Spreads each channel's values evenly (Pillow's rule, which counts in whole steps)."""
    batch, channels = images.shape[:2]
    entries = _entries(images)
    counts = torch.zeros(batch * channels * 256, dtype=torch.int32, device=images.device)
    counts = counts.scatter_add(0, entries, torch.ones_like(counts[:1]).expand_as(entries))
    counts = counts.view(batch, channels, 256)
    below = counts.cumsum(2, dtype=torch.int32) - counts
    # All pixels but those of the brightest value are below that value.
    step = below.gather(2, images.flatten(2).amax(2, keepdim=True).long()) // 255
    table = (below + step // 2) // step.clamp(min=1)
    return torch.where(step > 0, table.float(), _values(images))


def saturation(images: Images, factor: Argument) -> Change:
    """0 makes grey; without three channels nothing changes."""
    if images.shape[1] != 3:
        return torch.zeros_like(images, dtype=torch.float32)
    return (_grey(images) - images) * (1 - factor[:, None, None, None])


def sharpness(images: Images, factor: Argument) -> Change:
    """0 blurs; the outermost pixels stay as they are."""
    x = images.float()
    if min(images.shape[2:]) < 3:
        return torch.zeros_like(x)
    rows = x[..., :-2] + x[..., 1:-1] + x[..., 2:]
    centre = x[..., 1:-1, 1:-1]
    blurred = (rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :] + 4 * centre) / 13
    return F.pad((blurred.round() - centre) * (1 - factor[:, None, None, None]), (1, 1, 1, 1))


class Operation(NamedTuple):
    """One operation.

    Attributes:
        kind: What `make` returns: a "map" is the entries of an affine map that differ from the
            identity, a "table" the new value of each byte, a "change" what to add to the pixels.
            What is "none" of these is not called.
        make: From images and one argument per image.
        neutral: With this argument a signed operation or a change leaves the image as it is.
        signed: Whether policies go from `neutral` in both directions.
        costly: Whether it is worth computing only for the images that chose it.
    """

    kind: Literal["none", "map", "table", "change"]
    make: Callable[[Tensor, Tensor], Any]
    neutral: float = 0.0
    signed: bool = False
    costly: bool = False


OPERATIONS: dict[str, Operation] = {
    "identity": Operation("none", lambda images, _: images),
    "shear_x": Operation("map", shear_x, signed=True),
    "shear_y": Operation("map", shear_y, signed=True),
    "translate_x": Operation("map", translate_x, signed=True),
    "translate_y": Operation("map", translate_y, signed=True),
    "rotate": Operation("map", rotate, signed=True),
    "brightness": Operation("table", brightness, neutral=1, signed=True),
    "contrast": Operation("table", contrast, neutral=1, signed=True),
    "posterize": Operation("table", posterize),
    "solarize": Operation("table", solarize),
    "solarize_add": Operation("table", solarize_add),
    "invert": Operation("table", invert),
    "autocontrast": Operation("table", autocontrast, costly=True),
    "equalize": Operation("table", equalize, costly=True),
    "saturation": Operation("change", saturation, neutral=1, signed=True, costly=True),
    "sharpness": Operation("change", sharpness, neutral=1, signed=True, costly=True),
}
#: Policies draw an operation as its number in the table.
NUMBER = {name: number for number, name in enumerate(OPERATIONS)}


def _of_kind(kind: str, among: Iterable[str] = OPERATIONS) -> list[str]:
    return [name for name, row in OPERATIONS.items() if row.kind == kind and name in among]


# Operations of a group cost little more together than alone.
_COSTLY = [name for name, row in OPERATIONS.items() if row.costly]
_GROUPS = (
    frozenset(_of_kind("map")),
    frozenset(_of_kind("table")) - set(_COSTLY),
    *(frozenset({name}) for name in _COSTLY),
)


def _entries(images: Images) -> Int64[Tensor, " pixels"]:
    """The index of each pixel's value in a list of all tables, one per channel of each image."""
    batch, channels = images.shape[:2]
    tables = torch.arange(batch * channels, device=images.device).view(batch, channels, 1)
    return (images.flatten(2) + 256 * tables).flatten()


def _look_up(images: Images, table: Float[Tensor, "B C 256"]) -> Images:
    """Replaces each value by its entry, cut to a byte."""
    values = written(table.clamp(0, 255).to(torch.uint8).flatten())
    return values.index_select(0, _entries(images)).view(images.shape)


def _matrix(
    images: Images, ops: Int64[Tensor, " B"], arguments: Argument, names: list[str]
) -> Float[Tensor, "B 2 3"]:
    """Each image's map; the identity for those that chose none."""
    one, zero = torch.ones_like(arguments), torch.zeros_like(arguments)
    entries = {"xx": one, "xy": zero, "x0": zero, "yx": zero, "yy": one, "y0": zero}
    for name in names:
        for entry, value in OPERATIONS[name].make(images, arguments).items():
            entries[entry] = torch.where(ops == NUMBER[name], value, entries[entry])
    return written(torch.stack(list(entries.values()), 1)).view(-1, 2, 3)


def _sheared(ops: Int64[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Which images are sheared."""
    return (ops == NUMBER["shear_x"]) | (ops == NUMBER["shear_y"])


def operate(
    images: Images,
    ops: Int64[Tensor, " B"],
    arguments: Argument,
    fill: UInt8[Tensor, " C"],
    *,
    among: frozenset[str] = frozenset(OPERATIONS),
    interpolation: Interpolation = "nearest",
    cubic: Bool[Tensor, " B"] | None = None,
) -> Images:
    """Applies its own operation to each image.

    Args:
        ops: Numbers in `OPERATIONS`.
        arguments: In the operation's own unit.
        fill: The colour that moves in from outside the frame.
        among: The operations that can occur; the others are not computed.
        interpolation: Of the affine maps; "shears" is bicubic for shears and nearest for others.
        cubic: With "random" interpolation: which images are interpolated bicubically.
    """
    x = images.float()
    if maps := _of_kind("map", among):
        cubic = _sheared(ops) if interpolation == "shears" else cubic
        matrix = _matrix(images, ops, arguments, maps)
        x = affine(images, matrix, fill, interpolation=interpolation, cubic=cubic)
    for name in _of_kind("change", among):
        operation = OPERATIONS[name]
        argument = torch.where(ops == NUMBER[name], arguments, operation.neutral)
        x = x + operation.make(images, argument)
    x = x.clamp(0, 255).to(torch.uint8)
    if tables := _of_kind("table", among):
        table = _values(images)
        for name in tables:
            chosen = (ops == NUMBER[name])[:, None, None]
            table = torch.where(chosen, OPERATIONS[name].make(images, arguments), table)
        x = _look_up(x, table.expand(*images.shape[:2], -1))
    return written(x)


def operate_by_groups(
    images: Images,
    ops: Int64[Tensor, " B"],
    arguments: Argument,
    fill: UInt8[Tensor, " C"],
    *,
    among: frozenset[str] = frozenset(OPERATIONS),
    interpolation: Interpolation = "nearest",
    cubic: Bool[Tensor, " B"] | None = None,
) -> Images:
    """`operate` for CPUs: each operation is computed only for the images that chose it.

    On a GPU, and in a compiled graph, finding out which these are costs more than it saves.
    """
    out = images.clone()
    everyone = torch.ones_like(ops, dtype=torch.bool)
    ways: dict[Interpolation, Tensor] = {interpolation: everyone}
    if interpolation == "random" and cubic is not None:
        ways = {"bilinear": ~cubic, "bicubic": cubic}
    if interpolation == "shears":
        ways = {"nearest": ~_sheared(ops), "bicubic": _sheared(ops)}
    for names in _GROUPS:
        chosen = torch.isin(ops, ops.new_tensor([NUMBER[name] for name in names]))
        for way, taken in (ways if names == _GROUPS[0] else {interpolation: everyone}).items():
            rows = (chosen & taken).nonzero()[:, 0]
            if among & names and len(rows):
                changed = operate(
                    images.index_select(0, rows),
                    ops[rows],
                    arguments[rows],
                    fill,
                    among=among & names,
                    interpolation=way,
                )
                out.index_copy_(0, rows, changed)
    return out
