"""What an audit looks at, and what it says."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64

from smallvit.data.dataset import Dataset
from smallvit.data.similar import near_duplicates
from smallvit.data.survey import joined
from smallvit.text import shown

Level = Literal["error", "warning", "hint"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing worth knowing.

    Attributes:
        level: An error stops training, a warning does not, a hint asks for a thought.
        code: What kind it is.
        message: A sentence that says what was found and what to do.
        items: Every case of it: groups of "split: name", or classes.
    """

    level: Level
    code: str
    message: str
    items: tuple[tuple[str, ...], ...] = ()


class View:
    """All splits side by side."""

    def __init__(self, dataset: Dataset, patch_size: int) -> None:
        self.dataset, self.patch_size = dataset, patch_size
        parts = list(dataset.splits.items())
        self.split = np.repeat([name for name, _ in parts], [len(items) for _, items in parts])
        self.names = [name for _, items in parts for name in items.names]
        self.labels = np.concatenate([items.labels for _, items in parts])
        self.survey = joined([items.survey for _, items in parts])

    @cached_property
    def counts(self) -> dict[str, dict[str, int]]:
        """Images of each class, by split."""
        classes = self.dataset.classes
        return {
            name: dict(
                zip(
                    classes,
                    np.bincount(items.labels, minlength=len(classes)).tolist(),
                    strict=True,
                )
            )
            for name, items in self.dataset.splits.items()
        }

    @cached_property
    def copies(self) -> list[Int64[np.ndarray, " n"]]:
        """Groups of identical images."""
        return [group for group in self._by_content if len(group) > 1]

    @cached_property
    def near(self) -> list[Int64[np.ndarray, " 2"]]:
        """Pairs of images that are nearly identical, one for each group of copies."""
        first = np.array([group[0] for group in self._by_content], np.int64)
        return list(first[near_duplicates(self.survey.thumbs[first])])

    @cached_property
    def _by_content(self) -> list[Int64[np.ndarray, " n"]]:
        readable = np.flatnonzero(self.survey.readable)
        groups: dict[bytes, list[int]] = defaultdict(list)
        for index in readable.tolist():
            groups[self.survey.digests[index].tobytes()].append(index)
        return [np.array(group, np.int64) for group in groups.values()]

    def title(self, index: int) -> str:
        """An image as messages name it."""
        return f"{self.split[index]}: {shown(self.names[index])}"

    def titles(self, indices: Any) -> tuple[tuple[str, ...], ...]:
        """One case an image."""
        return tuple((self.title(int(i)),) for i in indices)

    def groups(self, groups: Any, *, labelled: bool = False) -> tuple[tuple[str, ...], ...]:
        """One case a group, its classes added if wanted."""
        classes = self.dataset.classes
        return tuple(
            tuple(
                self.title(i) + (f" ({classes[self.labels[i]]})" if labelled else "")
                for i in group.tolist()
            )
            for group in groups
        )

    def crossing(self, groups: Any) -> list[Any]:
        """Groups that stand in more than one split."""
        return [group for group in groups if len(set(self.split[group])) > 1]

    def conflicting(self, groups: Any) -> list[Any]:
        """Groups of more than one class."""
        return [group for group in groups if len(set(self.labels[group])) > 1]

    def ranges(self) -> dict[str, tuple[float, float, float]]:
        """Smallest, median and largest height, width and aspect."""
        sizes = self.survey.sizes[self.survey.readable]
        if not len(sizes):
            return {}
        columns = {"height": sizes[:, 0], "width": sizes[:, 1], "aspect": sizes[:, 1] / sizes[:, 0]}
        return {
            name: (float(values.min()), float(np.median(values)), float(values.max()))
            for name, values in columns.items()
        }
