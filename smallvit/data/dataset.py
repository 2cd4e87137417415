"""`load_data`: from a specification to splits of images, and to images of one size."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import __version__ as pillow

from smallvit.arguments import Natural, Positive, Seed, Width, check, checked
from smallvit.data import cache
from smallvit.data.fit import FILL, fit_image
from smallvit.data.folders import UNLABELLED
from smallvit.data.images import UnreadableError
from smallvit.data.parallel import spread
from smallvit.data.samples import Samples, Source, class_order
from smallvit.data.similar import families
from smallvit.data.sources import SPLITS, find
from smallvit.data.splits import assign, deal, hold_out, keep
from smallvit.data.survey import survey_array, survey_files
from smallvit.files import hash_bytes
from smallvit.sizes import Fit, Size, as_size
from smallvit.text import counted, nearest, shown, some

logger = logging.getLogger(__name__)

_VERSION = 2
_TRIED, _TRIAL = 8, 0.1  # images at the least, and seconds, that tell how long decoding takes


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
        if not isinstance(samples.images, tuple) and self._is_ready(samples):
            return np.ascontiguousarray(samples.images.transpose(0, 3, 1, 2))
        return cache.stored(
            *self._entry(samples),
            partial(self._decoded, samples, split, progress),
            {"source": shown(self.source), "split": split, "fit": self.fit},
        )

    def decoding(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """About how many seconds decoding takes here, as a few images tell.

        What is in the cache, or needs no decoding, takes none.
        """
        waiting = [
            (samples, int(index))
            for samples in self.splits.values()
            if not self._is_ready(samples) and not cache.holds(*self._entry(samples))
            for index in np.flatnonzero(samples.survey.readable)
        ]
        seconds, tried = 0.0, waiting[:0]
        # Twice as many each time, so that starting threads does not count.
        while seconds < _TRIAL and len(tried) < len(waiting):
            count = min(max(2 * len(tried), _TRIED), len(waiting))
            tried = waiting[:: len(waiting) // count][:count]
            started = clock()
            for _ in spread(lambda each: self._fitted(*each), tried, description="", size=1):
                pass
            seconds = clock() - started
        return seconds * _pixels(waiting) / max(_pixels(tried), 1)

    def _is_ready(self, samples: Samples) -> bool:
        """Whether its images are pixels of the size and the channels that are wanted."""
        shape = (*self.image_size, self.channels)
        return not isinstance(samples.images, tuple) and samples.images.shape[1:] == shape

    def _entry(self, samples: Samples) -> tuple[str, tuple[int, ...]]:
        """The key of its images in the cache, and the shape of all of them."""
        key = f"{_VERSION} {pillow} {self.image_size} {self.fit} {FILL} {self.channels} "
        if not isinstance(samples.images, tuple):
            key += f"{samples.images.shape[1:]} "  # the digest of pixels leaves it out
        shape = (len(samples), self.channels, *self.image_size)
        return hash_bytes(key.encode() + samples.survey.digests.tobytes()), shape

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
        splits = {
            name: samples.select(np.flatnonzero(samples.survey.readable))
            for name, samples in self.splits.items()
        }
        bad = [
            samples.names[i]
            for samples in self.splits.values()
            for i in sorted(samples.survey.errors)
        ]
        left = {name: samples for name, samples in splits.items() if len(samples)}
        lost = [name for name in splits if name not in left]
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
        groupings = _groupings(pool, self.official)
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
                groupings = _groupings(samples, self.official)
                kept = keep(samples.labels, groupings, fraction=share, seed=seed)
                splits[name] = samples.select(np.flatnonzero(kept))
        return replace(self, splits=MappingProxyType(splits))

    def _decoded(
        self, samples: Samples, split: str, progress: bool
    ) -> Iterator[UInt8[np.ndarray, "C H W"]]:
        failed = []
        for result in spread(
            partial(self._fitted, samples),
            range(len(samples)),
            description=f"decoding {split}",
            progress=progress,
        ):
            if isinstance(result, str):
                failed.append(result)
            else:
                yield result.transpose(2, 0, 1)
        if failed:
            raise ValueError(
                f"{counted(len(failed), 'image')} of the {split} split cannot be read: "
                f"{some(failed)}. Replace or remove them; `smallvit train --allow unreadable` and "
                "Dataset.readable() leave them out"
            )

    def _fitted(self, samples: Samples, index: int) -> np.ndarray | str:
        """An image at its size, or why it cannot be read."""
        try:
            return fit_image(samples.read(index, self.channels), self.image_size, self.fit)
        except UnreadableError as error:
            return f"{shown(samples.names[index])} ({error})"


def _pixels(images: Iterable[tuple[Samples, int]]) -> int:
    """Of all of them together, as their files have them."""
    return sum(int(samples.survey.sizes[index].prod()) for samples, index in images)


def _hash_of(*parts: Samples) -> str:
    """Of all images of some splits, whatever their names and their order."""
    rows = sorted(row.tobytes() for part in parts for row in part.survey.digests)
    return hash_bytes(b"".join(rows))


@checked
def load_data(
    spec: str | os.PathLike[str],
    *,
    image_size: int | Size | None = None,
    fit: Fit = "letterbox",
    channels: Width | None = None,
    classes: Sequence[str] | None = None,
    val: float | int | None = None,
    test: float | int | None = None,
    seed: Seed = 0,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
    unlabelled: bool = False,
    progress: bool = False,
) -> Dataset:
    """Finds images and labels, whatever form they have.

    Args:
        spec: A folder of images, a table of paths, an .npz file or the name of a public dataset;
            `smallvit.data.sources` lists the forms, `smallvit.data.named` the names.
        image_size: One number, or (height, width). None takes the size that all images share;
            if they have several, `Dataset.sized` chooses one later.
        fit: How other shapes come to that size: the whole image with bars (letterbox), the whole
            image squeezed (stretch), or its middle (crop).
        channels: 1 or 3 to have all images grey or coloured; None follows the images.
        classes: The only classes allowed, in this order: those of a trained model.
        val: Share of the training images held out for validation where the source has no such
            split; 0 for no validation split, even if the source has one. None means a tenth.
        test: The same for the test split; None means a fifth.
        seed: Seed of the splits that are held out.
        root: The folder of named datasets; see `smallvit.data.named.default_root`.
        download: Whether a named dataset may be downloaded.
        unlabelled: Whether a folder without class folders is welcome: its images are of one class,
            and no test split is made of them.
        progress: Whether to show a bar.

    Raises:
        ValueError: The source does not exist, is not laid out as expected, or has unknown labels.
    """
    size = None if image_size is None else as_size(image_size)
    source = find(spec, root=root, download=download, unlabelled=unlabelled)
    if unlabelled and source.classes == (UNLABELLED,) and test is None:
        test = 0.0
    names = _classes(source, classes, spec)
    number = {name: i for i, name in enumerate(names)}
    survey = (
        survey_files(source.images, progress=progress)
        if isinstance(source.images, tuple)
        else survey_array(source.images)
    )
    pool = Samples(
        images=source.images,
        names=tuple(source.names),
        labels=np.array([number[label] for label in source.labels], np.int64),
        survey=survey,
    )
    together, digests = _groupings(pool, source.official)
    shares = {"test": test, "val": val}
    indices, held_out, notes = assign(pool.labels, digests, together, source.splits, shares, seed)
    return Dataset(
        source=os.fspath(spec),
        classes=names,
        splits=MappingProxyType({name: pool.select(each) for name, each in indices.items()}),
        # Colour where grey and colour are mixed, or where nothing can be read.
        channels=channels or int(survey.channels.max(initial=0)) or 3,
        chosen_size=size,
        fit=fit,
        seed=seed,
        held_out=MappingProxyType(held_out),
        named=source.named,
        official=source.official,
        notes=(*source.notes, *notes),
    )


def _classes(
    source: Source, allowed: Sequence[str] | None, spec: str | os.PathLike[str]
) -> tuple[str, ...]:
    """Class names in order; refuses labels that are none of them."""
    names = tuple(allowed or source.classes or class_order(source.labels))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{shown(spec)} has several classes called {some(twice)}: rename them")
    unknown = sorted(set(source.labels) - set(names))
    if unknown:
        raise ValueError(
            f"{shown(spec)} has labels that are none of the {len(names)} classes "
            f"({some(names, 6)}): {some(unknown)}{nearest(unknown[0], names)}"
        )
    return names


def _groupings(samples: Samples, official: bool) -> tuple[UInt8[np.ndarray, "N digest"], ...]:
    """Which images stay together: near duplicates, and where that is too coarse equal ones."""
    digests = samples.survey.digests
    # Benchmarks are divided as everyone does, also where they have duplicates.
    return digests if official else families(digests, samples.survey.thumbs), digests
