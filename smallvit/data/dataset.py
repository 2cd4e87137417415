"""`Dataset`: splits of images, their subsets and folds, and their pixels at one size."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from smallvit.arguments import Natural, Positive, check, checked
from smallvit.data import cache
from smallvit.data.decoding import Decoder
from smallvit.data.fit import FILL
from smallvit.data.samples import Samples
from smallvit.data.sources import SPLITS
from smallvit.data.splits import deal, hold_out, keep
from smallvit.files import hash_bytes
from smallvit.sizes import Fit, Size, as_size
from smallvit.text import counted, shown, some


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Images of known classes, in splits.

    Nothing is decoded before `pixels`; images that do not share a size must be `sized` first.

    Attributes:
        source: The folder, file or name it was loaded from.
        classes: Their names; labels are indices of this list.
        splits: Those of train, val and test that there are.
        channels: Channels of every decoded image.
        chosen_size: Height and width of every decoded image; None if that is still open.
        fit: How images of other shapes come to that size.
        seed: Seed of the splits that were held out.
        held_out: The shares of the splits that were held out of the training images, by name; the
            others came with the source.
        named: Whether classes have names, and are not just numbers.
        official: Whether the splits are those of a published benchmark.
        notes: What was left out or is odd, one sentence each.
        dropped: Names of unreadable images that were left out by request.
        normalisation: Mean and standard deviation that stand in for those of the training images.
    """

    source: str
    classes: tuple[str, ...]
    splits: Mapping[str, Samples]
    channels: int
    chosen_size: Size | None = None
    fit: Fit = "letterbox"
    seed: int = 0
    held_out: Mapping[str, float] = field(default_factory=dict)
    named: bool = True
    official: bool = False
    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def __post_init__(self) -> None:
        check("fit", self.fit, Fit)

    @cached_property
    def shared_size(self) -> Size | None:
        """The size that all readable images have; None if there are several."""
        surveys = [samples.survey for samples in self.splits.values()]
        sizes = np.concatenate([survey.sizes[survey.readable] for survey in surveys])
        if not len(sizes) or (sizes != sizes[0]).any():
            return None
        return int(sizes[0, 0]), int(sizes[0, 1])

    @property
    def image_size(self) -> Size:
        """Height and width of every image, once decoded: as chosen, or the one they share.

        Raises:
            ValueError: The images have several sizes, and none was chosen.
        """
        size = self.chosen_size or self.shared_size
        if size is None:
            raise ValueError(
                f"the images of {shown(self.source)} have several sizes: choose one with "
                "load_data(..., image_size=64) or dataset.sized(64); `smallvit train` and "
                "smallvit.plan choose one themselves"
            )
        return size

    def sized(self, image_size: int | Size, fit: Fit | None = None) -> "Dataset":
        """The same with images of that size."""
        return replace(self, chosen_size=as_size(image_size), fit=self.fit if fit is None else fit)

    def normalised(self, mean: Sequence[float], std: Sequence[float]) -> "Dataset":
        """The same with `statistics` that are given, such as those of pretrained weights.

        Raises:
            ValueError: There is not one of each per channel, or a deviation is not above 0.
        """
        if not len(mean) == len(std) == self.channels or min(std) <= 0:
            raise ValueError(
                f"mean is {tuple(mean)} and std {tuple(std)}: expected one of each for the "
                f"{self.channels} channels, and deviations above 0"
            )
        return replace(self, normalisation=(tuple(mean), tuple(std)))

    @property
    def uncut(self) -> "Dataset":
        """The same with the images that a training cuts its crops out of.

        Those of the fit "imagenet" lack their edges. In their place: the images as they are, where
        all have one size and need no shrinking, and otherwise their middle, as large as possible.
        """
        if self.fit != "imagenet":
            return self
        own, size = self.shared_size, self.image_size
        small = own is not None and own[0] <= size[0] and own[1] <= size[1]
        return self.sized(own if own and small else size, "crop")

    def split(self, name: str) -> Samples:
        """The images of a split."""
        check("split", name, str)
        if name not in self.splits:
            known = ", ".join(self.splits)
            raise ValueError(f"{shown(self.source)} has no {name} split, but {known}")
        return self.splits[name]

    def labels(self, split: str) -> Int64[np.ndarray, " N"]:
        """The labels of a split."""
        return self.split(split).labels

    def pixels(self, split: str, *, progress: bool = False) -> UInt8[np.ndarray, "N C H W"]:
        """The decoded images of a split, from the cache or decoded into it.

        Raises:
            ValueError: Some cannot be read; all of them are named.
            OSError: The cache cannot be written.
        """
        samples = self.split(split)
        decoder = Decoder(self.image_size, self.channels, self.fit)
        if not isinstance(samples.images, tuple) and decoder.is_ready(samples):
            return np.ascontiguousarray(samples.images.transpose(0, 3, 1, 2))
        return cache.stored(
            *decoder.entry(samples),
            partial(decoder.decode_all, samples, split, progress),
            {"source": shown(self.source), "split": split, "fit": self.fit},
        )

    def decoding(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """About how many seconds decoding takes here, as a few images tell.

        What is in the cache, or needs no decoding, takes none.
        """
        decoder = Decoder(self.image_size, self.channels, self.fit)
        return decoder.seconds(self.splits.values(), clock)

    @cached_property
    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel over the training split, from 0 to 1.

        With a `normalisation` it is that.
        """
        if self.normalisation is not None:
            return self.normalisation
        pixels = self.uncut.pixels("train")
        total, squares = np.zeros(self.channels), np.zeros(self.channels)
        for start in range(0, len(pixels), 256):
            cache.refuse_truncated(pixels)
            part = np.asarray(pixels[start : start + 256]).astype(np.float64)
            total += part.sum((0, 2, 3))
            squares += np.square(part).sum((0, 2, 3))
        count = pixels.size / self.channels
        mean = total / count
        std = np.sqrt(np.maximum(squares / count - mean**2, 1))  # at least one grey level
        return tuple((mean / 255).tolist()), tuple((std / 255).tolist())

    @cached_property
    def fingerprint(self) -> str:
        """A hash of classes, splits, labels and images, the same on every machine."""
        parts = [repr(self.classes).encode()]
        for name in SPLITS:
            if name in self.splits:
                samples = self.splits[name]
                parts += [f"\0{name}\0".encode(), samples.survey.digests.tobytes()]
                parts.append(samples.labels.astype("<i8").tobytes())
        return hash_bytes(b"".join(parts))

    @property
    def tested(self) -> str | None:
        """A hash of the images of the test split, whatever their order; None if there is none."""
        return _hash_of(self.splits["test"]) if "test" in self.splits else None

    def record(self) -> dict[str, Any]:
        """What a run records of its data, as plain values."""
        return {
            "source": shown(self.source),
            "classes": list(self.classes),
            "counts": {name: len(samples) for name, samples in self.splits.items()},
            "made": dict(self.held_out),
            "seed": self.seed,
            "image_size": list(self.image_size),
            "channels": self.channels,
            "fit": self.fit,
            "fill": FILL,
            "fingerprint": self.fingerprint,
            "contents": _hash_of(*self.splits.values()),
            "tested": self.tested,
            "dropped": [shown(name) for name in self.dropped],
        }

    def readable(self) -> "Dataset":
        """The same without the images that cannot be read; `dropped` names them.

        A split of which nothing is left is left out, and a note says so.

        Raises:
            ValueError: No training image can be read, or no image at all.
        """
        left: dict[str, Samples] = {}
        bad: list[str] = []
        for name, samples in self.splits.items():
            bad += [samples.names[i] for i in sorted(samples.survey.errors)]
            if samples.survey.readable.any():
                left[name] = samples.select(np.flatnonzero(samples.survey.readable))
        lost = [name for name in self.splits if name not in left]
        if "train" in lost or not left:
            raise ValueError(
                f"no image of the {lost[0]} split of {shown(self.source)} can be read: "
                f"{some(bad)}; replace them"
            )
        notes = [
            f"none of the {len(self.splits[name]):,} images of {name} can be read: there is "
            "no such split"
            for name in lost
        ]
        if bad:
            files = counted(
                len(bad), "file that cannot be read is", "files that cannot be read are"
            )
            notes.append(f"{files} left out: {some(bad)}")
        return replace(
            self,
            splits=MappingProxyType(left),
            notes=(*self.notes, *notes),
            dropped=(*self.dropped, *bad),
        )

    @checked
    def fold(self, number: Natural, folds: Positive, *, val: float = 0.0) -> "Dataset":
        """One part of a cross-validation: a fold of the training images is the test split.

        Every image is tested in exactly one fold. Near duplicates stay together.

        Args:
            number: Which fold is tested, from 0.
            folds: How many there are.
            val: Share of the others held out for validation.
        """
        if not 0 <= number < folds:
            raise ValueError(f"fold is {number}: allowed is 0 to {folds - 1}")
        pool = self.split("train")
        groupings = pool.groupings(self.official)
        tested = deal(pool.labels, groupings, folds=folds, seed=self.seed) == number
        rest = np.flatnonzero(~tested)
        held = np.zeros(len(rest), bool)
        if val:
            held = hold_out(
                pool.labels[rest],
                [grouping[rest] for grouping in groupings],
                fraction=val,
                seed=self.seed,
                split="val",
            )
        indices = {"train": rest[~held], "val": rest[held], "test": np.flatnonzero(tested)}
        splits = {name: pool.select(indices[name]) for name in SPLITS if len(indices[name])}
        held_out = {"test": 1 / folds, **({"val": val} if val else {})}
        return replace(self, splits=MappingProxyType(splits), held_out=MappingProxyType(held_out))

    def subset(self, limit: float, *, seed: int = 0) -> "Dataset":
        """The same with fewer training images, and the same share of the validation images.

        Every class keeps its share. With one seed a smaller subset lies in every larger one. Near
        duplicates stay together; the test split stays as it is.

        Args:
            limit: The share that is kept, or above 1 the number of training images.
            seed: Seed of the choice.
        """
        count = len(self.split("train"))
        if not 0 < limit <= count:
            raise ValueError(
                f"limit is {limit:g}: allowed is a share from 0 to 1, or a number of images up to "
                f"the {count:,} that there are to train on"
            )
        share = limit / count if limit > 1 else limit
        splits = dict(self.splits)
        for name in ("train", "val") if share < 1 else ():
            if name in splits:
                samples = splits[name]
                groupings = samples.groupings(self.official)
                kept = keep(samples.labels, groupings, fraction=share, seed=seed)
                splits[name] = samples.select(np.flatnonzero(kept))
        return replace(self, splits=MappingProxyType(splits))


def _hash_of(*parts: Samples) -> str:
    """Of all images of some splits, whatever their names and their order."""
    rows = sorted(row.tobytes() for part in parts for row in part.survey.digests)
    return hash_bytes(b"".join(rows))
