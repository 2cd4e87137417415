"""Datasets by name: fashion-mini, torchvision's, and Tiny-ImageNet."""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from smallvit.data import cache
from smallvit.data.arrays import read_arrays
from smallvit.data.folders import read_tiny_imagenet
from smallvit.data.samples import Source
from smallvit.extras import require
from smallvit.files import at_home

_TINY_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
_TINY_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
_DIGITS = tuple("0123456789")
_HALVES = ("train", "test")

Reader = Callable[[Path, bool, str], Source]
"""From the folder of datasets, whether to download, and the variant."""


def default_root() -> Path:
    """Where named datasets are by default: SMALLVIT_DATA, or a folder in the cache folder."""
    return at_home(os.environ.get("SMALLVIT_DATA") or cache.directory() / "datasets")


def is_named(spec: str) -> bool:
    """Whether a source is the name of a dataset, with or without a variant."""
    return spec.partition(":")[0] in NAMED


def read_named(spec: str, root: Path, *, download: bool) -> Source:
    """Reads a dataset by name.

    Args:
        spec: A key of `NAMED`; "flowers102:1020" chooses a variant.
        root: The folder that holds datasets in torchvision's layout.
        download: Whether to download what is missing.

    Raises:
        ValueError: It is missing, or has no such variant.
    """
    name, _, variant = spec.partition(":")
    read, variants = NAMED[name]
    if variant not in ("", *variants):
        known = f"its variants are {', '.join(variants)}" if variants else "it has no variants"
        raise ValueError(f"{name} has no variant {variant!r}: {known}")
    try:
        return read(root, download, variant)
    except (RuntimeError, FileNotFoundError) as error:
        raise ValueError(
            f"{name} is not in {root} ({error}): download it once with download=True "
            "(`--download`), or give the folder that holds it as root (`--root`, SMALLVIT_DATA)"
        ) from error


def _fashion_mini(root: Path, download: bool, variant: str) -> Source:
    with as_file(files("smallvit.data") / "bundled" / "fashion-mini.npz") as path:
        return replace(read_arrays(path), official=True)


def _torchvision(dataset: str, classes: tuple[str, ...] | None = None) -> Reader:
    """The reader of a torchvision dataset that holds its images in memory."""

    def read(root: Path, download: bool, variant: str) -> Source:
        from torchvision import datasets

        halves: tuple[dict[str, Any], ...] = {"train": True}, {"train": False}
        labels = "targets"
        if dataset == "SVHN":
            require("scipy.io", "scipy-datasets", "reading SVHN")
            halves, labels = ({"split": "train"}, {"split": "test"}), "labels"
        parts = [getattr(datasets, dataset)(root, download=download, **half) for half in halves]
        names = classes or tuple(parts[0].classes)
        targets = [np.asarray(getattr(part, labels)) for part in parts]
        return Source(
            images=np.concatenate([_channels_last(np.asarray(part.data)) for part in parts]),
            names=[
                f"{split}[{i}]"
                for split, part in zip(_HALVES, targets, strict=True)
                for i in range(len(part))
            ],
            labels=[names[label] for part in targets for label in part.tolist()],
            splits=[split for split, part in zip(_HALVES, targets, strict=True) for _ in part],
            classes=names,
            official=True,
        )

    return read


def _channels_last(images: np.ndarray) -> np.ndarray:
    if images.ndim == 3:
        return images[..., None]
    return images.transpose(0, 2, 3, 1) if images.shape[1] == 3 else images


def _flowers(root: Path, download: bool, variant: str) -> Source:
    """Flowers-102, of which three benchmarks share the name."""
    require("scipy.io", "scipy-datasets", "reading Flowers-102")
    from torchvision import datasets

    variant = variant or "2040"
    rows = []
    for published, split in _FLOWERS[variant].items():
        part = datasets.Flowers102(root, split=published, download=download)
        rows += [
            (Path(path), part.classes[label], split)
            for path, label in zip(part._image_files, part._labels, strict=True)
        ]
    return replace(
        Source.of_files(rows, rows[0][0].parent),
        classes=tuple(datasets.Flowers102.classes),
        official=variant != "6552",
        notes=(f"Flowers-102 is three benchmarks; this is {_FLOWERS_NOTES[variant]}",),
    )


def _tiny_imagenet(root: Path, download: bool, variant: str) -> Source:
    for folder in (root, root / "tiny-imagenet-200"):
        if (folder / "wnids.txt").is_file():
            return read_tiny_imagenet(folder)
    if not download:
        raise FileNotFoundError("there is no folder tiny-imagenet-200")
    from torchvision.datasets.utils import download_and_extract_archive

    download_and_extract_archive(_TINY_URL, str(root), md5=_TINY_MD5)
    return read_tiny_imagenet(root / "tiny-imagenet-200")


_FLOWERS: dict[str, dict[str, str]] = {
    "1020": {"train": "train", "val": "val", "test": "test"},
    "2040": {"train": "train", "val": "train", "test": "test"},
    "6552": {"train": "", "val": "", "test": ""},
}
_FLOWERS_NOTES = {
    "1020": "the official split: 1,020 training, 1,020 validation and 6,149 test images",
    "2040": "train and val together: 2,040 training and 6,149 test images",
    "6552": "all 8,189 images in a new split, about 6,550 for training and validation as in the "
    "folders that circulate; not comparable with the others",
}
#: The reader of each dataset, and its variants.
NAMED: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "fashion-mini": (_fashion_mini, ()),
    "mnist": (_torchvision("MNIST", _DIGITS), ()),
    "fashion-mnist": (_torchvision("FashionMNIST"), ()),
    "cifar10": (_torchvision("CIFAR10"), ()),
    "cifar100": (_torchvision("CIFAR100"), ()),
    "svhn": (_torchvision("SVHN", _DIGITS), ()),
    "flowers102": (_flowers, tuple(_FLOWERS)),
    "tiny-imagenet": (_tiny_imagenet, ()),
}
