"""`Shipped`: a trained model with its preprocessing and its temperature, as one module."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Float32, UInt8
from torch import Tensor, nn
from torch.export import ExportedProgram

from smallvit.augment import normalise
from smallvit.data.tensors import fit_tensor
from smallvit.runs.card import Card

SIDES = ("batch", "height", "width")
"""Names of the sides of a graph's input that may have any length."""

Outputs = Callable[
    [UInt8[np.ndarray, "B H W C"]], tuple[Float32[np.ndarray, "B K"], Float32[np.ndarray, "B K"]]
]
"""A module or graph as a function: decoded images to logits and probabilities."""

Check = Callable[[Outputs], None]
"""Refuses, with a ValueError, what does not give the outputs of the run's model."""

_GREY = (19595, 38470, 7471)
"""Pillow's weights of red, green and blue, in 65536ths."""


class Shipped(nn.Module):
    """Decoded images of any one size to logits and calibrated probabilities.

    What happens to an image in here is, byte for byte, what `Card.prepare` and the cache do to it.

    Args:
        model: From normalised images to logits.
        card: What goes with it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, card: Card) -> None:
        super().__init__()
        self.model = model
        self.size, self.fit, self.channels = card.image_size, card.fit, card.channels
        self.temperature = card.temperature
        # Buffers, so that an exported graph can be moved to another device.
        self.register_buffer("mean", torch.tensor(card.mean))
        self.register_buffer("std", torch.tensor(card.std))

    @property
    def input_channels(self) -> int:
        """Channels of the images it takes: a model of grey images takes colour."""
        return 3 if self.channels == 1 else self.channels

    def forward(
        self, images: UInt8[Tensor, "B H W C"]
    ) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
        """Logits and probabilities."""
        planes = images.permute(0, 3, 1, 2)
        if self.channels == 1:
            planes = grey(planes)
        normalised = normalise(fit_tensor(planes, self.size, self.fit), self.mean, self.std)
        logits = self.model(normalised).float()
        return logits, (logits / self.temperature).softmax(1)


def grey(planes: UInt8[Tensor, "B 3 H W"]) -> UInt8[Tensor, "B 1 H W"]:
    """Colour to grey as Pillow does it."""
    weights = torch.tensor(_GREY, dtype=torch.float64, device=planes.device)[:, None, None]
    sums = (planes.double() * weights).sum(1, keepdim=True)
    return torch.floor(sums / 65536 + 0.5).to(torch.uint8)


def outputs_of(module: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Outputs:
    """A `Shipped`, or a graph of one, as a function of arrays."""

    @torch.no_grad()
    def outputs(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits, probabilities = module(torch.from_numpy(images))
        return logits.numpy(), probabilities.numpy()

    return outputs


def traced(shipped: Shipped) -> ExportedProgram:
    """The module as a graph for batches of any size and images of any shape."""
    # Sizes that the exporter cannot mistake for constants or for each other.
    images = torch.zeros((3, 37, 53, shipped.input_channels), dtype=torch.uint8)
    dynamic = {axis: torch.export.Dim(name) for axis, name in enumerate(SIDES)}
    with torch.no_grad():
        return torch.export.export(shipped.eval(), (images,), dynamic_shapes=(dynamic,))
