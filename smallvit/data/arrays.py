""".npz files of decoded images, and folders of train.npz, val.npz and test.npz."""

import math
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile, ZipInfo, is_zipfile

import numpy as np
from jaxtyping import UInt8

from smallvit.data.samples import Source
from smallvit.data.sources import SPLITS, by_split, split_names
from smallvit.text import counted, shown, some

_NAMES = ("images", "labels", "split", "classes", "class_names")
_PIECE = 2**24  # bytes that are read at a time
_LAYOUT = (
    "expected are the arrays images (uint8, N×H×W or N×H×W×channels), labels (N whole numbers or "
    "names) and optionally split (N names) and classes (names)"
)


def read_arrays(path: Path) -> Source:
    """Reads an .npz file, or a folder of one file per split."""
    if path.is_dir():
        files = by_split(sorted(path.glob("*.npz")), path)
        parts = {split: _read(files[split]) for split in SPLITS if split in files}
    else:
        parts = {"": _read(path)}
    first = next(iter(parts.values()))
    for split, part in parts.items():
        if part["images"].shape[1:] != first["images"].shape[1:]:
            raise ValueError(
                f"the images of {shown(path)}: {split} have the shape {part['images'].shape[1:]}, "
                f"others {first['images'].shape[1:]}: save all in one shape"
            )
    orders = [part["classes"] for part in parts.values() if part["classes"] is not None]
    if any(order != orders[0] for order in orders):
        raise ValueError(
            f"the files of {shown(path)} have different classes: save the same list in all of them"
        )
    classes = orders[0] if orders else None
    labelled = [_labels(part["labels"], classes, path) for part in parts.values()]
    labels = [label for part, _ in labelled for label in part]
    if "" in labels:
        raise ValueError(
            f"{counted(labels.count(''), 'image')} of {shown(path)} has an empty label: fill it "
            "in, or leave the image out"
        )
    splits = [
        split or cell
        for split, part in parts.items()
        for cell in part["split"] or [""] * len(part["images"])
    ]
    return Source(
        images=np.concatenate([part["images"] for part in parts.values()])
        if len(parts) > 1
        else first["images"],
        names=[
            f"{split or path.stem}[{i}]"
            for split, part in parts.items()
            for i in range(len(part["images"]))
        ],
        labels=labels,
        splits=splits,
        classes=classes,
        named=classes is not None or not all(numbered for _, numbered in labelled),
    )


def _read(path: Path) -> dict[str, Any]:
    """The arrays of one file, each checked by itself."""
    if not is_zipfile(path):
        raise ValueError(f"{shown(path)} is not an .npz file: {_LAYOUT}")
    try:
        with ZipFile(path) as archive:
            members = {
                each.filename.removesuffix(".npy").lower(): each for each in archive.filelist
            }
            arrays = {
                name: _member(archive, item, f"{name} of {shown(path)}")
                for name, item in members.items()
                if name in _NAMES
            }
    except ValueError:
        raise  # it says what is wrong
    except Exception as error:  # pylint: disable=broad-exception-caught
        # Members may be encrypted, or damaged in a way of their compression's own.
        raise ValueError(f"{shown(path)} cannot be read as .npz: {error}") from error
    missing = [name for name in ("images", "labels") if name not in arrays]
    if missing:
        raise ValueError(
            f"{shown(path)} has no {' and no '.join(missing)}, but "
            f"{some(members, 6) or 'nothing'}: {_LAYOUT}"
        )
    images = _images(arrays["images"], path)
    for name in ("labels", "split"):
        shape = arrays[name].shape if name in arrays else (len(images),)
        if shape != (len(images),):
            raise ValueError(
                f"{name} of {shown(path)} has the shape {shape}; for {len(images)} images expected "
                f"is ({len(images)},)"
            )
    classes = arrays.get("classes", arrays.get("class_names"))
    if classes is not None and classes.ndim != 1:
        raise ValueError(
            f"classes of {shown(path)} has the shape {classes.shape}; expected is a list of names, "
            "such as numpy.array(['cat', 'dog'])"
        )
    return {
        "images": images,
        "labels": arrays["labels"],
        "split": split_names(_texts(arrays["split"]), path) if "split" in arrays else None,
        "classes": None if classes is None else tuple(map(shown, _texts(classes))),
    }


