"""`audit`: what makes results worse, or better than they are; each check is a function."""

import json
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int64

from smallvit.arguments import Width, checked
from smallvit.data.dataset import Dataset
from smallvit.data.images import UnreadableError, as_array
from smallvit.data.similar import flip_loss, near_duplicates
from smallvit.data.survey import joined
from smallvit.text import counted, shown, some

Level = Literal["error", "warning", "hint"]
Items = tuple[tuple[str, ...], ...]
Groups = Sequence[Int64[np.ndarray, " _"]]

_IMBALANCE = 10
_FEW = 10
_LONG = 3
_FLIP_LOSS = 0.1

OVERRIDES = ("leaks", "conflicts", "unreadable", "case")
"""Codes of errors that may be allowed: `--allow leaks` and so on."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing worth knowing about a dataset.

    Attributes:
        level: An error stops training, a warning does not, a hint is worth a thought.
        code: What kind it is.
        message: A sentence that says what was found and what to do.
        items: Every case of it: groups of "split: name", or classes.
    """

    level: Level
    code: str
    message: str
    items: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit.

    Attributes:
        source: What was audited.
        counts: Images per class, by split.
        sizes: Smallest, median and largest height, width and aspect (width / height).
        findings: Errors first.
    """

    source: str
    counts: Mapping[str, Mapping[str, int]]
    sizes: Mapping[str, tuple[float, float, float]]
    findings: tuple[Finding, ...]

    @property
    def flips_matter(self) -> bool:
        """Whether a mirrored image may belong to another class."""
        return any(finding.code == "flip" for finding in self.findings)

    def errors(self, allow: Collection[str] = ()) -> list[Finding]:
        """Errors that were not allowed."""
        unknown = set(allow) - set(OVERRIDES)
        if unknown:
            raise ValueError(f"allow holds {some(sorted(unknown))}: allowed are {OVERRIDES}")
        return [f for f in self.findings if f.level == "error" and f.code not in allow]

    def check(self, allow: Collection[str] = ()) -> None:
        """Stops on errors.

        Args:
            allow: Codes of `OVERRIDES` to ignore.

        Raises:
            ValueError: There are errors left; the message holds all of them.
        """
        if errors := self.errors(allow):
            left_out = [finding for finding in self.findings if finding.code == "note"]
            lines = "\n".join(f"- {finding.message}" for finding in (*errors, *left_out))
            raise ValueError(f"{shown(self.source)} cannot be trained on as it is:\n{lines}")

    def to_json(self) -> str:
        """The whole audit as JSON."""
        return json.dumps(asdict(self), indent=2)


class View:
    """All splits of a dataset as one list, for the checks.

    Attributes:
        split: The split of each image; `names`, `labels` and `survey` are of each image too.
        counts: Images per class, by split.
        copies: Groups of identical images.
        near: Pairs of images that are nearly identical; of identical ones only the first counts.
    """

    def __init__(self, dataset: Dataset, patch_size: int) -> None:
        self.dataset, self.patch_size = dataset, patch_size
        parts, classes = dataset.splits.values(), dataset.classes
        self.split = np.repeat(list(dataset.splits), [len(samples) for samples in parts])
        self.names = [name for samples in parts for name in samples.names]
        self.labels = np.concatenate([samples.labels for samples in parts])
        self.survey = joined([samples.survey for samples in parts])
        self.counts: dict[str, dict[str, int]] = {}
        for name, samples in dataset.splits.items():
            row = np.bincount(samples.labels, minlength=len(classes)).tolist()
            self.counts[name] = dict(zip(classes, row, strict=True))
        alike: dict[bytes, list[int]] = defaultdict(list)
        for index in np.flatnonzero(self.survey.readable).tolist():
            alike[self.survey.digests[index].tobytes()].append(index)
        first = np.array([group[0] for group in alike.values()], np.int64)
        self.copies: Groups = [
            np.array(group, np.int64) for group in alike.values() if len(group) > 1
        ]
        self.near: Groups = list(first[near_duplicates(self.survey.thumbs[first])])

    def title(self, index: int) -> str:
        """An image as messages name it."""
        return f"{self.split[index]}: {shown(self.names[index])}"

    def cases(self, groups: Iterable[Iterable[int]], *, labelled: bool = False) -> Items:
        """One case per group of images, with their classes if `labelled`."""
        classes = self.dataset.classes
        return tuple(
            tuple(
                self.title(i) + (f" ({classes[self.labels[i]]})" if labelled else "") for i in group
            )
            for group in groups
        )


def _found(level: Level, code: str, what: str, items: Items, todo: str) -> Iterator[Finding]:
    """A finding about all cases of something, which names the first few, if there are any."""
    if items:
        examples = some(" = ".join(group[:3]) for group in items)
        yield Finding(level=level, code=code, message=f"{what}: {examples}. {todo}", items=items)


def _images(view: View) -> Iterator[Finding]:
    """Single images."""
    survey, wanted, patch = view.survey, view.dataset.channels, view.patch_size
    errors = sorted(survey.errors.items())
    yield from _found(
        "error",
        "unreadable",
        f"{counted(len(errors), 'file')} cannot be read",
        tuple((f"{view.title(index)} ({reason})",) for index, reason in errors),
        "Replace or remove them, or leave them out with --allow unreadable.",
    )
    fitting = [1, 3] if wanted in (1, 3) else [wanted]
    odd = np.flatnonzero(survey.readable & ~np.isin(survey.channels, fitting)).tolist()
    yield from _found(
        "error",
        "channels",
        f"not all images have {wanted} channels, {len(odd):,} are of another kind",
        view.cases((i,) for i in odd),
        "Keep images of one kind in a dataset.",
    )
    flat = np.flatnonzero(survey.readable & (survey.contrast == 0)).tolist()
    longer, shorter = survey.sizes.max(axis=1), survey.sizes.min(axis=1)
    cases: tuple[tuple[Level, str, Any, str, str], ...] = (
        (
            "warning",
            "constant",
            [index for index in flat if _constant(view, index)],
            "of a single colour",
            "They teach nothing; remove them.",
        ),
        (
            "warning",
            "tiny",
            np.flatnonzero(survey.readable & (shorter < patch)),
            f"smaller than a patch of {patch} pixels",
            "They are enlarged and show next to nothing; remove them.",
        ),
        (
            "hint",
            "long",
            np.flatnonzero(survey.readable & (longer > _LONG * shorter)),
            f"with one side more than {_LONG} times the other",
            f"With the fit {view.dataset.fit} little of them is left; look at the preview.",
        ),
        (
            "hint",
            "frames",
            np.flatnonzero(survey.animated),
            "of several frames or pages",
            "The first is used.",
        ),
    )
    for level, code, indices, what, todo in cases:
        items = view.cases((i,) for i in indices)
        yield from _found(level, code, f"{counted(len(items), 'image')} {what}", items, todo)


def _copies(view: View) -> Iterator[Finding]:
    """Identical and nearly identical images: in several splits or classes, and in one split."""
    official, alike = view.dataset.official, (view.copies, view.near)
    leaks, near_leaks, conflicts, near_conflicts = (
        [group for group in groups if len(set(values[group])) > 1]
        for values in (view.split, view.labels)
        for groups in alike
    )
    level: Level = "warning" if official else "error"
    yield from _found(
        level,
        "leaks",
        f"{counted(len(leaks), 'image is', 'images are')} in more than one split, so that a model "
        "is tested on what it has seen",
        view.cases(leaks),
        "The splits are a published benchmark's and stay as they are."
        if official
        else "Remove them from all splits but one, or go on with --allow leaks.",
    )
    yield from _found(
        "warning",
        "near-leaks",
        f"{counted(len(near_leaks), 'pair')} of nearly identical images in different splits",
        view.cases(near_leaks),
        "They make scores too good; look at them, and keep images of one scene or series in one "
        "split.",
    )
    yield from _found(
        level,
        "conflicts",
        f"{counted(len(conflicts), 'group')} of identical images with different labels",
        view.cases(conflicts, labelled=True),
        "Decide which is right" + ("." if official else ", or go on with --allow conflicts."),
    )
    yield from _found(
        "warning",
        "near-conflicts",
        f"{counted(len(near_conflicts), 'group')} of nearly identical images with different labels",
        view.cases(near_conflicts, labelled=True),
        "Decide which is right.",
    )
    cases: tuple[tuple[Level, str, Groups, str], ...] = (
        ("warning", "duplicates", view.copies, "identical"),
        ("hint", "near-duplicates", view.near, "nearly identical"),
    )
    for rank, code, groups, how in cases:
        inside = [group for group in groups if len(set(view.split[group])) == 1]
        what = f"{counted(len(inside), 'group')} of {how} images within a split"
        todo = "They count more than others; remove what is not meant."
        yield from _found(rank, code, what, view.cases(inside), todo)


def _constant(view: View, index: int) -> bool:
    """Whether an image without coarse grey contrast has none in full colour either."""
    split = str(view.split[index])
    start = int(np.flatnonzero(view.split == split)[0])
    samples = view.dataset.splits[split]
    try:
        pixels = as_array(samples.read(index - start, view.dataset.channels))
    except UnreadableError:
        return False
    return bool((pixels == pixels[0, 0]).all())


def _flips(view: View) -> Iterator[Finding]:
    classes = view.dataset.classes
    signs = view.dataset.named and all(len(name) == 1 and name.isalnum() for name in classes)
    training = np.flatnonzero(view.survey.readable & (view.split == "train"))
    loss = flip_loss(view.survey.thumbs[training], view.labels[training])
    if signs or loss > _FLIP_LOSS:
        why = (
            "classes are called by single digits or letters"
            if signs
            else f"a vote of nearest neighbours mistakes {loss:.0%} more of the images when they "
            "are mirrored"
        )
        yield Finding(
            level="hint",
            code="flip",
            message=f"a flip may change the class: {why}. Train without horizontal flips "
            "(smallvit train --set augment.flip=0) unless left and right mean nothing here.",
        )


def _classes(view: View) -> Iterator[Finding]:
    classes = view.dataset.classes
    if len(classes) < 2:
        yield Finding(
            level="error",
            code="one-class",
            message=f"there is only one class, {some(classes)}: a classifier needs at least two, "
            "each in a folder (or with a label) of its own.",
            items=(tuple(classes),),
        )
    folds: dict[str, list[str]] = defaultdict(list)
    for name in classes:  # as some file systems compare names
        folds[unicodedata.normalize("NFC", name).casefold()].append(name)
    yield from _found(
        "error",
        "case",
        "classes differ only in case or in how an accent is written",
        tuple(tuple(names) for names in folds.values() if len(names) > 1),
        "Join them into one, or go on with --allow case if they are meant to differ.",
    )


def _counts(view: View) -> Iterator[Finding]:
    training = view.counts.get("train")
    if training is None:
        yield Finding(
            level="error",
            code="no-training",
            message="there is no training split: only evaluation is possible.",
        )
        return

    def few(level: Level, code: str, names: list[str], what: str, todo: str) -> Iterator[Finding]:
        have = counted(len(names), "class has", "classes have")
        yield from _found(level, code, f"{have} {what}", tuple((name,) for name in names), todo)

    empty = [name for name, count in training.items() if not count]
    nowhere = [name for name in empty if not any(split[name] for split in view.counts.values())]
    tested = [name for name in empty if name not in nowhere]
    todo = "Add training images, or remove the class from every split."
    what = "no training images, and other splits have some"
    yield from few("error", "empty-class", tested, what, todo)
    level: Level = "warning" if len(training) - len(empty) > 1 else "error"
    yield from few(level, "empty-class", nowhere, "no images at all", todo)
    for split, counts in view.counts.items():
        absent = [name for name, count in counts.items() if not count and training[name]]
        what = f"no image in {split}, too few to be divided or none in the data"
        todo = "They cannot be measured there; add images."
        yield from few("warning", "too-few", absent, what, todo)
    rare = [name for name, count in training.items() if 0 < count < _FEW]
    what = f"fewer than {_FEW} training images"
    yield from few("warning", "few", rare, what, "Expect low accuracy for them.")
    present = [count for count in training.values() if count]
    if present and max(present) == 1:
        yield Finding(
            level="error",
            code="one-image",
            message="no class has more than one training image: nothing can be learned from that. "
            "Add images; ten per class are a beginning.",
        )
    if present and max(present) > _IMBALANCE * min(present):
        large, small = max(training, key=training.__getitem__), min(present)
        name = next(name for name, count in training.items() if count == small)
        yield Finding(
            level="warning",
            code="imbalance",
            message=f"classes are out of balance: {large} has {max(present):,} training images "
            f"and {name} {small:,}. Read balanced accuracy, and try class-balanced sampling.",
            items=((large, name),),
        )


CHECKS: tuple[Callable[[View], Iterator[Finding]], ...] = (
    _images,
    _copies,
    _classes,
    _counts,
    _flips,
)


@checked
def audit(dataset: Dataset, *, patch_size: Width = 4) -> Audit:
    """Looks for everything that makes results worse, or better than they are.

    Args:
        dataset: From `load_data`, which has surveyed the images.
        patch_size: Images smaller than this are reported.
    """
    view = View(dataset, patch_size)
    findings = [finding for check in CHECKS for finding in check(view)]
    findings += [Finding(level="hint", code="note", message=f"{note}.") for note in dataset.notes]
    sizes = view.survey.sizes[view.survey.readable]
    columns = {"height": sizes[:, 0], "width": sizes[:, 1], "aspect": sizes[:, 1] / sizes[:, 0]}
    return Audit(
        source=shown(dataset.source),
        counts=view.counts,
        sizes={
            name: (float(values.min()), float(np.median(values)), float(values.max()))
            for name, values in columns.items()
            if len(values)
        },
        findings=tuple(sorted(findings, key=lambda each: get_args(Level).index(each.level))),
    )
