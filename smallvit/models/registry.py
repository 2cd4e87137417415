"""Every model by name: one table, `create_model` and `list_models`."""

import difflib
import re
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Any

import torch

from smallvit.models import cait, cvt, pit, swin, t2t, vit
from smallvit.models.base import Backbone, Variant
from smallvit.sizes import Size

MODELS: dict[str, Variant] = {
    **vit.VARIANTS,
    **cait.VARIANTS,
    **pit.VARIANTS,
    **swin.VARIANTS,
    **t2t.VARIANTS,
    **cvt.VARIANTS,
}

ADDONS: dict[str, dict[str, Any]] = {
    "spt": {"spt": True},
    "lsa": {"temperature": True, "masked": True},
}
_SUFFIXES = ("", "+spt", "+lsa", "+spt+lsa")


def parse_name(name: str) -> tuple[Variant, dict[str, Any]]:
    """The row a name stands for, and what its add-ons switch on; refuses what it does not know."""
    base, *addons = name.split("+")
    if base not in MODELS:
        near = difflib.get_close_matches(base, MODELS, n=3, cutoff=0.4)
        hint = f"the nearest are {', '.join(near)}" if near else "list_models() lists all"
        raise ValueError(f"there is no model {base!r}; {hint}")
    if name.removeprefix(base) not in _SUFFIXES:
        raise ValueError(
            f"{name!r}: add-ons are {', '.join(_SUFFIXES[1:])}, in this order and no others"
        )
    return MODELS[base], {key: value for addon in addons for key, value in ADDONS[addon].items()}


def create_model(
    name: str,
    *,
    num_classes: int,
    image_size: int | Size,
    in_channels: int = 3,
    **options: Any,
) -> Backbone:
    """Builds a model by name.

    Args:
        name: A name of `list_models()`, with `+spt`, `+lsa` or `+spt+lsa` behind it if wanted.
        num_classes: Width of the head; 0 leaves it out.
        image_size: One number, or (height, width).
        in_channels: Channels of the images.
        options: Any field of the family's config, such as `drop_path=0.2`, `position="sine"` or
            `masked=False`.

    Raises:
        ValueError: A name, option or value is not known, or the size does not divide.
    """
    variant, addons = parse_name(name)
    known = [field.name for field in fields(variant.model.Config)]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(known)}"
            raise ValueError(f"{name} has no option {option!r}; {hint}")
    config = variant.model.Config(
        image_size=image_size,  # type: ignore[arg-type]  # a single number becomes a square
        num_classes=num_classes,
        in_channels=in_channels,
        **{**variant.options, **addons, **options},
    )
    model = variant.model(config)
    model.name = name
    return model


def count_parameters(name: str, *, num_classes: int) -> int:
    """How many parameters a model has at its paper's size, fixed tables counted; allocates none."""
    variant, _ = parse_name(name)
    with torch.device("meta"):
        model = create_model(name, num_classes=num_classes, image_size=variant.image_size)
    return sum(parameter.numel() for parameter in model.parameters())


def _natural(name: str) -> list[tuple[str, int]]:
    """Sorts cct_2 before cct_14."""
    return [(text, int(number or 0)) for text, number in re.findall(r"([^\d]+)(\d*)", name)]


def list_models(pattern: str = "*") -> list[str]:
    """Names that match a pattern such as "cct*"; with a "+" in it, add-ons are listed too."""
    names = sorted(MODELS, key=_natural)
    if "+" in pattern:
        names = [
            base + suffix
            for base in names
            for suffix in _SUFFIXES
            if MODELS[base].model.local or "lsa" not in suffix
        ]
    return [name for name in names if fnmatchcase(name, pattern)]
