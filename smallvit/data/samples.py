"""Images with their labels, before anything is decoded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from smallvit.data.images import Decoded, UnreadableError, decode, read_bytes, to_channels
from smallvit.data.similar import families
from smallvit.data.survey import Survey, digest

Images = tuple[Path, ...] | UInt8[np.ndarray, "N H W C"]


def class_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Class names in order: as numbers if all are whole numbers, else as text."""
    names = set(labels)
    if all(name.removeprefix("-").isdecimal() and name.isascii() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Everything a reader finds in a folder, a table, a file or a named dataset.

    Attributes:
        images: Files, or decoded images.
        names: What each image is called in messages: its path inside the source.
        labels: The class of each image, by name.
        splits: The split of each image; "" where the source does not say.
        classes: Class names in order, where the source gives an order.
        named: Whether classes have names, and are not just numbers.
        notes: What was left out or is odd, one sentence each.
        official: Whether the splits are those of a published benchmark, which stay as they are.
    """

    images: Images
    names: Sequence[str]
    labels: Sequence[str]
    splits: Sequence[str]
    classes: tuple[str, ...] | None = None
    named: bool = True
    notes: tuple[str, ...] = ()
    official: bool = False

    @classmethod
    def of_files(cls, rows: Sequence[tuple[Path, str, str]], root: Path) -> "Source":
        """A source of files from rows of (file, label, split); names are paths below `root`."""
        return cls(
            images=tuple(path for path, _, _ in rows),
            names=[path.relative_to(root).as_posix() for path, _, _ in rows],
            labels=[label for _, label, _ in rows],
            splits=[split for _, _, split in rows],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """The images of one split with their labels.

    Attributes:
        images: Files, or decoded images.
        names: What each image is called in messages.
        labels: The class of each image, by number.
        survey: What is known of each image.
    """

    images: Images = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    labels: Int64[np.ndarray, " N"] = field(repr=False)
    survey: Survey = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Int64[np.ndarray, " n"]) -> "Samples":
        """Some of them, in the order of `indices`."""
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
        """One image at full resolution, if its file is still the one that was surveyed."""
        image = self.images[index]
        if not isinstance(image, Path):
            return to_channels(image, channels)
        data = read_bytes(image)
        if digest(data) != self.survey.digests[index].tobytes():
            raise UnreadableError("it changed after it was first read: start again")
        return to_channels(decode(data), channels)

    def groupings(self, official: bool) -> tuple[UInt8[np.ndarray, "N digest"], ...]:
        """Which images stay together: near duplicates, and where that is too coarse equal ones.

        Args:
            official: Whether they are those of a published benchmark, which are divided as everyone
                does, also where they have duplicates.
        """
        digests = self.survey.digests
        return digests if official else families(digests, self.survey.thumbs), digests
