"""Numbers inside a model: how far a token sees, how sharp its attention has become."""

from typing import Any

from torch import nn


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
