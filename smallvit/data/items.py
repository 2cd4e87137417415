"""Images with their labels, before anything is decoded, and how names are shown."""

import os
import unicodedata
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


def shown(name: str | os.PathLike[str]) -> str:
    """A name as text that any terminal, page or file can take.

    Names come from strangers: bytes that are no UTF-8 and control characters are escaped.
    """
    text = os.fspath(name)
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else _escape(c) for c in text)
    return "".join(escaped)


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # one byte that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def some(names: Iterable[str | os.PathLike[str]], limit: int = 3) -> str:
    """The first few names of a list, and how many more there are."""
    listed = [shown(name) for name in names]
    more = f" and {len(listed) - limit:,} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more


def counted(count: int, one: str, more: str | None = None) -> str:
    """A number with its noun: 1 image, 2 images."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def folded(name: str) -> str:
    """A name without what the eye or a file system may overlook: case and Unicode form."""
    return unicodedata.normalize("NFC", name).casefold()


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
