"""Which operation each image gets: RandAugment, AutoAugment and TrivialAugment as tables.

A policy is a list of rows. An image draws a row and applies the row's operations in turn, each
with its own probability. The argument of an operation is base + reach · level; a signed operation's
is as often base − reach · level.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from smallvit.augment.config import AugmentConfig, Flavour
from smallvit.augment.operations import NUMBER, OPERATIONS
from smallvit.augment.randomness import normal, whole, written
from smallvit.sizes import Size


class Choice(NamedTuple):
    """One operation of a row.

    Attributes:
        op: Its name in `OPERATIONS`.
        probability: How often it is applied.
        base: The argument at level 0, counted from the operation's neutral one.
        reach: What one level adds to the argument.
        cut: Whether reach · level is cut to a whole number.
        one_sided: Whether a signed operation goes in its positive direction only.
    """

    op: str
    probability: float = 1.0
    base: float = 0.0
    reach: float = 0.0
    cut: bool = False
    one_sided: bool = False


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A table of choices.

    Attributes:
        rows: All equally likely, all of the same length.
        rounds: How many rows an image draws, with replacement.
        level: Mean of the level.
        level_std: Its standard deviation; levels are clipped to [0, level_max].
        level_max: The highest level.
    """

    rows: tuple[tuple[Choice, ...], ...]
    rounds: int = 1
    level: float = 1.0
    level_std: float = 0.0
    level_max: float = 10.0

    @property
    def among(self) -> tuple[frozenset[str], ...]:
        """For each step of the policy: the operations that can occur in it."""
        columns = zip(*self.rows, strict=True)
        return self.rounds * tuple(frozenset(c.op for c in column) for column in columns)

    @property
    def draws(self) -> int:
        """Uniform numbers that `draw_policy` takes for one image."""
        return self.rounds * (1 + 4 * len(self.rows[0]))


class PolicyTable(NamedTuple):
    """A policy's rows as tensors."""

    ops: Int64[Tensor, "rows columns"]
    probability: Float[Tensor, "rows columns"]
    base: Float[Tensor, "rows columns"]
    reach: Float[Tensor, "rows columns"]
    signed: Bool[Tensor, "rows columns"]
    cut: Bool[Tensor, "rows columns"]


def policy_table(policy: Policy) -> PolicyTable:
    """The table of a policy."""

    def cells(choice: Choice) -> tuple[float, ...]:
        op, probability, base, reach, cut, one_sided = choice
        operation = OPERATIONS[op]
        signed = operation.signed and not one_sided
        return NUMBER[op], probability, operation.neutral + base, reach, signed, cut

    rows = [[cells(choice) for choice in row] for row in policy.rows]
    dtypes = (torch.int64, *[torch.float32] * 3, *[torch.bool] * 2)
    columns = [
        torch.tensor([[cell[field] for cell in row] for row in rows], dtype=dtype)
        for field, dtype in enumerate(dtypes)
    ]
    return PolicyTable(*columns)


class Drawn(NamedTuple):
    """What each image passes through, in order."""

    ops: Int64[Tensor, "B L"]
    arguments: Float[Tensor, "B L"]
    cubic: Bool[Tensor, "B L"]


def draw_policy(policy: Policy, table: PolicyTable, uniforms: Float[Tensor, "B draws"]) -> Drawn:
    """Operations and arguments for each image; "identity" where an operation is not applied."""
    rounds, columns = policy.rounds, len(policy.rows[0])
    rows = whole(uniforms[:, :rounds], len(policy.rows))
    rest = uniforms[:, rounds:].reshape(-1, 4, rounds * columns)
    chance, level, sign, cubic = rest.unbind(1)
    choice = PolicyTable(*(column[rows].flatten(1) for column in table))
    level = (policy.level + policy.level_std * normal(level)).clamp(0, policy.level_max)
    offset = choice.reach * level
    offset = torch.where(choice.cut, offset.trunc(), offset)
    offset = torch.where(choice.signed & (sign < 0.5), -offset, offset)
    applied = chance < choice.probability
    return Drawn(
        written(torch.where(applied, choice.ops, NUMBER["identity"])),
        written(torch.where(applied, choice.base + offset, 0)),
        cubic < 0.5,
    )


