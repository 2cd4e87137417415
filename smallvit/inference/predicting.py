"""`predict`: any number of image files to rows, in order and in little memory."""

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import UInt8

from smallvit.data.images import SUFFIXES, UnreadableError, decode, read_bytes
from smallvit.data.parallel import spread
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
    listed = [paths] if isinstance(paths, str | os.PathLike) else paths
    found = (seen for path in listed for seen in find_images(os.fspath(path)))
    return _rows(predictor, found, top, flip, batch_size, progress)


def _rows(
    predictor: Predictor,
    found: Iterator[_Seen],
    top: int,
    flip: bool,
    batch_size: int,
    progress: bool,
) -> Iterator[Row]:
    def look(seen: _Seen) -> _Seen:
        if seen.error:
            return seen
        try:
            pixels = predictor.prepare(decode(read_bytes(Path(seen.path))))
        except UnreadableError as error:
            return _Seen(seen.path, str(error))
        except MemoryError:
            return _Seen(seen.path, "there is not enough memory to decode it")
        return _Seen(seen.path, pixels=pixels)

    looked = spread(look, found, description="predicting", progress=progress, size=_CHUNK)
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


def find_images(path: str) -> Iterator[_Seen]:
    """The files that a path, folder, pattern or "-" stands for."""
    if path == "-":
        for line in sys.stdin.buffer:  # names of files need not be text
            if name := os.fsdecode(line).rstrip("\r\n"):
                yield _Seen(name)
        return
    if os.path.isdir(path):
        found = _below(path)
    elif glob.has_magic(path) and not os.path.lexists(path):
        # Sorted, so that rows have the same order everywhere.
        matches = sorted(glob.glob(path, recursive=True))
        found = (_Seen(match) for match in matches if not os.path.isdir(match))
    else:
        found = iter([_Seen(path)])
    empty = True
    for seen in found:
        empty = False
        yield seen
    if empty:
        is_folder = os.path.isdir(path)
        yield _Seen(path, "it holds no images" if is_folder else "no file matches this pattern")


def _below(folder: str) -> Iterator[_Seen]:
    """Every image at any depth, links followed; folders that cannot be listed are errors."""
    trouble: list[OSError] = []
    visited: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, onerror=trouble.append, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        try:
            status = os.stat(place)
        except OSError as vanished:
            trouble.append(vanished)
            continue
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()  # a link back to a folder above, or a second link to the same one
            continue
        visited.add((status.st_dev, status.st_ino))
        for name in sorted(files):
            if os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith("."):
                yield _Seen(os.path.join(place, name))
    for error in trouble:
        yield _Seen(os.fspath(error.filename), f"it cannot be listed: {error.strerror}")
