"""What an audit looks at, and what it reports; `smallvit.data.checks` holds the checks."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64

from smallvit.data.dataset import Dataset
from smallvit.data.similar import near_duplicates
from smallvit.data.survey import joined
from smallvit.text import shown, some

Level = Literal["error", "warning", "hint"]

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
            lines = "\n".join(f"- {finding.message}" for finding in errors)
            raise ValueError(f"{shown(self.source)} cannot be trained on as it is:\n{lines}")

    def to_json(self) -> str:
        """The whole audit as JSON."""
        return json.dumps(asdict(self), indent=2)


class View:
    """All splits of a dataset as one list, for the checks."""

    def __init__(self, dataset: Dataset, patch_size: int) -> None:
        self.dataset, self.patch_size = dataset, patch_size
        parts = list(dataset.splits.items())
        self.split = np.repeat([name for name, _ in parts], [len(samples) for _, samples in parts])
        self.names = [name for _, samples in parts for name in samples.names]
        self.labels = np.concatenate([samples.labels for _, samples in parts])
        self.survey = joined([samples.survey for _, samples in parts])

    @cached_property
    def counts(self) -> dict[str, dict[str, int]]:
        """Images per class, by split."""
        classes = self.dataset.classes
        counted = {
            name: np.bincount(samples.labels, minlength=len(classes)).tolist()
            for name, samples in self.dataset.splits.items()
        }
        return {name: dict(zip(classes, row, strict=True)) for name, row in counted.items()}

    @cached_property
    def copies(self) -> list[Int64[np.ndarray, " n"]]:
        """Groups of identical images."""
        return [group for group in self._by_content if len(group) > 1]

    @cached_property
    def near(self) -> list[Int64[np.ndarray, " 2"]]:
        """Pairs of images that are nearly identical; of identical ones only the first counts."""
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
        """One case per image."""
        return tuple((self.title(int(i)),) for i in indices)

    def groups(self, groups: Any, *, labelled: bool = False) -> tuple[tuple[str, ...], ...]:
        """One case per group, with the classes if `labelled`."""
        classes = self.dataset.classes
        return tuple(
            tuple(
                self.title(i) + (f" ({classes[self.labels[i]]})" if labelled else "")
                for i in group.tolist()
            )
            for group in groups
        )

    def crossing(self, groups: Any) -> list[Any]:
        """Groups with images in more than one split."""
        return [group for group in groups if len(set(self.split[group])) > 1]

    def conflicting(self, groups: Any) -> list[Any]:
        """Groups with images of more than one class."""
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
