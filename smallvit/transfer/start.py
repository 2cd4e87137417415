"""`start_from`: a model with trained weights, ready to be trained further."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smallvit.interop.references import DROPPED, load_reference, read_checkpoint, unwrap
from smallvit.models.base import Backbone
from smallvit.models.baselines import BASELINES
from smallvit.models.build import (
    add,
    describe,
    described,
    is_ours,
    join_name,
    make_model,
    own_options,
    split_name,
)
from smallvit.models.registry import create_model, parse_name
from smallvit.models.t2t import T2T
from smallvit.sizes import Size, as_size
from smallvit.transfer.channels import adapt_backbone
from smallvit.transfer.fetch import fetch
from smallvit.transfer.state_dicts import fit, for_timm, unused_note, widen

_FILES = {".pth", ".pt", ".bin", ".ckpt", ".safetensors"}


def start_from(
    source: str | PathLike[str],
    *,
    name: str | None = None,
    num_classes: int,
    image_size: int | Size,
    in_channels: int,
    options: Mapping[str, Any] | None = None,
    spt: bool = False,
    lsa: bool = False,
) -> tuple[nn.Module, str, list[str]]:
    """A model with trained weights, made to fit other classes, sizes and channels.

    The head starts fresh where the number of classes differs. Positions and relative biases are
    resampled. Weights that read the image are summed to one channel, or repeated in turn.
    Nothing in a checkpoint can run code.

    Args:
        source: A run folder of ours, a checkpoint file, or a timm model's name (`timm/resnet18`
            or `resnet18`, with its tag if wanted), whose weights timm's cache has or fetches.
        name: Which model is in the file: our name for an authors' checkpoint, `timm/NAME` for
            timm's. A run folder and a timm name say it themselves.
        num_classes: Width of the head.
        image_size: One number, or (height, width).
        in_channels: Channels of the images.
        options: Further options of the model, such as `drop_path`; those of a run are kept.
        spt: Adds shifted patches: a branch that starts at zero in timm's models, a fresh
            tokenizer in ours.
        lsa: Adds a temperature a head and hides every token from itself.

    Returns:
        The model, its name, and notes: what was resampled, adapted, started fresh and not used.

    Raises:
        ValueError: The checkpoint does not fit or could run code, or a name is not known.
        OSError: A file is not there, or weights could not be fetched.
    """
    wanted: dict[str, Any] = {"num_classes": num_classes, "in_channels": in_channels}
    wanted["image_size"] = as_size(image_size)
    options = dict(options or {})
    addons = tuple(addon for addon, on in (("spt", spt), ("lsa", lsa)) if on)
    path = Path(source)
    run = None if str(source).startswith("timm/") else _run(path)
    if run is not None:
        described, file = run
        if name not in (None, described["name"]):
            raise ValueError(f"{source} is a run of {described['name']}, and {name} was asked for")
        return _from_run(described, file, wanted, options, addons)
    if path.is_file():
        if name is None:
            raise ValueError(
                f"{source} does not say which model it holds: give its name, ours for an authors' "
                "checkpoint or timm/NAME for one of timm's"
            )
        if is_ours(name):
            old, notes = _reference(path, name, wanted["image_size"], options)
            return _onward(old, wanted, options, addons, notes)
        state = unwrap(read_checkpoint(path))
        return _onto_other(state, name, wanted, options, addons, source=str(path))
    return _from_name(str(source), name, wanted, options, addons)


def _run(path: Path) -> tuple[dict[str, Any], Path] | None:
    """A run's model and weights from its folder or a weights file in it; None for others."""
    folder, file = (path, path / "weights.safetensors") if path.is_dir() else (path.parent, path)
    card = folder / "run.json"
    if not path.is_dir() and not (path.is_file() and card.is_file()):
        return None
    if not card.is_file() or not file.is_file():
        lacks = "run.json" if not card.is_file() else "weights.safetensors"
        raise FileNotFoundError(
            f"{path} is no run folder: it has no {lacks} (a model of timm's is written timm/NAME)"
        )
    try:
        described = json.loads(card.read_text(encoding="utf-8"))["model"]
        return {key: described[key] for key in _CARD}, file
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{card} does not say which model it holds: its key 'model' must have "
            f"{', '.join(_CARD)} ({error})"
        ) from error


_CARD = ("name", "options", "image_size", "in_channels", "num_classes")


def _from_run(
    described: dict[str, Any],
    file: Path,
    wanted: dict[str, Any],
    options: dict[str, Any],
    addons: tuple[str, ...],
) -> tuple[nn.Module, str, list[str]]:
    state, old = unwrap(read_checkpoint(file)), make_model(**described)
    fit(state, old, source=str(file))
    if isinstance(old, Backbone) and is_ours(described["name"]):
        return _onward(old, wanted, options, addons, [])
    options = {**describe(old)["options"], **options}
    return _onto_other(state, described["name"], wanted, options, addons, source=str(file), old=old)


