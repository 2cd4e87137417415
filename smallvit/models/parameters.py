"""Parameters by their layer and by what they read: for learning rates, freezing and transfer."""

from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from smallvit.layers import ChannelNorm
from smallvit.models.base import Backbone
from smallvit.models.config import BackboneConfig

#: What weight decay leaves alone, by the last part of a parameter's name: positions, relative
#: biases, class tokens and temperatures; ours first, then timm's.
UNDECAYED = {
    *("table", "bias_table", "token", "scale"),
    *("cls_token", "dist_token", "reg_token", "pos_embed", "absolute_pos_embed"),
    *("relative_position_bias_table",),
}


def depths(model: nn.Module) -> tuple[dict[str, int], int]:
    """The layer of every parameter, and the head's, which is the largest.

    Layer 0 holds tokenizer or stem, positions and class token; then each block is a layer, with
    what merges or embeds tokens in front of it; the final norm, the pool and the head come last.

    Raises:
        ValueError: The model says nothing about its layers.
    """
    stated: Any = model
    names = [name for name, _ in model.named_parameters()]
    if hasattr(model, "parameter_layers"):
        layers = stated.parameter_layers()
        parts = {part: number for number, layer in enumerate(layers) for part in layer}
        return {name: _layer(name, parts, len(layers)) for name in names}, len(layers)
    groups: dict[str, int] = {}
    if hasattr(model, "group_matcher"):
        from timm.models import group_parameters

        groups = group_parameters(model, stated.group_matcher(coarse=False), reverse=True)
    numbers = {old: new for new, old in enumerate(sorted(set(groups.values())))}
    if len(numbers) < 2:
        raise ValueError(
            f"a {type(model).__name__} does not say which parameters form a layer (timm's "
            "group_matcher): train it without layer-wise decay and without frozen layers"
        )
    return {name: numbers[groups[name]] for name in names}, len(numbers) - 1


def _layer(name: str, parts: dict[str, int], last: int) -> int:
    """The number of the part that a parameter is in; the last where none is named."""
    pieces = name.split(".")
    prefixes = (".".join(pieces[:count]) for count in range(len(pieces), 0, -1))
    return next((parts[prefix] for prefix in prefixes if prefix in parts), last)


def frozen_below(model: nn.Module, layer: int) -> set[str]:
    """The parameters in front of a layer: all but the head's for the largest number.

    Raises:
        ValueError: The model has no such layer.
    """
    layers, last = depths(model)
    if not 0 <= layer <= last:
        raise ValueError(
            f"layers up to {layer} are to be frozen: allowed is 0 (none) to {last} (all but the "
            "head)"
        )
    return {name for name, depth in layers.items() if depth < layer}


def undecayed(model: nn.Module) -> set[str]:
    """The parameters that get no weight decay by default.

    Norms, biases and layer scales (all that have one axis), positions, relative biases, class
    tokens, temperatures, and what a model's own `no_weight_decay` names.
    """
    named_by_model: Any = getattr(model, "no_weight_decay", set)
    patterns = named_by_model()
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim <= 1
        or name.rpartition(".")[2] in UNDECAYED
        or any(fnmatch(name, pattern) for pattern in patterns)
    }


def undecayed_by_drloc(model: nn.Module) -> set[str]:
    """The parameters that get no weight decay in the released code of DRLoc.

    All that have one axis, and relative biases. The norms of CvT have four axes there, so they
    decay, and so do class tokens.
    """
    norms = [f"{name}." for name, m in model.named_modules() if isinstance(m, ChannelNorm)]
    return {
        name
        for name, parameter in model.named_parameters()
        if (parameter.ndim <= 1 and not name.startswith(tuple(norms)))
        or name.endswith("bias_table")
    }


def input_sizes(model: type[Backbone], config: BackboneConfig) -> dict[str, int]:
    """Entries per channel of the image, for each tensor whose size depends on the channels."""
    with torch.device("meta"):
        one, two = (model(replace(config, in_channels=n)).state_dict() for n in (1, 2))
    return {key: value.numel() for key, value in one.items() if value.shape != two[key].shape}
