"""`predict`: any number of image files to rows, in order and in little memory."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import UInt8

from smallvit.data.images import UnreadableError, decode, read_bytes
from smallvit.data.parallel import spread
from smallvit.files import Found, images_in
from smallvit.inference.predictor import Predictor

if TYPE_CHECKING:
    from smallvit.runs.folder import Run

_CHUNK = 2


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


class _Prepared(NamedTuple):
    path: str
    error: str = ""
    pixels: UInt8[np.ndarray, "h w C"] | None = None


def predict(
    source: "str | os.PathLike[str] | Run | Predictor",
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    top: int = 5,
    flip: bool = False,
    batch_size: int = 32,
    device: str = "auto",
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
        progress: Whether to show a bar.

    Raises:
        ValueError: The source is not a model, or a number is out of range.
    """
    for name, value in (("top", top), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} is {value}: allowed is 1 or more")
    predictor = Predictor.open(source, device)
    return _rows(predictor, images_in(paths), top, flip, batch_size, progress)


def _rows(
    predictor: Predictor,
    files: Iterator[Found],
    top: int,
    flip: bool,
    batch_size: int,
    progress: bool,
) -> Iterator[Row]:
    def prepare(file: Found) -> _Prepared:
        if file.error:
            return _Prepared(file.path, str(file.error.strerror))
        try:
            pixels = predictor.card.prepare(decode(read_bytes(Path(file.path))))
        except UnreadableError as error:
            return _Prepared(file.path, str(error))
        except MemoryError:
            return _Prepared(file.path, "there is not enough memory to decode it")
        return _Prepared(file.path, pixels=pixels)

    prepared = spread(prepare, files, description="predicting", progress=progress, size=_CHUNK)
    while batch := list(islice(prepared, batch_size)):
        pixels = [each.pixels for each in batch if each.pixels is not None]
        predictions = iter(_best(predictor, pixels, top, flip) if pixels else ())
        for each in batch:
            if each.pixels is None:
                yield Row(path=each.path, error=each.error)
            else:
                classes, probabilities = next(predictions)
                yield Row(path=each.path, classes=classes, probabilities=probabilities)


def _best(
    predictor: Predictor, pixels: list[UInt8[np.ndarray, "h w C"]], top: int, flip: bool
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
    """The most probable classes of each image; of equals the first."""
    logits = predictor.logits_of_prepared(np.stack(pixels), flip=flip)
    probabilities = predictor.card.probabilities(logits)
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    for best, row in zip(order, probabilities, strict=True):
        yield tuple(predictor.classes[k] for k in best), tuple(row[best].tolist())
