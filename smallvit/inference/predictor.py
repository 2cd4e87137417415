"""`Predictor`: decoded images to probabilities, whatever file the model is in."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, UInt8
from PIL.Image import Image

from smallvit.arguments import checked, described
from smallvit.data.images import UnreadableError, as_decoded
from smallvit.evaluation import flip_average
from smallvit.evaluation.checks import check_logits
from smallvit.formats import check_trust, format_of
from smallvit.formats.loaded import Forward, eager
from smallvit.runs.card import Card

if TYPE_CHECKING:
    from torch import nn

    from smallvit.runs.folder import Run

AnyImage = Image | np.ndarray
"""`Decoded`, for sequences of images whose shapes differ."""


@dataclass(frozen=True)
class Predictor:
    """A trained model that takes decoded images. `Predictor.open` makes one.

    Images are prepared one by one with `card.prepare`, so they may differ in size, and a run, its
    .onnx and its .pt2 see the same bytes. Several threads may use it at once.

    Attributes:
        card: What goes with the weights: classes, image size, temperature and so on.
        forward: From prepared images to logits.
        model: The PyTorch model; None for an exported graph.
    """

    card: Card
    forward: Forward
    model: "nn.Module | None" = None

    @classmethod
    @checked
    def open(
        cls,
        source: "str | os.PathLike[str] | Run | Predictor",
        device: str = "auto",
        *,
        trust: bool = False,
    ) -> "Predictor":
        """Loads a run folder, or a file or folder of `export`.

        Args:
            source: The folder or file; a predictor is returned as it is.
            device: auto, cpu, cuda or mps; auto is a GPU if there is one.
            trust: Whether code in the file may run. Only .pt2 files can hold any, and they are
                refused without it.

        Raises:
            ValueError: It is none of them, is damaged, was written by a newer version, may run
                code, or there is no such device.
            ImportError: It needs a package that is not installed.
        """
        if isinstance(source, Predictor):
            return source
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            if record := format_of(path):
                if not trust:
                    check_trust(path, record)
                return cls(*record.code.load(path, device))
        from smallvit.runs.folder import Run

        run = Run.open(source)
        run.warn_of_rest()
        return cls(*eager(run.card, run.model(), device))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the probabilities."""
        return self.card.classes

    def predict(
        self, images: Sequence[AnyImage], *, flip: bool = False
    ) -> Float32[np.ndarray, "N K"]:
        """Calibrated probabilities of decoded images of any sizes; see `logits`."""
        return self.card.probabilities(self.logits(images, flip=flip))

    def logits(
        self, images: Sequence[AnyImage], *, flip: bool = False
    ) -> Float32[np.ndarray, "N K"]:
        """Logits of decoded images of any sizes.

        Args:
            images: Pillow's images, or arrays (see `smallvit.data.images.as_decoded`): each is
                taken for what its file would be. They may differ in size.
            flip: Whether to average the probabilities with those of each mirror image. The result
                is then the logarithm of the mean, as in `evaluate`.

        Raises:
            ValueError: An image has channels that the model cannot take, no pixels, or values
                without a fixed range, or the logits are not finite.
            TypeError: It is not a list of images.
        """
        _check_several(images)
        if not len(images):
            return np.empty((0, len(self.classes)), np.float32)
        pixels = [self._prepare(number, image) for number, image in enumerate(images)]
        return self.logits_of_prepared(np.stack(pixels), flip=flip)

    def _prepare(self, number: int, image: AnyImage) -> UInt8[np.ndarray, "h w C"]:
        try:
            return self.card.prepare(as_decoded(image))
        except UnreadableError as error:
            raise UnreadableError(f"image {number}: {error}") from error

    def logits_of_prepared(
        self, pixels: UInt8[np.ndarray, "N h w C"], *, flip: bool = False
    ) -> Float32[np.ndarray, "N K"]:
        """`logits` of images that went through `card.prepare` already."""
        shape = (*self.card.image_size, self.card.channels)
        if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != shape or pixels.dtype != "u1":
            sides = ", ".join(map(str, shape))
            raise ValueError(f"pixels is {described(pixels)}: expected are bytes (N, {sides})")
        if flip:
            return flip_average(self.logits_of_prepared, pixels, axis=2)
        logits = self.forward(np.ascontiguousarray(pixels))
        check_logits(logits)
        return logits


def _check_several(images: Any) -> None:
    """Refuses one image where several are expected; its rows would be taken for grey images."""
    if isinstance(images, np.ndarray) and images.ndim != 4 and images.size:
        raise ValueError(
            f"images has the shape {images.shape}: expected is a list of images, or one array of "
            "(images, rows, columns, channels); a single image is [image]"
        )
    if not isinstance(images, np.ndarray | Sequence) or isinstance(images, str | bytes):
        raise TypeError(
            f"images is a {type(images).__name__}: expected is a list of images; a single image is "
            "[image], and smallvit.predict takes files"
        )
