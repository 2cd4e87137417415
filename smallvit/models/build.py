"""From any name to a model: ours, a baseline's, or timm's."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from torch import nn

from smallvit.models.base import Backbone, Size, as_size
from smallvit.models.baselines import BASELINES, make_baseline, stem_options
from smallvit.models.registry import MODELS, create_model, parse_name

PREFIX = "timm/"
ADDONS = ("spt", "lsa")


def split_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Timm's name and our add-ons from `timm/NAME+spt+lsa`."""
    base, *addons = name.removeprefix(PREFIX).split("+")
    if addons != [addon for addon in ADDONS if addon in addons]:
        raise ValueError(f"{name!r}: add-ons are +spt, +lsa, +spt+lsa, in this order and no others")
    return base, tuple(addons)


def join_name(base: str, addons: tuple[str, ...]) -> str:
    """`timm/NAME+spt+lsa` from its parts."""
    return "+".join([PREFIX + base, *(addon for addon in ADDONS if addon in addons)])


def known(base: str) -> str:
    """The name, if timm knows it.

    Raises:
        ValueError: It does not; the sentence has the nearest names.
    """
    import timm

    if not timm.is_model(base):
        plain = base.partition(".")[0]
        near = difflib.get_close_matches(plain, timm.list_models(), n=3, cutoff=0.5)
        hint = f"the nearest are {', '.join(near)}" if near else "timm.list_models() lists all"
        raise ValueError(f"timm has no model {base!r}; {hint}")
    return base


def make_timm(
    name: str,
    *,
    num_classes: int,
    image_size: Size,
    in_channels: int,
    options: Mapping[str, Any],
) -> nn.Module:
    """An untrained timm model, with SPT and LSA if its name asks for them.

    An SPT branch stands beside the embedding, as for a trained model, so that weights fit both.

    Raises:
        ValueError: timm does not know the name, or cannot build it so.
    """
    import timm

    base, addons = split_name(name)
    config = timm.get_pretrained_cfg(known(base))
    sized = {"img_size": image_size} if config is not None and config.fixed_input_size else {}
    given = {"num_classes": num_classes, "in_chans": in_channels, **sized, **options}
    try:
        model: nn.Module = timm.create_model(base, pretrained=False, **given)
    except Exception as error:  # whatever timm's many constructors make of an option
        told = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise ValueError(f"timm could not build {base} with {told}: {error}") from error
    return add(model, base, spt="spt" in addons, lsa="lsa" in addons)


def add(model: nn.Module, name: str, *, spt: bool, lsa: bool) -> nn.Module:
    """The model with SPT and LSA, as a sentence where that is impossible."""
    if not (spt or lsa):
        return model
    from smallvit.models.localize import localize

    try:
        return localize(model, spt=spt, lsa=lsa)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def make_model(
    name: str,
    *,
    num_classes: int,
    image_size: int | Size,
    in_channels: int = 3,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Builds an untrained model by any name: ours, a baseline's, or `timm/NAME`.

    Args:
        name: A name of `list_models()` with its add-ons, a name of `BASELINES`, or `timm/` and
            any name of timm's, with `+spt`, `+lsa` or `+spt+lsa` behind it if wanted.
        num_classes: Width of the head.
        image_size: One number, or (height, width).
        in_channels: Channels of the images.
        options: Further options of the model: fields of its config, or keywords of timm's.

    Raises:
        ValueError: A name, option or value is not known, or the size does not divide.
    """
    size, options = as_size(image_size), dict(options or {})
    wanted: dict[str, Any] = {"num_classes": num_classes, "in_channels": in_channels}
    wanted["image_size"] = size
    if is_ours(name):
        # JSON and YAML have no tuples.
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        return create_model(name, **wanted, **options)
    if name in BASELINES:
        options = stem_options(name, size) | options
        model = make_baseline(name, **wanted, options=options)
    elif name.startswith("timm/"):
        model = make_timm(name, **wanted, options=options)
    else:
        names = [*MODELS, *BASELINES]
        near = difflib.get_close_matches(name.partition("+")[0], names, n=3, cutoff=0.4)
        hint = f"the nearest are {', '.join(near)}" if near else "list_models() lists ours"
        raise ValueError(
            f"there is no model {name!r}; {hint}, and timm's models are written timm/NAME"
        )
    return described(model, name, wanted, options)


def describe(model: nn.Module) -> dict[str, Any]:
    """What rebuilds a model of this module: `make_model(**describe(model))`; JSON can hold it.

    Raises:
        ValueError: The model was built elsewhere.
    """
    kept = getattr(model, "description", None)
    if kept is None:
        if not isinstance(model, Backbone):
            raise ValueError(f"a {type(model).__name__} that make_model did not build has no name")
        sizes = {key: getattr(model.config, key) for key in ("num_classes", "in_channels")}
        sizes["image_size"] = model.config.image_size
        kept = {"name": model.name, "options": own_options(model), **sizes}
    plain: dict[str, Any] = json.loads(json.dumps(kept))
    return plain


def described(
    model: Any, name: str, wanted: Mapping[str, Any], options: Mapping[str, Any]
) -> nn.Module:
    """The model, which now says how it was built."""
    model.description = {"name": name, "options": dict(options), **wanted}
    described: nn.Module = model
    return described


def is_ours(name: str) -> bool:
    """Whether a name is one of `list_models()`, with or without add-ons."""
    return name.partition("+")[0] in MODELS


def own_options(model: Backbone) -> dict[str, Any]:
    """The options of `create_model` that are not what its name says anyway."""
    variant, addons = parse_name(model.name)
    usual = {f.name: f.default for f in fields(model.config) if f.default is not MISSING}
    usual |= {**variant.options, **addons}
    given = {f.name: getattr(model.config, f.name) for f in fields(model.config)}
    for key in ("image_size", "num_classes", "in_channels"):
        del given[key]
    return {key: value for key, value in given.items() if key not in usual or usual[key] != value}
