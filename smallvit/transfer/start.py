"""`start_from`: a model with trained weights, ready to be trained further."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smallvit.arguments import checked
from smallvit.files import at_home
from smallvit.interop.references import is_dropped, load_reference, read_checkpoint, unwrap
from smallvit.models.base import Backbone
from smallvit.models.baselines import BASELINES
from smallvit.models.build import (
    add_to_timm,
    config_options,
    create_model,
    describe,
    make_model,
    with_description,
)
from smallvit.models.names import Name, find_variant, parse_name
from smallvit.runs.folder import Run
from smallvit.runs.places import INFO, WEIGHTS
from smallvit.sizes import Size, as_size
from smallvit.transfer.fetch import fetch
from smallvit.transfer.state_dicts import (
    adapt_backbone,
    for_timm,
    load_matching,
    unused_note,
    widen,
)

Started = tuple[nn.Module, str, list[str]]
"""A model, its name, and notes about what was changed."""

_FILES = {".pth", ".pt", ".bin", ".ckpt", ".safetensors"}
_DESCRIPTION = ("name", "options", "image_size", "in_channels", "num_classes")


@checked
def start_from(
    source: str | PathLike[str],
    *,
    name: str | None = None,
    num_classes: int,
    image_size: int | Size,
    in_channels: int,
    options: Mapping[str, Any] | None = None,
) -> Started:
    """A model with trained weights, made to fit other classes, sizes and channels.

    The head starts fresh where the number of classes differs. Positions and relative biases are
    resampled. Weights that read the image are summed to one channel, or repeated in turn.
    Add-ons that a name has and the weights do not are added: SPT as a branch that starts at zero
    in timm's models and as a fresh tokenizer in ours, LSA as one temperature per head, which
    starts at the old scale, and the diagonal mask. Nothing in a checkpoint can run code.

    Args:
        source: A run folder of ours, a checkpoint file, or a timm model's name (`timm/resnet18`
            or `resnet18`, with its tag and add-ons if wanted), whose weights timm's cache has or
            fetches.
        name: Which model it becomes: our name for an authors' checkpoint, `timm/NAME` for timm's,
            with its add-ons. A run folder and a timm name say it themselves; for them `+spt+lsa`
            alone names add-ons.
        num_classes: Width of the head.
        image_size: One number, or (height, width).
        in_channels: Channels of the images.
        options: Further options of the model, such as `drop_path`; those of a run are kept.

    Returns:
        The model, its name, and notes: what was resampled, adapted, started fresh and not used.

    Raises:
        ValueError: The checkpoint does not fit or could run code, or a name is not known.
        OSError: A file does not exist, or weights could not be fetched.
    """
    sizes: dict[str, Any] = {"num_classes": num_classes, "in_channels": in_channels}
    sizes["image_size"] = as_size(image_size)
    options, goal, path = dict(options or {}), parse_name(name or ""), at_home(source)
    if str(source).startswith("timm/"):
        return _from_timm(str(source), goal, sizes, options)
    if path.is_dir() or (path.is_file() and (path.parent / INFO).is_file()):
        return _from_run(path, goal, sizes, options)
    if not path.is_file():
        return _from_timm(str(source), goal, sizes, options)
    if not goal.base:
        raise ValueError(
            f"{source} does not say which model it holds: give its name, ours for an authors' "
            "checkpoint or timm/NAME for one of timm's"
        )
    if goal.ours:
        return _from_reference(path, goal, sizes, options)
    state = unwrap(read_checkpoint(path))
    stored = _stored_addons(state, goal, sizes, options)
    return _from_other(state, stored, goal, sizes, options, source=str(path))


def _from_run(path: Path, goal: Name, sizes: dict[str, Any], options: dict[str, Any]) -> Started:
    """A run's folder, or a weights file in it."""
    run = Run.open(path if path.is_dir() else path.parent)
    file = run.folder / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"{run.folder} has no {WEIGHTS}: its training has saved no weights")
    run.check_hash(file.name)
    try:
        description = {key: run.info["model"][key] for key in _DESCRIPTION}
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{run.folder / INFO} does not say which model it holds: its key 'model' must have "
            f"{', '.join(_DESCRIPTION)} ({error})"
        ) from error
    stored = parse_name(description["name"])
    if goal.base and (goal.base != stored.base or not {*stored.addons} <= {*goal.addons}):
        raise ValueError(f"{path} is a run of {stored}, which cannot become {goal}")
    goal = stored.plus(goal.addons)
    state, old = unwrap(read_checkpoint(file)), make_model(**description)
    load_matching(state, old, source=str(file))
    if stored.ours and isinstance(old, Backbone):
        return _from_ours(old, goal, sizes, options, [])
    options = {**describe(old)["options"], **options}
    return _from_other(state, stored, goal, sizes, options, source=str(file), old=old)