def rand_augment(
    size: Size,
    *,
    magnitude: float = 9.0,
    magnitude_std: float = 0.5,
    probability: float = 0.5,
    layers: int = 2,
) -> Policy:
    """RandAugment as timm's `rand-m9-mstd0.5-inc1`: fifteen operations, stronger by level."""
    height, width = size
    choices = [
        Choice("autocontrast"),
        Choice("equalize"),
        Choice("invert"),
        Choice("rotate", reach=3),
        Choice("posterize", base=4, reach=-0.4, cut=True),
        Choice("solarize", base=256, reach=-25.6, cut=True),
        Choice("solarize_add", reach=11, cut=True),
        *(Choice(op, reach=0.09) for op in _FACTORS),
        Choice("shear_x", reach=0.03),
        Choice("shear_y", reach=0.03),
        Choice("translate_x", reach=0.045 * width),
        Choice("translate_y", reach=0.045 * height),
    ]
    return Policy(
        rows=tuple((choice._replace(probability=probability),) for choice in choices),
        rounds=layers,
        level=magnitude,
        level_std=magnitude_std,
    )


def trivial_augment(_: Size) -> Policy:
    """TrivialAugment Wide: one operation at one of 31 strengths, all equally likely."""
    bins = 31
    rows = []
    for strength in (k / (bins - 1) for k in range(bins)):
        rows += [
            Choice("identity"),
            Choice("shear_x", reach=0.99 * strength),
            Choice("shear_y", reach=0.99 * strength),
            Choice("translate_x", reach=32 * strength, cut=True),
            Choice("translate_y", reach=32 * strength, cut=True),
            Choice("rotate", reach=135 * strength),
            *(Choice(op, reach=0.99 * strength) for op in _FACTORS),
            Choice("posterize", base=8 - round(6 * strength)),
            Choice("solarize", base=255 * (1 - strength)),
            Choice("autocontrast"),
            Choice("equalize"),
        ]
    return Policy(rows=tuple((choice,) for choice in rows))


def auto_augment(table: str, size: Size, flavour: Flavour = "torchvision") -> Policy:
    """AutoAugment's learned policy for "cifar10", "svhn" or "imagenet": two operations in turn.

    The flavour "deepvoltaire" does not cut translations, which nearest pixels then round, turns
    anticlockwise only and solarizes from 256.
    """
    theirs = flavour == "deepvoltaire"
    height, width = size
    reaches = {
        **dict.fromkeys(_FACTORS, 0.9),
        **dict.fromkeys(("shear_x", "shear_y"), 0.3),
        "rotate": 30,
        "translate_x": 150 / 331 * width,
        "translate_y": 150 / 331 * height,
    }

    def choice(op: str, probability: float, strength: int) -> Choice:
        s = strength / 9
        bases = {"posterize": 8 - round(4 * s), "solarize": (256 if theirs else 255) * (1 - s)}
        cut = op.startswith("translate") and not theirs
        one_sided = theirs and op == "rotate"
        return Choice(op, probability, bases.get(op, 0), reaches.get(op, 0) * s, cut, one_sided)

    rows = (line.split() for line in _AUTO_AUGMENT[table].strip().splitlines())
    return Policy(
        rows=tuple(
            (choice(a, float(p), int(s)), choice(b, float(q), int(t))) for a, p, s, b, q, t in rows
        )
    )


def make_policy(config: AugmentConfig, size: Size) -> Policy | None:
    """The policy that a config names, for images of that height and width."""
    if config.policy == "none":
        return None
    if config.policy == "rand":
        return rand_augment(
            size,
            magnitude=config.magnitude,
            magnitude_std=config.magnitude_std,
            layers=config.layers,
        )
    if config.policy == "trivial":
        return trivial_augment(size)
    return auto_augment(config.policy.removeprefix("auto_"), size, config.flavour)


_FACTORS = ("brightness", "contrast", "saturation", "sharpness")