def _member(archive: ZipFile, item: ZipInfo, title: str) -> np.ndarray:
    """One array, whose header is read before memory is taken for what it promises."""
    with archive.open(item) as file:
        try:
            version = np.lib.format.read_magic(file)
        except ValueError as error:
            raise ValueError(f"{title} is not an array of NumPy's: {_LAYOUT}") from error
        try:
            if version == (1, 0):
                shape, by_column, kind = np.lib.format.read_array_header_1_0(file)
            else:
                shape, by_column, kind = np.lib.format.read_array_header_2_0(file)
        except Exception as error:  # pylint: disable=broad-exception-caught
            # Garbage stops NumPy, the tokenizer or the parser, each in its own way.
            raise ValueError(f"{title} is damaged: its header cannot be read") from error
        if kind.hasobject:
            raise ValueError(
                f"{title} holds Python objects, and reading them could run code: save a plain "
                f"array; {_LAYOUT}"
            )
        promised, held = math.prod(shape) * kind.itemsize, item.file_size - file.tell()
        if promised != held or min(shape, default=0) < 0:
            raise ValueError(
                f"{title} is damaged: its header says {promised:,} bytes, shaped {shape}, and "
                f"{held:,} are there"
            )
        try:
            data = np.empty(promised, np.uint8)
        except (MemoryError, ValueError) as error:
            raise ValueError(
                f"{title} needs {promised / 1e9:,.1f} GB of memory, and there is not so much: save "
                "smaller images, or a folder of image files, which are read one by one"
            ) from error
        _fill(data, file)
    try:
        return np.ndarray(shape, kind, data, order="F" if by_column else "C")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{title} is damaged: no array is shaped {shape}") from error


def _fill(data: UInt8[np.ndarray, " N"], file: IO[bytes]) -> None:
    """Reads all bytes, in large pieces: after each it may have to wait for busy threads."""
    at = 0
    while at < len(data):
        piece = file.read(min(_PIECE, len(data) - at))
        if not piece:
            raise EOFError(f"it ends after {at:,} of {len(data):,} bytes")
        data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)


def _texts(cells: np.ndarray) -> list[str]:
    """Names, or numbers as names; bytes are taken for UTF-8."""
    if cells.dtype.kind == "S":
        return [cell.decode("utf-8", "surrogateescape") for cell in cells.tolist()]
    return [str(cell) for cell in cells.tolist()]


def _images(images: np.ndarray, path: Path) -> UInt8[np.ndarray, "N H W C"]:
    if images.dtype != np.uint8:
        raise ValueError(
            f"images of {shown(path)} are {images.dtype}; expected is uint8: scale them to "
            "0…255 and save images.astype(numpy.uint8)"
        )
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(f"images of {shown(path)} have the shape {images.shape}: {_LAYOUT}")
    if images.shape[1] in (1, 3) and images.shape[3] > 4:
        raise ValueError(
            f"images of {shown(path)} have the shape {images.shape}, channels first: channels "
            "come last here; save images.transpose(0, 2, 3, 1)"
        )
    return images


def _labels(
    labels: np.ndarray, classes: tuple[str, ...] | None, path: Path
) -> tuple[list[str], bool]:
    """Labels as names, and whether they were numbers."""
    if labels.dtype.kind in "US":
        return [shown(name) for name in _texts(labels)], False
    if labels.dtype.kind not in "iu":
        blank = (
            " with NaN among them" if labels.dtype.kind == "f" and np.isnan(labels).any() else ""
        )
        raise ValueError(
            f"labels of {shown(path)} are {labels.dtype}{blank}; expected are whole numbers or "
            "names: save labels.astype(numpy.int64)"
        )
    if classes is None:
        return [str(label) for label in labels.tolist()], True
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(
            f"labels of {shown(path)} go from {labels.min()} to {labels.max()}, but classes "
            f"has {len(classes)} names, numbered from 0: correct labels or classes"
        )
    return [classes[label] for label in labels.tolist()], True
