"""Numbers inside a model: how far a token sees, how sharp and how even its attention is."""

from typing import Any

import numpy as np
from jaxtyping import Float, Float64
from torch import nn

from smallvit.sizes import Size

EVEN = 0.99
"""Evenness from which a map shows no place: without training all families but CaiT have more."""

SAYS_EVEN = "attention is spread evenly over the image, so it shows no place"
SAYS_WHOLE = "a token's receptive field is as large as the image, so attention shows no place"


def receptive_field(model: nn.Module) -> int | None:
    """The side, in pixels, of what one token sees as it leaves the tokenizer.

    It is P for patches of P pixels and P + 2·shift with SPT: 2P at the usual shift of half a
    patch. For convolutions, pools and soft splits it grows as r + (k − 1)·j, with j the stride so
    far. T2T's transformers between the splits are left out: through them a token sees everything.
    At the border of the image it is cut off.

    Returns:
        The side, or None for models that are not ours.
    """
    return getattr(model, "receptive_field", None)


def evenness(maps: Float[np.ndarray, "*B h w"]) -> Float64[np.ndarray, "*B"]:
    """How evenly a map is spread: the share of its cells that would hold as much if all were equal.

    It is the exponential of the entropy over the number of cells: 1 where all cells are equal, and
    where all are zero; one over their number where one cell has everything.
    """
    cells = maps.reshape(*maps.shape[:-2], -1).astype(np.float64)
    total = cells.sum(-1, keepdims=True)
    shares = np.where(total > 0, cells / np.where(total > 0, total, 1), 1 / cells.shape[-1])
    logs = np.log(np.where(shares > 0, shares, 1))
    return np.asarray(np.exp(-(shares * logs).sum(-1)) / cells.shape[-1])


def why_silent(model: nn.Module, size: Size, rollout: Float[np.ndarray, "B h w"]) -> list[str]:
    """Why the attention map of each image shows no place; empty texts where it shows one.

    Args:
        model: The model.
        size: Height and width of its images.
        rollout: Their attention rollout, on any scale.
    """
    side = receptive_field(model)
    if side is not None and side >= max(size):
        return [SAYS_WHOLE] * len(rollout)
    return [SAYS_EVEN if each >= EVEN else "" for each in evenness(rollout)]


def about_field(model: nn.Module, size: Size) -> str:
    """How much of the image a token sees, in a sentence; empty for models that are not ours."""
    side, (height, width) = receptive_field(model), size
    if side is None:
        return ""
    return f"a token sees {side}×{side} of {height}×{width} pixels before any attention"


def temperatures(model: nn.Module) -> list[list[float]]:
    """The temperatures LSA has learned: one row per layer, one number per head.

    Scores are divided by τ·√head_dim, with τ = 1 where training began: below 1 attention has become
    sharper than plain attention, above it softer. In T2T's token transformers, which begin at the
    width of their tokens, that takes the role of head_dim.

    Returns:
        Nothing for a model without learned temperatures.
    """
    rows = []
    for part in model.modules():
        layer: Any = part
        if hasattr(part, "initial_scale") and isinstance(layer.scale, nn.Parameter):
            rows.append((layer.initial_scale / layer.scale.detach().double()).tolist())
    return rows
