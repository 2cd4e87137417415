"""`Predictor`: decoded images to probabilities, whatever file the model is in.

`predict` puts any number of image files through one, in order and in little memory.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, UInt8
from PIL.Image import Image

from smallvit.arguments import Positive, checked, described
from smallvit.data.images import UnreadableError, as_decoded, decode, read_bytes
from smallvit.data.parallel import spread
from smallvit.evaluation import flip_average
from smallvit.evaluation.checks import check_logits
from smallvit.files import Found, images_in
from smallvit.formats import check_trust, format_of
from smallvit.formats.loaded import Forward, eager
from smallvit.runs.card import Card
from smallvit.text import counted

if TYPE_CHECKING:
    from torch import nn

    from smallvit.runs.folder import Run

AnyImage = Image | np.ndarray
"""`Decoded`, for sequences of images whose shapes differ."""

_CHUNK = 2  # images that a thread decodes at a time


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
                code, has learned without labels, or there is no such device.
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
        from smallvit.training.objective import unlabelled

        run = Run.open(source)
        if reason := unlabelled(run.config, run.folder):
            raise ValueError(reason)
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
        pixels = []
        for number, image in enumerate(images):
            try:
                pixels.append(self.card.prepare(as_decoded(image)))
            except UnreadableError as error:
                raise UnreadableError(f"image {number}: {error}") from error
        return self.logits_of_prepared(np.stack(pixels), flip=flip)

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
        if logits.shape != (len(pixels), len(self.classes)):
            raise ValueError(
                f"the model gives {logits.shape} numbers for {counted(len(pixels), 'image')}, and "
                f"its description names {counted(len(self.classes), 'class', 'classes')}: the file "
                "is damaged or was changed; export it again"
            )
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


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was predicted for one file.

    Attributes:
        path: The file.
        error: Why there is no prediction, as the rest of "PATH: …"; empty where there is one.
        classes: The most probable classes, the most probable first.
        probabilities: Calibrated, one per class.
    """

    path: str
    error: str = ""
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()


@checked
def predict(
    source: "str | os.PathLike[str] | Run | Predictor",
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    top: Positive = 5,
    flip: bool = False,
    batch_size: Positive = 32,
    device: str = "auto",
    trust: bool = False,
    progress: bool = False,
) -> Iterator[Row]:
    """Predicts the classes of image files.

    Rows come in the order of the files, one per file. A file that cannot be read, a path that does
    not exist and a folder or pattern without images become rows with an error. Decoding runs in
    threads ahead of the model, and only the next few images are held in memory.

    Args:
        source: A run folder, a file or folder of `export`, or a predictor.
        paths: Files, folders, patterns, and "-" for standard input; see `smallvit.files.images_in`.
        top: How many classes a row has, or all if there are fewer.
        flip: Whether to average the probabilities with those of each mirror image.
        batch_size: Images per forward pass.
        device: auto, cpu, cuda or mps; auto is a GPU if there is one.
        trust: Whether a .pt2 file, which can hold code, may be opened.
        progress: Whether to show a bar.

    Raises:
        ValueError: The source is not a model, or a number is out of range.
    """
    predictor = Predictor.open(source, device, trust=trust)
    return _rows(predictor, images_in(paths), top, flip, batch_size, progress)


def _rows(
    predictor: Predictor,
    files: Iterator[Found],
    top: int,
    flip: bool,
    batch_size: int,
    progress: bool,
) -> Iterator[Row]:
    card = predictor.card

    def prepare(file: Found) -> tuple[Row, np.ndarray | None]:
        if file.error:
            return Row(path=file.path, error=str(file.error.strerror)), None
        try:
            return Row(path=file.path), card.prepare(decode(read_bytes(Path(file.path))))
        except UnreadableError as error:
            return Row(path=file.path, error=str(error)), None
        except MemoryError:
            return Row(path=file.path, error="there is not enough memory to decode it"), None

    prepared = spread(prepare, files, description="predicting", progress=progress, size=_CHUNK)
    while batch := list(islice(prepared, batch_size)):
        pixels = [image for _, image in batch if image is not None]
        logits = predictor.logits_of_prepared(np.stack(pixels), flip=flip) if pixels else None
        probabilities = iter(() if logits is None else card.probabilities(logits))
        for row, image in batch:
            if image is None:
                yield row
                continue
            shares = next(probabilities)
            best = np.argsort(-shares, kind="stable")[:top]  # of equals the first
            classes = tuple(card.classes[k] for k in best)
            yield replace(row, classes=classes, probabilities=tuple(shares[best].tolist()))
