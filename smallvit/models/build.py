"""From any name to a model: ours, a baseline's, or timm's."""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any

import torch
from torch import nn

from smallvit.arguments import Between, Width, checked
from smallvit.models.base import Backbone
from smallvit.models.baselines import BASELINES, make_baseline, stem_options
from smallvit.models.config import BackboneConfig
from smallvit.models.names import Name, check_name, find_variant, parse_name
from smallvit.sizes import Size, as_size
from smallvit.text import nearest

_SIZES = ("num_classes", "image_size", "in_channels")
_LOADS = re.compile("pretrained|checkpoint|cache_dir")
"""How keywords of timm begin that load or fetch weights."""


def create_model(
    name: str, *, num_classes: int, image_size: int | Size, in_channels: int = 3, **options: Any
) -> Backbone:
    """Builds one of our models by name.

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
    sizes = {"num_classes": num_classes, "image_size": image_size, "in_channels": in_channels}
    model = find_variant(name).model(make_config(name, **sizes, **options))
    model.name = name
    return model


def make_config(name: str, **options: Any) -> BackboneConfig:
    """The config of one of our models; the arguments are those of `create_model`."""
    variant = find_variant(name)
    known = [field.name for field in fields(variant.model.Config)]
    for option in options:
        if option not in known:
            near = nearest(option, known) or f"; it knows {', '.join(known)}"
            raise ValueError(f"{name} has no option {option!r}{near}")
    config = variant.model.Config(**{**variant.options, **parse_name(name).options, **options})
    if "lsa" in parse_name(name).addons and not variant.model.takes_lsa:
        raise ValueError(f"{name}: {variant.model.__name__} has LSA built in; leave +lsa out")
    return config


def count_parameters(name: str, *, num_classes: int) -> int:
    """How many parameters a model has, one of ours at its paper's size; allocates none."""
    with torch.device("meta"):
        size = 32 if name in BASELINES else find_variant(name).image_size
        model = make_model(name, num_classes=num_classes, image_size=size)
    return sum(parameter.numel() for parameter in model.parameters())


@checked
def make_model(
    name: str,
    *,
    num_classes: Annotated[int, Between(0, 1_000_000)],
    image_size: int | Size,
    in_channels: Width = 3,
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
    for key in options:
        if not isinstance(key, str) or key in _SIZES or _LOADS.match(key):
            raise ValueError(
                f"{key!r} is not an option of {name}: sizes follow from the data, and weights "
                "come from --pretrained (model.pretrained)"
            )
    sizes: dict[str, Any] = {"num_classes": num_classes, "in_channels": in_channels}
    sizes["image_size"] = size
    parts = check_name(name)
    if parts.ours:
        # JSON and YAML have no tuples.
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        return create_model(name, **sizes, **options)
    if parts.base in BASELINES:
        options = stem_options(name, size) | options
        model = make_baseline(name, num_classes, in_channels, options)
    else:
        model = _make_timm(parts, **sizes, options=options)
    return with_description(model, name, sizes, options)


def _make_timm(
    name: Name, *, num_classes: int, image_size: Size, in_channels: int, options: Mapping[str, Any]
) -> nn.Module:
    """An untrained timm model with its add-ons.

    The SPT branch is beside the embedding, as for a trained model, so that weights fit both.

    Raises:
        ValueError: timm cannot build it so.
    """
    import timm

    config = timm.get_pretrained_cfg(name.timm)
    sized = {"img_size": image_size} if config is not None and config.fixed_input_size else {}
    keywords = {"num_classes": num_classes, "in_chans": in_channels, **sized, **options}
    try:
        model: nn.Module = timm.create_model(name.timm, pretrained=False, **keywords)
    except Exception as error:  # whatever timm's many constructors make of an option
        listed = ", ".join(f"{key}={value!r}" for key, value in keywords.items())
        raise ValueError(f"timm could not build {name.timm} with {listed}: {error}") from error
    return add_to_timm(model, name.timm, name.addons)


def add_to_timm(model: nn.Module, name: str, addons: tuple[str, ...]) -> nn.Module:
    """A timm model with SPT or LSA added.

    Raises:
        ValueError: That is impossible for this model.
    """
    if not addons:
        return model
    from smallvit.models.localize import localize

    try:
        return localize(model, spt="spt" in addons, lsa="lsa" in addons)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def describe(model: nn.Module) -> dict[str, Any]:
    """What rebuilds a model of this module: `make_model(**describe(model))`; JSON can hold it.

    Raises:
        ValueError: The model was built elsewhere.
    """
    description = getattr(model, "description", None)
    if description is None:
        if not isinstance(model, Backbone):
            raise ValueError(f"a {type(model).__name__} that make_model did not build has no name")
        sizes = {key: getattr(model.config, key) for key in _SIZES}
        options = config_options(model.name, model.config)
        description = {"name": model.name, "options": options, **sizes}
    plain: dict[str, Any] = json.loads(json.dumps(description))
    return plain


def with_description(
    model: Any, name: str, sizes: Mapping[str, Any], options: Mapping[str, Any]
) -> nn.Module:
    """The model, which now carries how it was built."""
    model.description = {"name": name, "options": dict(options), **sizes}
    described: nn.Module = model
    return described


def config_options(name: str, config: BackboneConfig) -> dict[str, Any]:
    """The options of `create_model` that this name does not imply."""
    implied = {f.name: f.default for f in fields(config) if f.default is not MISSING}
    implied |= {**find_variant(name).options, **parse_name(name).options}
    values = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in _SIZES}
    return {k: value for k, value in values.items() if k not in implied or implied[k] != value}
