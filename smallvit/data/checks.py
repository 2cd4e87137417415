"""`audit` and its checks, each a function from a view of the dataset to findings."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np

from smallvit.arguments import Width, checked
from smallvit.data.auditing import Audit, Finding, Level, View
from smallvit.data.dataset import Dataset
from smallvit.data.images import UnreadableError, as_array
from smallvit.data.similar import flip_loss
from smallvit.text import counted, folded, shown, some

_IMBALANCE = 10
_FEW = 10
_LONG = 3
_FLIP_LOSS = 0.1


def _examples(items: tuple[tuple[str, ...], ...]) -> str:
    return some(" = ".join(group[:3]) for group in items)


def _unreadable(view: View) -> Iterator[Finding]:
    items = tuple(
        (f"{view.title(index)} ({reason})",) for index, reason in sorted(view.survey.errors.items())
    )
    if items:
        yield Finding(
            level="error",
            code="unreadable",
            message=f"{counted(len(items), 'file')} cannot be read: {_examples(items)}. "
            "Replace or remove them, or leave them out with --allow unreadable.",
            items=items,
        )


def _channels(view: View) -> Iterator[Finding]:
    wanted = view.dataset.channels
    fitting = {1, 3} if wanted in (1, 3) else {wanted}
    odd = view.survey.readable & ~np.isin(view.survey.channels, list(fitting))
    if odd.any():
        items = view.titles(np.flatnonzero(odd))
        yield Finding(
            level="error",
            code="channels",
            message=f"not all images have {wanted} channels, {len(items):,} are of another kind: "
            f"{_examples(items)}. Keep images of one kind in a dataset.",
            items=items,
        )


def _leaks(view: View) -> Iterator[Finding]:
    level: Level = "warning" if view.dataset.official else "error"
    todo = (
        "The splits are a published benchmark's and stay as they are."
        if view.dataset.official
        else "Remove them from all splits but one, or go on with --allow leaks."
    )
    if groups := view.crossing(view.copies):
        items = view.groups(groups)
        yield Finding(
            level=level,
            code="leaks",
            message=f"{counted(len(items), 'image is', 'images are')} in more than one "
            f"split, so that a model is tested on what it has seen: {_examples(items)}. {todo}",
            items=items,
        )
    if groups := view.crossing(view.near):
        items = view.groups(groups)
        yield Finding(
            level="warning",
            code="near-leaks",
            message=f"{counted(len(items), 'pair')} of nearly identical images in "
            f"different splits: {_examples(items)}. They make scores too good; look at "
            "them, and keep images of one scene or series in one split.",
            items=items,
        )


def _conflicts(view: View) -> Iterator[Finding]:
    levels: tuple[tuple[Any, Level, str], ...] = (
        (view.copies, "warning" if view.dataset.official else "error", "identical"),
        (view.near, "warning", "nearly identical"),
    )
    for groups, level, how in levels:
        if groups := view.conflicting(groups):
            items = view.groups(groups, labelled=True)
            yield Finding(
                level=level,
                code="conflicts" if how == "identical" else "near-conflicts",
                message=f"{counted(len(items), 'group')} of {how} images with different "
                f"labels: {_examples(items)}. Decide which is right"
                + (", or go on with --allow conflicts." if level == "error" else "."),
                items=items,
            )


def _duplicates(view: View) -> Iterator[Finding]:
    for groups, code, how in (
        (view.copies, "duplicates", "identical"),
        (view.near, "near-duplicates", "nearly identical"),
    ):
        inside = [group for group in groups if len(set(view.split[group])) == 1]
        if inside:
            items = view.groups(inside)
            yield Finding(
                level="warning" if how == "identical" else "hint",
                code=code,
                message=f"{counted(len(items), 'group')} of {how} images within a split: "
                f"{_examples(items)}. They count more than others; remove what is not meant.",
                items=items,
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
    for name in classes:
        folds[folded(name)].append(name)
    alike = tuple(tuple(names) for names in folds.values() if len(names) > 1)
    if alike:
        yield Finding(
            level="error",
            code="case",
            message=f"classes differ only in case or in how an accent is written: "
            f"{_examples(alike)}. Join them into one, or go on with --allow case if they are "
            "meant to differ.",
            items=alike,
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
    empty = [name for name, count in training.items() if not count]
    nowhere = [name for name in empty if not any(split[name] for split in view.counts.values())]
    tested = [name for name in empty if name not in nowhere]
    cases: tuple[tuple[list[str], Level, str], ...] = (
        (tested, "error", "training images, and other splits have some"),
        (nowhere, "warning" if len(training) - len(empty) > 1 else "error", "images at all"),
    )
    for names, level, what in cases:
        if names:
            items = tuple((name,) for name in names)
            yield Finding(
                level=level,
                code="empty-class",
                message=f"{counted(len(names), 'class has', 'classes have')} no {what}: "
                f"{_examples(items)}. Add training images, or remove the class from every split.",
                items=items,
            )
    for split in [name for name in view.counts if name != "train"]:
        absent = tuple(
            (name,) for name, count in view.counts[split].items() if not count and training[name]
        )
        if absent:
            yield Finding(
                level="warning",
                code="too-few",
                message=f"{counted(len(absent), 'class has', 'classes have')} no image in "
                f"{split}, too few to be divided or none in the data: {_examples(absent)}. They "
                "cannot be measured there; add images.",
                items=absent,
            )
    few = tuple((name,) for name, count in training.items() if 0 < count < _FEW)
    if few:
        yield Finding(
            level="warning",
            code="few",
            message=f"{counted(len(few), 'class has', 'classes have')} fewer than {_FEW} training "
            f"images: {_examples(few)}. Expect low accuracy for them.",
            items=few,
        )
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


def _images(view: View) -> Iterator[Finding]:
    survey = view.survey
    flat = np.flatnonzero(survey.readable & (survey.contrast == 0)).tolist()
    longer, shorter = survey.sizes.max(axis=1), survey.sizes.min(axis=1)
    cases: tuple[tuple[str, Level, Any, str, str], ...] = (
        (
            "constant",
            "warning",
            [index for index in flat if _constant(view, index)],
            "of a single colour",
            "They teach nothing; remove them.",
        ),
        (
            "tiny",
            "warning",
            np.flatnonzero(survey.readable & (shorter < view.patch_size)),
            f"smaller than a patch of {view.patch_size} pixels",
            "They are enlarged and show next to nothing; remove them.",
        ),
        (
            "long",
            "hint",
            np.flatnonzero(survey.readable & (longer > _LONG * shorter)),
            f"with one side more than {_LONG} times the other",
            f"With the fit {view.dataset.fit} little of them is left; look at the preview.",
        ),
        (
            "frames",
            "hint",
            np.flatnonzero(survey.animated),
            "of several frames or pages",
            "The first is used.",
        ),
    )
    for code, level, indices, what, todo in cases:
        if len(indices):
            items = view.titles(indices)
            message = f"{counted(len(items), 'image')} {what}: {_examples(items)}. {todo}"
            yield Finding(level=level, code=code, message=message, items=items)


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
            message=f"a flip may change the class: {why}. Train without horizontal flips unless "
            "left and right mean nothing here.",
        )


def _notes(view: View) -> Iterator[Finding]:
    for note in view.dataset.notes:
        yield Finding(level="hint", code="note", message=f"{note}.")


CHECKS: tuple[Callable[[View], Iterator[Finding]], ...] = (
    _unreadable,
    _channels,
    _leaks,
    _conflicts,
    _classes,
    _counts,
    _duplicates,
    _images,
    _flips,
    _notes,
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
    return Audit(
        source=shown(dataset.source),
        counts=view.counts,
        sizes=view.ranges(),
        findings=tuple(sorted(findings, key=lambda each: get_args(Level).index(each.level))),
    )
