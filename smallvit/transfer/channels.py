"""Weights for images with other channels: summed to one, or repeated and scaled down."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from smallvit.models.base import Backbone
from smallvit.models.parameters import input_sizes


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
