"""`predict`: any number of image files to rows, in order and in little memory."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smallvit.arguments import Positive, checked
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
