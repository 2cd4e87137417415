"""State dicts for models that nearly match them: other heads, grids and channels."""

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smallvit.interop.references import is_dropped
from smallvit.layers import resample
from smallvit.models.base import Backbone
from smallvit.models.parameters import input_sizes
from smallvit.sizes import Size
from smallvit.text import some


def load_matching(
    state: dict[str, Tensor],
    model: nn.Module,
    *,
    source: str,
    renewed: Callable[[str], bool] = lambda _: False,
) -> list[str]:
    """Loads a state dict; only the head and what is renewed may start fresh.

    Args:
        state: Tensors by the model's names, already of its image size and channels.
        source: Where they come from, for the error message when they do not fit.
        renewed: Tells by its name which tensor belongs to a part that is new in this model.

    Returns:
        Notes: what starts fresh, whether the head stayed, and every tensor that was not used.

    Raises:
        ValueError: A tensor is not in the model, is missing, or has another shape.
    """
    heads = head_names(model)
    target = model.state_dict()
    faults: list[str] = []
    unused = [key for key in state if key not in target]
    faults += [
        f"{key} is not in the model"
        for key in unused
        if not (_within(key, heads) or renewed(key) or is_dropped(key))
    ]
    matching, fresh = {}, []
    for key, initial in target.items():
        value = state.get(key)
        if value is not None and value.shape == initial.shape:
            matching[key] = value
        elif _within(key, heads) or renewed(key):
            fresh.append(key)
            unused += [key] if value is not None else []
            matching[key] = initial
        elif value is not None:
            shapes = tuple(value.shape), tuple(initial.shape)
            faults.append(f"{key} is {shapes[0]} and the model's is {shapes[1]}")
        elif key.endswith("num_batches_tracked"):
            matching[key] = initial
        else:
            faults.append(f"{key} is not in the checkpoint")
    if faults:
        raise ValueError(f"{source} does not fit: {some(faults, 6)}")
    model.load_state_dict(matching)
    notes = [f"started fresh: {', '.join(fresh)}"] if fresh else []
    if not any(_within(key, heads) for key in fresh):
        notes.append("the head was kept: it has as many classes")
    return notes + unused_note(unused)


def unused_note(keys: Iterable[str]) -> list[str]:
    """One note that names every tensor, or none."""
    names = ", ".join(keys)
    return [f"not used of the checkpoint: {names}"] if names else []


def head_names(model: nn.Module) -> tuple[str, ...]:
    """The modules that turn features into classes."""
    config = getattr(model, "pretrained_cfg", None) or {}
    names = config.get("classifier") or "head"
    return (names,) if isinstance(names, str) else tuple(names)


def _within(key: str, modules: Iterable[str]) -> bool:
    return any(key.startswith(f"{module}.") for module in modules)


def for_timm(
    state: dict[str, Tensor], model: nn.Module, old: nn.Module | None = None
) -> tuple[dict[str, Tensor], list[str]]:
    """A checkpoint in the shapes of a timm model or baseline: timm's filter, positions, channels.

    Args:
        old: The model it comes from, which knows its grids; without it they must be squares.

    Returns:
        The state dict, and notes about what was resampled and adapted.
    """
    before, notes = dict(state), []
    for key in state.keys() & model.state_dict().keys():
        last = key.rpartition(".")[2]
        if last == "pos_embed":
            state[key] = _stretch_positions(key, state[key], model, old)
        elif last == "relative_position_bias_table":
            state[key] = _stretch_bias(key, state[key], model, old)
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is not None:
        state = dict(convert(state, model))
    moved = [
        key for key, value in state.items() if key in before and value.shape != before[key].shape
    ]
    if moved:
        notes.append(f"resampled for the new image size: {', '.join(sorted(moved))}")
    target = model.state_dict()
    keys = [key for key in input_keys_of_timm(model) if key in state]
    keys = [key for key in keys if state[key].shape != target[key].shape]
    convolutions = [key for key in keys if state[key].ndim == 4]
    if convolutions:
        channels, new = (tensors[convolutions[0]].shape[1] for tensors in (state, target))
        if channels != new:
            notes += adapt_all(state, keys, channels, new)
    return state, notes


def _stated(model: nn.Module | None, part: str, attribute: str) -> Size | None:
    """Two numbers that a part of the model states, if there is such a part."""
    try:
        value: Any = getattr(model.get_submodule(part), attribute) if model is not None else None
    except AttributeError:
        return None
    return None if value is None else (int(value[0]), int(value[1]))


def _square(count: int) -> Size:
    side = math.isqrt(max(count, 0))
    return side, side