def _reference(
    path: Path, name: str, size: Size, options: dict[str, Any]
) -> tuple[Backbone, list[str]]:
    """An authors' checkpoint at the size asked for, or else at its paper's."""
    state = unwrap(read_checkpoint(path))
    notes = unused_note(key for key in state if any(re.fullmatch(p, key) for p in DROPPED))
    paper = parse_name(name)[0].image_size
    try:
        return load_reference(state, model=name, image_size=size, **options), notes
    except ValueError:
        try:
            return load_reference(state, model=name, image_size=paper, **options), notes
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _onward(
    old: Backbone,
    wanted: dict[str, Any],
    options: dict[str, Any],
    addons: tuple[str, ...],
    notes: list[str],
) -> tuple[nn.Module, str, list[str]]:
    """One of our models, trained, for other classes, size, channels and add-ons."""
    if isinstance(old, T2T):
        # Its number of splits may follow the size, and must not change with it.
        count = len(old.config.splits)
        if len(replace(old.config, image_size=wanted["image_size"]).splits) != count:
            old.config = replace(old.config, num_splits=count)
    base, *has = old.name.split("+")
    name = "+".join([base, *(addon for addon in ("spt", "lsa") if addon in {*has, *addons})])
    new = create_model(name, **wanted, **{**own_options(old), **options})
    state = dict(old.resized(wanted["image_size"]).state_dict())
    stretched = [key for key, value in old.state_dict().items() if state[key].shape != value.shape]
    if stretched:
        notes = [*notes, f"resampled for the new image size: {', '.join(stretched)}"]
    notes = [*notes, *adapt_backbone(old, state, wanted["in_channels"])]
    renewed: tuple[str, ...] = ()
    if "spt" in addons and "spt" not in has:
        renewed = ("tokenizer.", "poolings.", "mergings.")
        for key in ("tokenizer.convs.0.weight", "embeddings.0.conv.weight"):
            if key in state:
                notes += widen(state, new, key)
    temperature = "lsa" in addons and "lsa" not in has
    notes += fit(
        state,
        new,
        source=f"the trained {old.name}",
        renewed=lambda key: key.startswith(renewed) or (temperature and key.endswith(".scale")),
    )
    return new, name, notes


def _onto_other(
    state: dict[str, Tensor],
    name: str,
    wanted: dict[str, Any],
    options: dict[str, Any],
    addons: tuple[str, ...],
    *,
    source: str,
    old: nn.Module | None = None,
) -> tuple[nn.Module, str, list[str]]:
    """A state dict of timm's or a baseline, for other classes, size, channels and add-ons."""
    model = make_model(name, **wanted, options=options)
    state, notes = for_timm(state, model, old)
    notes += fit(state, model, source=f"{source} as {name}")
    options = describe(model)["options"]
    base, has = split_name(name)
    new = [addon for addon in addons if addon not in has]
    if new:
        model = add(model, name, spt="spt" in new, lsa="lsa" in new)
        name = join_name(base, (*has, *new))
        notes.append(f"localized: {' and '.join(new).upper()} added, the trained parts kept")
    return described(model, name, wanted, options), name, notes


def _from_name(
    source: str,
    name: str | None,
    wanted: dict[str, Any],
    options: dict[str, Any],
    addons: tuple[str, ...],
) -> tuple[nn.Module, str, list[str]]:
    """A timm model's name, after everything that looks like a path or a name of ours."""
    looks_like_path = Path(source).suffix in _FILES or source.startswith((".", "/", "~"))
    if looks_like_path or ("/" in source and not source.startswith("timm/")):
        raise FileNotFoundError(f"there is no file or run folder {source}")
    if is_ours(source) or source.startswith("cifar_"):
        raise ValueError(
            f"{source} has no weights to fetch: give a run folder of it, or a checkpoint file with "
            "the model's name"
        )
    base, asked = split_name(source)
    plain = base.partition(".")[0]
    if name is not None and split_name(name)[0].partition(".")[0] != plain:
        raise ValueError(f"the weights are of {plain}, and {name} was asked for")
    state = dict(fetch(base).state_dict())
    made = _onto_other(
        state, f"timm/{base}", wanted, options, (*asked, *addons), source=f"timm's {base}"
    )
    if plain in BASELINES:
        made[2].append(f"{plain} keeps the stem it was trained with, which was made for 224 pixels")
    return made
