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
        path: The file, as it was found.
        error: Why there is no prediction, as the rest of "PATH: …"; empty where there is one.
        classes: The most probable classes, the most probable first.
        probabilities: Of these, calibrated.
    """

    path: str
    error: str = ""
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()


class _Seen(NamedTuple):
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

    Rows come in the order of the files, one for each. A file that cannot be read, a path that is
    not there and a folder or pattern without images become rows with an error. Decoding runs in
    threads ahead of the model, and only the next few images are held in memory.

    Args:
        source: A run folder, an .onnx or .pt2 file of `export`, or a predictor.
        paths: Files; folders, which are searched at any depth for names of images; patterns such
            as "photos/**/*.jpg"; and "-" for standard input, a path a line.
        top: How many classes a row has, or all if there are fewer.
        flip: Asks for the mirror image of each image too.
        batch_size: Images at a time.
        device: auto, cpu, cuda or mps; auto is a GPU if there is one.
        progress: Whether to show a bar.

    Raises:
        ValueError: The source is no model, or a number is out of range.
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
    def read(file: Found) -> _Seen:
        if file.error:
            return _Seen(file.path, file.error.strerror)
        try:
            pixels = predictor.prepare(decode(read_bytes(Path(file.path))))
        except UnreadableError as error:
            return _Seen(file.path, str(error))
        except MemoryError:
            return _Seen(file.path, "there is not enough memory to decode it")
        return _Seen(file.path, pixels=pixels)

    looked = spread(read, files, description="predicting", progress=progress, size=_CHUNK)
    while batch := list(islice(looked, batch_size)):
        pixels = [seen.pixels for seen in batch if seen.pixels is not None]
        answers = iter(_best(predictor, pixels, top, flip) if pixels else ())
        for seen in batch:
            if seen.pixels is None:
                yield Row(path=seen.path, error=seen.error)
            else:
                classes, probabilities = next(answers)
                yield Row(path=seen.path, classes=classes, probabilities=probabilities)


def _best(
    predictor: Predictor, pixels: list[UInt8[np.ndarray, "h w C"]], top: int, flip: bool
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
    """The most probable classes of each image; of equals the first."""
    shares = predictor.probabilities(predictor.ask(np.stack(pixels), flip=flip))
    order = np.argsort(-shares, axis=1, kind="stable")[:, :top]
    for places, share in zip(order, shares, strict=True):
        yield tuple(predictor.classes[k] for k in places), tuple(share[places].tolist())