def _stretch_positions(key: str, table: Tensor, model: nn.Module, old: nn.Module | None) -> Tensor:
    """A position table for the model's grid: (1, N, D), or a map (1, D, h, w) or (1, h, w, D)."""
    target = model.state_dict()[key]
    if target.shape == table.shape or target.ndim != table.ndim:
        return table
    if target.ndim == 4:
        last = target.shape[1] != table.shape[1]  # VOLO's channels
        image = table.permute(0, 3, 1, 2) if last else table
        size = (target.shape[1], target.shape[2]) if last else (target.shape[2], target.shape[3])
        image = F.interpolate(image.float(), size, mode="bicubic", antialias=True)
        return (image.permute(0, 2, 3, 1) if last else image).to(table.dtype)
    grid = _stated(model, "patch_embed", "grid_size")
    if target.ndim != 3 or grid is None:
        return table
    prefix = target.shape[1] - grid[0] * grid[1]
    had = _stated(old, "patch_embed", "grid_size") or _square(table.shape[1] - prefix)
    if prefix < 0 or table.shape[1] != prefix + had[0] * had[1]:
        return table
    return resample(table, had, grid, prefix)


def _stretch_bias(key: str, table: Tensor, model: nn.Module, old: nn.Module | None) -> Tensor:
    """A relative bias table (rows · columns, M) for the model's window.

    timm's filter would do it too, but with an indexing that PyTorch has deprecated.
    """
    part = key.rpartition(".")[0]
    window, before = (_stated(m, part, "window_size") for m in (model, old))
    target = model.state_dict()[key]
    if window is None or table.shape == target.shape:
        return table
    offsets = (2 * window[0] - 1, 2 * window[1] - 1)
    behind = len(target) - offsets[0] * offsets[1]  # BEiT's for the class token
    count = len(table) - behind
    had = _square(count) if before is None else (2 * before[0] - 1, 2 * before[1] - 1)
    if behind < 0 or count != had[0] * had[1]:
        return table
    return torch.cat([resample(table[None, :count], had, offsets)[0], table[count:]])


@torch.no_grad()
def widen(state: dict[str, Tensor], model: nn.Module, key: str) -> list[str]:
    """Extends a convolution's weight with zeros for the shifted views."""
    target = model.state_dict()[key]
    wide = torch.zeros_like(target)
    wide[:, : state[key].shape[1]] = state[key]
    state[key] = wide
    return [f"SPT: {key} starts at zero for the shifted copies"]


def adapt(weight: Tensor, old: int, new: int, *, after: int = 1, averaged: bool = False) -> Tensor:
    """One tensor for `new` channels.

    To one channel the weights are summed; to more they are repeated in turn and multiplied with
    old / new. A grey image, the same on all channels, then gives what it gave: exactly if new is
    one or a multiple of old. Each shifted view is adapted as an image is.

    Args:
        weight: A convolution (D, views · old, k, k), or a vector or matrix whose last axis runs
            over positions or views, then channels, then `after` further entries.
        after: Entries of the last axis that belong to one channel.
        averaged: A norm's weight: averaged instead of summed, and never scaled.
    """
    convolution = weight.ndim == 4
    axis = 2 if convolution else -2
    parts = (
        weight.unflatten(1, (-1, old)) if convolution else weight.unflatten(-1, (-1, old, after))
    )
    if new == 1:
        parts = parts.sum(axis, keepdim=True) / (old if averaged else 1)
    else:
        turn = torch.arange(new, device=weight.device) % old
        parts = parts.index_select(axis, turn) * (1 if averaged else old / new)
    return parts.flatten(1, 2) if convolution else parts.flatten(-3)


def adapt_all(
    state: dict[str, Tensor], keys: Iterable[str], old: int, new: int, *, after: int = 1
) -> list[str]:
    """Adapts these tensors of a state dict in place; returns a note about it."""
    keys = list(keys)
    for key in keys:
        norm = state[key].ndim == 1
        state[key] = adapt(state[key], old, new, after=after, averaged=norm)
    how = "summed" if new == 1 else f"repeated in turn and multiplied with {old}/{new}"
    note = f"input channels {old} → {new}: {', '.join(keys)} {how}"
    if any(state[key].ndim == 1 for key in keys):
        note += ", norms averaged" if new == 1 else ", norms repeated alone"
    return [note]


def adapt_backbone(model: Backbone, state: dict[str, Tensor], new: int) -> list[str]:
    """Adapts a state dict of one of our models in place; returns notes."""
    old = model.config.in_channels
    if old == new:
        return []
    keys = input_sizes(type(model), model.config)
    notes = adapt_all(state, keys, old, new, after=model.config.entries_per_channel)
    model.compensate_channels(state, new / old)
    return notes


def input_keys_of_timm(model: nn.Module) -> list[str]:
    """The tensors of a timm model, or of its localized version, that read the image."""
    config = getattr(model, "pretrained_cfg", None) or {}
    first = config.get("first_conv") or ()
    names = [first] if isinstance(first, str) else list(first)
    keys = [f"{name}.weight" for name in names]
    keys += [f"patch_embed.spt.{part}" for part in ("norm.weight", "norm.bias", "proj.weight")]
    return [key for key in keys if key in model.state_dict()]
