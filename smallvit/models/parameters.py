"""Parameters by their layer: for learning rates that decay with depth, and for freezing."""

import re
from fnmatch import fnmatch
from typing import Any

from torch import nn

from smallvit.models.base import Backbone
from smallvit.models.baselines import CifarResNet

#: What weight decay leaves alone, by the last part of a parameter's name: positions, relative
#: biases, class tokens and temperatures; ours first, then timm's.
_UNDECAYED = {
    *("table", "bias_table", "token", "scale"),
    *("cls_token", "dist_token", "reg_token", "pos_embed", "absolute_pos_embed"),
    *("relative_position_bias_table",),
}
_BETWEEN = ("mergings", "poolings")


def depths(model: nn.Module) -> tuple[dict[str, int], int]:
    """The layer of every parameter, and the head's, which is the largest.

    Layer 0 holds tokenizer or stem, positions and class token; then each block is a layer, with
    what merges or embeds tokens in front of it; the final norm, the pool and the head come last.

    Raises:
        ValueError: The model says nothing about its layers.
    """
    if isinstance(model, Backbone | CifarResNet):
        return _ours(model)
    found: dict[str, int] = {}
    timms: Any = model
    if hasattr(model, "group_matcher"):
        from timm.models import group_parameters

        found = group_parameters(model, timms.group_matcher(coarse=False), reverse=True)
    numbers = {old: new for new, old in enumerate(sorted(set(found.values())))}
    if len(numbers) < 2:
        raise ValueError(
            f"a {type(model).__name__} does not say which parameters form a layer (timm's "
            "group_matcher): train it without layer-wise decay and without frozen layers"
        )
    layers = {name: numbers[found[name]] for name, _ in model.named_parameters()}
    return layers, max(layers.values())


def _ours(model: nn.Module) -> tuple[dict[str, int], int]:
    """Blocks counted in the order they run, whichever lists they stand in."""
    starts: dict[str, int] = {}
    count = 1
    parts: Any = model
    for stage, blocks in enumerate(getattr(parts, "stages", ())):
        starts[f"stages.{stage}"] = count
        count += len(blocks)
    for stack in ("blocks", "class_blocks"):
        if hasattr(parts, stack):
            starts[stack] = count
            count += len(getattr(parts, stack))
    return {name: _layer(name, starts, count) for name, _ in model.named_parameters()}, count


def _layer(name: str, starts: dict[str, int], last: int) -> int:
    if match := re.match(r"(stages\.\d+|blocks|class_blocks)\.(\d+)\.", name):
        return starts[match[1]] + int(match[2])
    if match := re.match(r"(mergings|poolings|embeddings)\.(\d+)\.", name):
        stage = int(match[2]) + (match[1] in _BETWEEN)
        return starts[f"stages.{stage}"] if stage else 0
    first = name.startswith(("tokenizer.", "positions.", "stem.", "bn.")) or name == "pool.token"
    return 0 if first else last


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
    tokens, temperatures, and whatever a timm model names itself.
    """
    own: Any = getattr(model, "no_weight_decay", set)
    patterns = own()
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim <= 1
        or name.rpartition(".")[2] in _UNDECAYED
        or any(fnmatch(name, pattern) for pattern in patterns)
    }