def _from_reference(
    path: Path, goal: Name, sizes: dict[str, Any], options: dict[str, Any]
) -> Started:
    """An authors' checkpoint, at the requested size or at its paper's, with or without add-ons."""
    state = unwrap(read_checkpoint(path))
    notes = unused_note(key for key in state if is_dropped(key))
    fewer: list[tuple[str, ...]] = [("spt",), ("lsa",), ()]
    faults = []
    for addons in [goal.addons, *(few for few in fewer if {*few} < {*goal.addons})]:
        for size in (sizes["image_size"], find_variant(goal.base).image_size):
            stored = str(Name(goal.base, addons))
            try:
                old = load_reference(state, model=stored, image_size=size, **options)
            except ValueError as error:
                faults.append(error)
            else:
                return _from_ours(old, goal, sizes, options, notes)
    raise ValueError(f"{path}: {faults[1]}") from faults[1]


def _from_ours(
    old: Backbone, goal: Name, sizes: dict[str, Any], options: dict[str, Any], notes: list[str]
) -> Started:
    """One of our models, trained, for other classes, size, channels and add-ons."""
    size, stored = sizes["image_size"], parse_name(old.name)
    kept = config_options(old.name, old.config.resized(size))
    new = create_model(str(goal), **sizes, **{**kept, **options})
    state = dict(old.resized(size).state_dict())
    resampled = [key for key, value in old.state_dict().items() if state[key].shape != value.shape]
    if resampled:
        notes = [*notes, f"resampled for the new image size: {', '.join(resampled)}"]
    notes = [*notes, *adapt_backbone(old, state, sizes["in_channels"])]
    added = {*goal.addons} - {*stored.addons}
    if "spt" in added and new.config.stack_stride and old.config.first_conv:
        notes += widen(state, new, f"{old.config.first_conv}.weight")

    def renewed(key: str) -> bool:
        tokenizes = key.startswith(("tokenizer.", "poolings.", "mergings."))
        return ("spt" in added and tokenizes) or ("lsa" in added and key.endswith(".scale"))

    notes += load_matching(state, new, source=f"the trained {old.name}", renewed=renewed)
    return new, str(goal), notes


def _stored_addons(
    state: dict[str, Tensor], goal: Name, sizes: dict[str, Any], options: dict[str, Any]
) -> Name:
    """The name of what a file of timm's holds: with the requested add-ons whose tensors it has."""
    if not goal.addons:
        return goal
    plain = make_model(goal.base, **sizes, options=options)
    tensors = {
        addon: add_to_timm(plain, goal.base, (addon,)).state_dict().keys()
        - plain.state_dict().keys()
        for addon in goal.addons
    }
    return Name(goal.base, tuple(addon for addon in tensors if tensors[addon] <= state.keys()))


def _from_other(
    state: dict[str, Tensor],
    stored: Name,
    goal: Name,
    sizes: dict[str, Any],
    options: dict[str, Any],
    *,
    source: str,
    old: nn.Module | None = None,
) -> Started:
    """A state dict of timm's or a baseline, for other classes, size, channels and add-ons."""
    model = make_model(str(stored), **sizes, options=options)
    state, notes = for_timm(state, model, old)
    notes += load_matching(state, model, source=f"{source} as {stored}")
    options = describe(model)["options"]
    added = tuple(addon for addon in goal.addons if addon not in stored.addons)
    if added:
        model = add_to_timm(model, str(stored), added)
        notes.append(f"localized: {' and '.join(added).upper()} added, the trained parts kept")
    return with_description(model, str(goal), sizes, options), str(goal), notes


def _from_timm(source: str, goal: Name, sizes: dict[str, Any], options: dict[str, Any]) -> Started:
    """A timm model's name, after everything that looks like a path or a name of ours."""
    looks_like_path = Path(source).suffix in _FILES or source.startswith((".", "/", "~"))
    if looks_like_path or ("/" in source and not source.startswith("timm/")):
        raise FileNotFoundError(f"there is no file or run folder {source}")
    published = parse_name(source)
    if published.ours or source.startswith("cifar_"):
        raise ValueError(
            f"{source} has no weights to fetch: give a run folder of it, or a checkpoint file with "
            "the model's name"
        )
    stored = Name(f"timm/{published.base.removeprefix('timm/')}")
    plain = stored.timm.partition(".")[0]
    if goal.base and goal.base.removeprefix("timm/").partition(".")[0] != plain:
        raise ValueError(f"the weights are of {plain}, which cannot become {goal}")
    goal = stored.plus([*published.addons, *goal.addons])
    state = dict(fetch(stored.timm).state_dict())
    started = _from_other(state, stored, goal, sizes, options, source=f"timm's {stored.timm}")
    if plain in BASELINES:
        note = f"{plain} keeps the stem it was trained with, which was made for 224 pixels"
        started[2].append(note)
    return started
