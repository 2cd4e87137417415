"""From a state dict into a model that is nearly the one it was made for."""

import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smallvit.interop.channels import adapt_all, input_keys_of_timm
from smallvit.interop.references import DROPPED
from smallvit.layers import resample
from smallvit.models.base import Size

_SHOWN = 6


def _never(key: str) -> bool:
    del key
    return False


def fit(
    state: dict[str, Tensor],
    model: nn.Module,
    *,
    source: str,
    renewed: Callable[[str], bool] = _never,
) -> list[str]:
    """Loads a state dict; only the head and what is renewed may start fresh.

    Args:
        state: Tensors by the model's names, already of its picture size and channels.
        source: Where they come from, for the sentence when they do not fit.
        renewed: Tells by its name which tensor belongs to a part that is new in this model.

    Returns:
        Notes: what starts fresh, whether the head stayed, and every tensor that was not used.

    Raises:
        ValueError: A tensor has no place, is missing, or has another shape.
    """
    heads = head_names(model)
    target = model.state_dict()
    faults: list[str] = []
    unused = [key for key in state if key not in target]
    faults += [
        f"{key} has no place in the model"
        for key in unused
        if not (_within(key, heads) or renewed(key) or _dropped(key))
    ]
    fitted, fresh = {}, []
    for key, own in target.items():
        value = state.get(key)
        if value is not None and value.shape == own.shape:
            fitted[key] = value
        elif _within(key, heads) or renewed(key):
            fresh.append(key)
            unused += [key] if value is not None else []
            fitted[key] = own
        elif value is not None:
            faults.append(f"{key} is {tuple(value.shape)} and the model's is {tuple(own.shape)}")
        elif key.endswith("num_batches_tracked"):
            fitted[key] = own
        else:
            faults.append(f"{key} is not in the checkpoint")
    if faults:
        more = f", and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise ValueError(f"{source} does not fit: {'; '.join(faults[:_SHOWN])}{more}")
    model.load_state_dict(fitted)
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


def _dropped(key: str) -> bool:
    return any(re.fullmatch(pattern, key) for pattern in DROPPED)


def for_timm(
    state: dict[str, Tensor], model: nn.Module, old_grid: Size | None = None
) -> tuple[dict[str, Tensor], list[str]]:
    """A checkpoint in the shapes of a timm model or baseline: timm's filter, positions, channels.

    Args:
        old_grid: Rows and columns its positions were made for; a square if it is not known.

    Returns:
        The state dict, and notes about what was resampled and adapted.
    """
    before, notes = dict(state), []
    positions = {key for key in state if key.rpartition(".")[2] == "pos_embed"}
    for key in positions & model.state_dict().keys():
        state[key] = _stretch(key, state[key], model, old_grid)
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is not None:
        state = dict(convert(state, model))
    moved = [
        key for key, value in state.items() if key in before and value.shape != before[key].shape
    ]
    if moved:
        notes.append(f"resampled for the new picture size: {', '.join(sorted(moved))}")
    target = model.state_dict()
    keys = [key for key in input_keys_of_timm(model) if key in state]
    keys = [key for key in keys if state[key].shape != target[key].shape]
    convolutions = [key for key in keys if state[key].ndim == 4]
    if convolutions:
        old, new = (tensors[convolutions[0]].shape[1] for tensors in (state, target))
        if old != new:
            notes += adapt_all(state, keys, old, new)
    return state, notes


def _stretch(key: str, table: Tensor, model: Any, old_grid: Size | None) -> Tensor:
    """A position table for the model's grid: tokens (1, N, D), or a map (1, D, h, w)."""
    own = model.state_dict()[key]
    if own.shape == table.shape or own.ndim != table.ndim:
        return table
    if own.ndim == 4 and own.shape[1] == table.shape[1]:
        size = (own.shape[2], own.shape[3])
        stretched = F.interpolate(table.float(), size, mode="bicubic", antialias=True)
        return stretched.to(table.dtype)
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if own.ndim != 3 or grid is None or own.shape[2] != table.shape[2]:
        return table
    prefix = own.shape[1] - grid[0] * grid[1]
    if old_grid is None:
        side = round((table.shape[1] - prefix) ** 0.5)
        old_grid = (side, side)
    if prefix < 0 or table.shape[1] != prefix + old_grid[0] * old_grid[1]:
        return table
    return resample(table, old_grid, (grid[0], grid[1]), prefix)


@torch.no_grad()
def widen(state: dict[str, Tensor], model: nn.Module, key: str) -> list[str]:
    """Puts a convolution's weight in front of zeros for the shifted views it did not see."""
    own = model.state_dict()[key]
    wide = torch.zeros_like(own)
    wide[:, : state[key].shape[1]] = state[key]
    state[key] = wide
    return [f"SPT: {key} starts at zero for the shifted copies"]
