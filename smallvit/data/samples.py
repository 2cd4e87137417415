"""Images with their labels, before anything is decoded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from smallvit.data.images import Decoded, UnreadableError, decode, read_bytes, to_channels
from smallvit.data.survey import Survey, digest

SPLITS = ("train", "val", "test")
_SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}

Images = tuple[Path, ...] | UInt8[np.ndarray, "N H W C"]


def split_name(text: str) -> str | None:
    """train, val or test for the names people give them."""
    return _SPLIT_NAMES.get(text.strip().lower())


def class_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Class names in order: as numbers if all are whole numbers, else as text."""
    names = set(labels)
    if all(name.removeprefix("-").isdecimal() and name.isascii() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What a source holds.

    Attributes:
        images: Files, or decoded images.
        names: What each image is called in messages: its path inside the source.
        labels: The class of each, by name.
        splits: The split of each; "" where the source does not say.
        classes: Class names in order, where the source gives one.
        named: Whether class names were given, and are not just numbers of classes.
        notes: What was left out or is odd, a sentence each.
        official: Whether the splits are a published benchmark's, which nobody should mend.
    """

    images: Images
    names: Sequence[str]
    labels: Sequence[str]
    splits: Sequence[str]
    classes: tuple[str, ...] | None = None
    named: bool = True
    notes: tuple[str, ...] = ()
    official: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Items:
    """The images of one split.

    Attributes:
        images: Files, or decoded images.
        names: What each image is called in messages.
        labels: The class of each, by number.
        survey: What is known of each.
    """

    images: Images = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    labels: Int64[np.ndarray, " N"] = field(repr=False)
    survey: Survey = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Int64[np.ndarray, " n"]) -> "Items":
        """Some of them, in the order asked for."""
        images = self.images
        return replace(
            self,
            images=tuple(images[i] for i in indices)
            if isinstance(images, tuple)
            else images[indices],
            names=tuple(self.names[i] for i in indices),
            labels=self.labels[indices],
            survey=self.survey.select(indices),
        )

    def read(self, index: int, channels: int) -> Decoded:
        """One image at full resolution, as it was when it was first looked at."""
        image = self.images[index]
        if not isinstance(image, Path):
            return to_channels(image, channels)
        data = read_bytes(image)
        if digest(data) != self.survey.digests[index].tobytes():
            raise UnreadableError("it changed after it was first looked at: start again")
        return to_channels(decode(data), channels)
