""".npz files of decoded images, and folders of train.npz, val.npz and test.npz."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from jaxtyping import UInt8

from smallvit.data.samples import SPLITS, Found, split_name
from smallvit.text import shown

_LAYOUT = (
    "expected the arrays images (uint8, N×H×W or N×H×W×channels), labels (N whole numbers or "
    "names) and, if you like, split (N names) and classes (names)"
)


def split_files(folder: Path) -> dict[str, Path]:
    """train.npz, val.npz (or valid.npz) and test.npz of a folder, as far as they are there."""
    files = sorted(folder.glob("*.npz"))
    return {name: file for file in files if (name := split_name(file.stem)) is not None}


def read_arrays(path: Path) -> Found:
    """Finds the images of a .npz file, or of a folder of one for each split."""
    if path.is_dir():
        parts = {split: _read(file) for split, file in split_files(path).items()}
        parts = {split: parts[split] for split in SPLITS if split in parts}
    else:
        parts = {"": _read(path)}
    first = next(iter(parts.values()))
    for split, part in parts.items():
        if part["images"].shape[1:] != first["images"].shape[1:]:
            raise ValueError(
                f"the images of {shown(path)}: {split} are shaped {part['images'].shape[1:]}, "
                f"others {first['images'].shape[1:]}: bring them to one shape"
            )
    names = [part["classes"] for part in parts.values() if part["classes"] is not None]
    if any(one != names[0] for one in names):
        raise ValueError(f"the files of {shown(path)} give different classes: give the same in all")
    classes = names[0] if names else None
    pooled = np.concatenate([part["labels"] for part in parts.values()])
    labels, numbered = _labels(pooled, classes, path)
    splits = [
        (split or given)
        for split, part in parts.items()
        for given in (part["split"] or [""] * len(part["images"]))
    ]
    return Found(
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
        named=classes is not None or not numbered,
    )


def _read(path: Path) -> dict[str, Any]:
    """The arrays of one file, each checked by itself."""
    if not is_zipfile(path):
        raise ValueError(f"{shown(path)} is no .npz file: {_LAYOUT}")
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name.lower(): stored[name] for name in stored.files}
    except (OSError, EOFError, BadZipFile) as error:
        raise ValueError(f"{shown(path)} cannot be read as .npz: {error}") from error
    except ValueError as error:
        raise ValueError(
            f"{shown(path)} holds Python objects, and reading them could run code: "
            f"save plain arrays; {_LAYOUT}"
        ) from error
    missing = [name for name in ("images", "labels") if name not in arrays]
    if missing:
        raise ValueError(
            f"{shown(path)} has no {' and no '.join(missing)}, but "
            f"{', '.join(map(shown, arrays)) or 'nothing'}: {_LAYOUT}"
        )
    images = _images(arrays["images"], path)
    for name in ("labels", "split"):
        shape = arrays[name].shape if name in arrays else (len(images),)
        if shape != (len(images),):
            raise ValueError(
                f"{name} of {shown(path)} is shaped {shape} where ({len(images)},) belongs to "
                f"{len(images)} images"
            )
    classes = arrays.get("classes", arrays.get("class_names"))
    return {
        "images": images,
        "labels": arrays["labels"],
        "split": _splits(arrays["split"], path) if "split" in arrays else None,
        "classes": None if classes is None else tuple(shown(str(name)) for name in classes),
    }


def _images(images: np.ndarray, path: Path) -> UInt8[np.ndarray, "N H W C"]:
    if images.dtype != np.uint8:
        raise ValueError(
            f"images of {shown(path)} are {images.dtype} where uint8 is expected: scale them to "
            "0…255 and save images.astype(numpy.uint8)"
        )
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(f"images of {shown(path)} are shaped {images.shape}: {_LAYOUT}")
    if images.shape[1] in (1, 3) and images.shape[3] > 4:
        raise ValueError(
            f"images of {shown(path)} are shaped {images.shape}, channels first: channels come "
            "last here; save images.transpose(0, 2, 3, 1)"
        )
    return images


def _labels(
    labels: np.ndarray, classes: tuple[str, ...] | None, path: Path
) -> tuple[list[str], bool]:
    """Labels as names, and whether they were numbers."""
    if labels.dtype.kind in "US":
        return [shown(name) for name in labels.astype(np.str_).tolist()], False
    if labels.dtype.kind not in "iu":
        blank = (
            " with NaN among them" if labels.dtype.kind == "f" and np.isnan(labels).any() else ""
        )
        raise ValueError(
            f"labels of {shown(path)} are {labels.dtype}{blank} where whole numbers or names are "
            "expected: save labels.astype(numpy.int64)"
        )
    if classes is None:
        return [str(label) for label in labels.tolist()], True
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(
            f"labels of {shown(path)} go from {labels.min()} to {labels.max()} and there are "
            f"{len(classes)} classes, numbered from 0: which is meant?"
        )
    return [classes[label] for label in labels.tolist()], True


def _splits(cells: np.ndarray, path: Path) -> list[str]:
    names = [split_name(str(cell)) for cell in cells.astype(np.str_)]
    for cell, name in zip(cells, names, strict=True):
        if name is None:
            raise ValueError(
                f"split of {shown(path)} holds {shown(str(cell))!r}: allowed are train, val (or "
                "valid) and test"
            )
    return [name or "" for name in names]
