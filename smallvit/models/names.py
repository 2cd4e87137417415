"""Names of models: the one grammar of add-ons, and the table of all variants.

A name is `vit_9_p4`, a baseline's, or `timm/` and timm's own name; then come its add-ons, `+spt`,
`+lsa` or `+spt+lsa`, in this order.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from smallvit.arguments import check, checked
from smallvit.models import cait, cvt, hct, pit, swin, t2t, vit
from smallvit.models.base import Variant
from smallvit.models.baselines import BASELINES
from smallvit.text import nearest

#: Adding a family takes one line here.
MODELS: dict[str, Variant] = {
    **vit.VARIANTS,
    **cait.VARIANTS,
    **pit.VARIANTS,
    **swin.VARIANTS,
    **t2t.VARIANTS,
    **cvt.VARIANTS,
    **hct.VARIANTS,
}
#: The options that an add-on of one of our models stands for.
ADDONS: dict[str, dict[str, Any]] = {
    "spt": {"spt": True},
    "lsa": {"temperature": True, "masked": True},
}
_SUFFIXES = ("", "+spt", "+lsa", "+spt+lsa")
_TIMM = "timm/"


class Name(NamedTuple):
    """A name in its parts; `str` joins them.

    Attributes:
        base: The name without add-ons; empty where only add-ons are named.
        addons: Keys of `ADDONS`, in their order.
    """

    base: str
    addons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "+".join([self.base, *self.addons])

    @property
    def ours(self) -> bool:
        """Whether it is in `list_models()`."""
        return self.base in MODELS

    @property
    def timm(self) -> str:
        """The name that timm knows a `timm/` model by, with its tag; empty for others."""
        return self.base.removeprefix(_TIMM) if self.base.startswith(_TIMM) else ""

    @property
    def options(self) -> dict[str, Any]:
        """The options that its add-ons stand for."""
        return {key: value for addon in self.addons for key, value in ADDONS[addon].items()}

    def plus(self, addons: Iterable[str]) -> "Name":
        """With further add-ons."""
        both = {*self.addons, *addons}
        return Name(self.base, tuple(addon for addon in ADDONS if addon in both))


def parse_name(name: str) -> Name:
    """A name's parts; whether there is such a model is for `check_name` to say.

    Raises:
        ValueError: The add-ons are unknown or in another order.
    """
    check("name", name, str)
    base, *addons = name.split("+")
    if name.removeprefix(base) not in _SUFFIXES:
        raise ValueError(
            f"{name!r}: add-ons are {', '.join(_SUFFIXES[1:])}, in this order and no others"
        )
    return Name(base, tuple(addons))


def check_name(name: str) -> Name:
    """The parts of a name that `make_model` can build.

    Raises:
        ValueError: There is no such model; the message has the nearest name.
    """
    parts = parse_name(name)
    if parts.ours or (parts.base in BASELINES and not parts.addons):
        return parts
    if parts.timm:
        check_timm(parts.timm)
        return parts
    if parts.base in BASELINES:
        raise ValueError(f"{name!r}: add-ons are for transformers, and {parts.base} is a CNN")
    if not parts.base and parts.addons:
        raise ValueError(f"{name!r} is added to a model: name it too, as in vit_9_p4{name}")
    near = nearest(parts.base, [*MODELS, *BASELINES]) or ";"
    raise ValueError(
        f"there is no model {name!r}{near} `smallvit models` lists ours, and timm's models are "
        "written timm/NAME"
    )


def check_timm(name: str) -> None:
    """Refuses a name that timm does not know.

    Raises:
        ValueError: There is no such model; the message has the nearest name.
    """
    import timm

    if not timm.is_model(name):
        near = nearest(name.partition(".")[0], timm.list_models()) or ";"
        raise ValueError(f"timm has no model {name!r}{near} timm.list_models() lists all")


def find_variant(name: str) -> Variant:
    """The row of one of our models.

    Raises:
        ValueError: There is no such model; the message has the nearest name.
    """
    parts = parse_name(name)
    if not parts.ours:
        near = nearest(parts.base, MODELS) or ";"
        raise ValueError(f"there is no model {parts.base!r}{near} list_models() lists all")
    return MODELS[parts.base]


@checked
def list_models(pattern: str = "*") -> list[str]:
    """Names that match a pattern such as "cct*"; with a "+" in it, add-ons are listed too."""
    names = sorted(MODELS, key=_natural)
    if "+" in pattern:
        names = [
            base + suffix
            for base in names
            for suffix in _SUFFIXES
            if MODELS[base].model.takes_lsa or "lsa" not in suffix
        ]
    return [name for name in names if fnmatchcase(name, pattern)]


def _natural(name: str) -> list[tuple[str, int]]:
    """Sorts cct_2 before cct_14."""
    return [(text, int(number or 0)) for text, number in re.findall(r"([^\d]+)(\d*)", name)]
