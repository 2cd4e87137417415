"""The sixteen operations policies choose from, one choice and one argument an image.

Every operation is one of three kinds: an affine map, a lookup table, or something to add. A
image passes through all three, with parameters that change nothing in the kinds it did not
choose: so the whole batch goes through together, whatever was chosen, and nothing is selected.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from smallvit.augment import colour
from smallvit.augment.config import Interpolation
from smallvit.augment.geometry import affine
from smallvit.augment.memory import written

_MAPS = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
_TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": colour.brightness,
    "contrast": colour.contrast,
    "posterize": colour.posterize,
    "solarize": colour.solarize,
    "solarize_add": colour.solarize_add,
    "invert": colour.invert,
    "autocontrast": colour.autocontrast,
    "equalize": colour.equalize,
}

_CHANGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "saturation": colour.saturation,
    "sharpness": colour.sharpness,
}

#: Their names; an operation is drawn as its place in this list. Arguments: the slope of a shear,
#: pixels of translation (right, down), degrees of rotation (anticlockwise), bits kept by
#: posterize, the threshold of solarize, the addition of solarize_add, and factors for
#: brightness, contrast, saturation and sharpness, where 1 changes nothing.
OPERATIONS = ("identity", *_MAPS, *_TABLES, *_CHANGES)
NUMBER = {name: number for number, name in enumerate(OPERATIONS)}

# What costs little more together than alone.
_COSTLY = ("autocontrast", "equalize", *_CHANGES)
_GROUPS = (
    frozenset(_MAPS),
    frozenset(_TABLES) - set(_COSTLY),
    *(frozenset({name}) for name in _COSTLY),
)


def _matrix(
    ops: Int64[Tensor, " B"], arguments: Float[Tensor, " B"], size: tuple[int, int]
) -> Float[Tensor, "B 2 3"]:
    """Each image's map; shears keep the top left corner, rotations the centre."""
    height, width = size
    along, down, right, low, degrees = (_argument(name, ops, arguments, 0.0) for name in _MAPS)
    turn = torch.deg2rad(degrees)
    cosine, sine = torch.cos(turn), torch.sin(turn)
    right, low = along * (height / 2) - right, down * (width / 2) - low
    rows = [cosine, along - sine, right, down + sine, cosine, low]
    return written(torch.stack(rows, 1)).view(-1, 2, 3)


def _argument(
    name: str, ops: Int64[Tensor, " B"], arguments: Float[Tensor, " B"], nothing: float
) -> Float[Tensor, " B"]:
    """The arguments of those who chose this operation, and one that does nothing for the rest."""
    return torch.where(ops == NUMBER[name], arguments, nothing)


def operate(
    images: UInt8[Tensor, "B C H W"],
    ops: Int64[Tensor, " B"],
    arguments: Float[Tensor, " B"],
    fill: UInt8[Tensor, " C"],
    *,
    among: frozenset[str] = frozenset(OPERATIONS),
    interpolation: Interpolation = "nearest",
    cubic: Bool[Tensor, " B"] | None = None,
) -> UInt8[Tensor, "B C H W"]:
    """Applies to each image its own operation.

    Args:
        ops: Places in `OPERATIONS`.
        arguments: In the operation's own unit.
        fill: The colour that moves in from outside the frame.
        among: The operations that can occur; what is left out is not computed.
        interpolation: Of the affine maps.
        cubic: With "random" interpolation: who gets bicubic.
    """
    x = images.float()
    if among & set(_MAPS):
        matrix = _matrix(ops, arguments, (images.shape[2], images.shape[3]))
        x = affine(images, matrix, fill, interpolation=interpolation, cubic=cubic)
    for name, change in _CHANGES.items():
        if name in among:
            x = x + change(images, _argument(name, ops, arguments, 1.0))
    x = colour.to_bytes(x)
    if among & set(_TABLES):
        table = colour.values(images)
        for name, make in _TABLES.items():
            if name in among:
                chosen = (ops == NUMBER[name])[:, None, None]
                table = torch.where(chosen, make(images, arguments), table)
        x = colour.look_up(x, table.expand(*images.shape[:2], -1))
    return written(x)


def operate_by_groups(
    images: UInt8[Tensor, "B C H W"],
    ops: Int64[Tensor, " B"],
    arguments: Float[Tensor, " B"],
    fill: UInt8[Tensor, " C"],
    *,
    among: frozenset[str] = frozenset(OPERATIONS),
    interpolation: Interpolation = "nearest",
    cubic: Bool[Tensor, " B"] | None = None,
) -> UInt8[Tensor, "B C H W"]:
    """The same, for processors: each operation is computed only for those who chose it.

    On a GPU, and in a compiled graph, asking who that is costs more than it saves.
    """
    out = images.clone()
    everyone = torch.ones_like(ops, dtype=torch.bool)
    ways: dict[Interpolation, Tensor] = {interpolation: everyone}
    if interpolation == "random" and cubic is not None:
        ways = {"bilinear": ~cubic, "bicubic": cubic}
    still: dict[Interpolation, Tensor] = {"nearest": everyone}
    for names in _GROUPS:
        chosen = torch.isin(ops, ops.new_tensor([NUMBER[name] for name in names]))
        for way, taken in (ways if names & set(_MAPS) else still).items():
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