# Each line: two operations, each with its probability and its strength from 0 to 9.
_AUTO_AUGMENT = {
    "cifar10": """
        invert 0.1 0  contrast 0.2 6
        rotate 0.7 2  translate_x 0.3 9
        sharpness 0.8 1  sharpness 0.9 3
        shear_y 0.5 8  translate_y 0.7 9
        autocontrast 0.5 0  equalize 0.9 0
        shear_y 0.2 7  posterize 0.3 7
        saturation 0.4 3  brightness 0.6 7
        sharpness 0.3 9  brightness 0.7 9
        equalize 0.6 0  equalize 0.5 0
        contrast 0.6 7  sharpness 0.6 5
        saturation 0.7 7  translate_x 0.5 8
        equalize 0.3 0  autocontrast 0.4 0
        translate_y 0.4 3  sharpness 0.2 6
        brightness 0.9 6  saturation 0.2 8
        solarize 0.5 2  invert 0.0 0
        equalize 0.2 0  autocontrast 0.6 0
        equalize 0.2 0  equalize 0.6 0
        saturation 0.9 9  equalize 0.6 0
        autocontrast 0.8 0  solarize 0.2 8
        brightness 0.1 3  saturation 0.7 0
        solarize 0.4 5  autocontrast 0.9 0
        translate_y 0.9 9  translate_y 0.7 9
        autocontrast 0.9 0  solarize 0.8 3
        equalize 0.8 0  invert 0.1 0
        translate_y 0.7 9  autocontrast 0.9 0
    """,
    "svhn": """
        shear_x 0.9 4  invert 0.2 0
        shear_y 0.9 8  invert 0.7 0
        equalize 0.6 0  solarize 0.6 6
        invert 0.9 0  equalize 0.6 0
        equalize 0.6 0  rotate 0.9 3
        shear_x 0.9 4  autocontrast 0.8 0
        shear_y 0.9 8  invert 0.4 0
        shear_y 0.9 5  solarize 0.2 6
        invert 0.9 0  autocontrast 0.8 0
        equalize 0.6 0  rotate 0.9 3
        shear_x 0.9 4  solarize 0.3 3
        shear_y 0.8 8  invert 0.7 0
        equalize 0.9 0  translate_y 0.6 6
        invert 0.9 0  equalize 0.6 0
        contrast 0.3 3  rotate 0.8 4
        invert 0.8 0  translate_y 0.0 2
        shear_y 0.7 6  solarize 0.4 8
        invert 0.6 0  rotate 0.8 4
        shear_y 0.3 7  translate_x 0.9 3
        shear_x 0.1 6  invert 0.6 0
        solarize 0.7 2  translate_y 0.6 7
        shear_y 0.8 4  invert 0.8 0
        shear_x 0.7 9  translate_y 0.8 3
        shear_y 0.8 5  autocontrast 0.7 0
        shear_x 0.7 2  invert 0.1 0
    """,
    "imagenet": """
        posterize 0.4 8  rotate 0.6 9
        solarize 0.6 5  autocontrast 0.6 0
        equalize 0.8 0  equalize 0.6 0
        posterize 0.6 7  posterize 0.6 6
        equalize 0.4 0  solarize 0.2 4
        equalize 0.4 0  rotate 0.8 8
        solarize 0.6 3  equalize 0.6 0
        posterize 0.8 5  equalize 1.0 0
        rotate 0.2 3  solarize 0.6 8
        equalize 0.6 0  posterize 0.4 6
        rotate 0.8 8  saturation 0.4 0
        rotate 0.4 9  equalize 0.6 0
        equalize 0.0 0  equalize 0.8 0
        invert 0.6 0  equalize 1.0 0
        saturation 0.6 4  contrast 1.0 8
        rotate 0.8 8  saturation 1.0 2
        saturation 0.8 8  solarize 0.8 7
        sharpness 0.4 7  invert 0.6 0
        shear_x 0.6 5  equalize 1.0 0
        saturation 0.4 0  equalize 0.6 0
        equalize 0.4 0  solarize 0.2 4
        solarize 0.6 5  autocontrast 0.6 0
        invert 0.6 0  equalize 1.0 0
        saturation 0.6 4  contrast 1.0 8
        equalize 0.8 0  equalize 0.6 0
    """,
}
