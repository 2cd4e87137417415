"""What opening a model gives: its card, and the model as a function. Needs no PyTorch."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, UInt8

from smallvit.runs.card import Card

if TYPE_CHECKING:
    from torch import nn

Forward = Callable[[UInt8[np.ndarray, "B h w C"]], Float32[np.ndarray, "B K"]]
"""From prepared images (`Card.prepare`) to logits."""

Loaded = tuple[Card, Forward, Any]
"""What a predictor is made of; the last is the PyTorch model, or None for an exported graph."""


def coloured(pixels: UInt8[np.ndarray, "B h w C"]) -> UInt8[np.ndarray, "B h w c"]:
    """Exported graphs take colour; equal red, green and blue are exactly that grey there."""
    return np.repeat(pixels, 3, axis=3) if pixels.shape[3] == 1 else pixels


def eager(card: Card, model: "nn.Module", device: str) -> Loaded:
    """A PyTorch model, on a device."""
    from smallvit.devices import choose_device
    from smallvit.evaluation import logits_of

    chosen = choose_device(device)
    model.to(chosen)

    def forward(pixels: UInt8[np.ndarray, "B h w C"]) -> Float32[np.ndarray, "B K"]:
        planes, size = np.moveaxis(pixels, 3, 1), len(pixels)
        return logits_of(
            model, planes, mean=card.mean, std=card.std, device=chosen, batch_size=size
        )

    return card, forward, model
