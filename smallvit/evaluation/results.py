"""`Evaluation`: what was measured, as plain numbers, to JSON and back."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from smallvit.arguments import check
from smallvit.evaluation.calibration import ConfidenceBin
from smallvit.evaluation.intervals import Estimate, proportion
from smallvit.evaluation.metrics import METRICS
from smallvit.text import counted, shown

FORMAT = 1
"""Of the JSON that is written; older is read, newer refused."""

_WORST, _CONFUSED = 5, 5


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """How well one class is predicted.

    Attributes:
        name: The class.
        support: Images of this class.
        predicted: Images predicted as this class.
        precision: The share of those predicted as it that are of it; 0 where there are none.
        recall: The share of those of it that are predicted as it; 0 to 1 where there are none.
        f1: The harmonic mean of both.
    """

    name: str
    support: int
    predicted: int
    precision: float
    recall: Estimate
    f1: float


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What was predicted for each image, in the order of the split.

    Attributes:
        truth: True classes, by number.
        predicted: Predicted classes, by number.
        confidence: Calibrated probability of each prediction, to six digits.
        names: What the images are called; empty if that is not known.
    """

    truth: tuple[int, ...]
    predicted: tuple[int, ...]
    confidence: tuple[float, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("predicted", "confidence", "names"):
            length = len(getattr(self, name))
            if length != len(self.truth) and (length or name != "names"):
                raise ValueError(
                    f"{name} has {length:,} entries: expected one for each of the "
                    f"{len(self.truth):,} images"
                )


class Confusion(NamedTuple):
    """Images of one class that were predicted as another.

    Attributes:
        truth: Their class.
        predicted: What they were predicted as.
        images: How many.
        support: How many images there are of the true class.
    """

    truth: str
    predicted: str
    images: int
    support: int


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good a model is on a split.

    A metric is also an attribute: `evaluation.accuracy` is `evaluation.metrics["accuracy"]`.

    Attributes:
        split: Which images: train, val or test of the data, all of it, or the folds of a
            cross-validation.
        count: How many.
        classes: Names of the classes, in the order of all numbers per class.
        metrics: Every metric of `smallvit.evaluation.metrics.METRICS` that was measured, by name.
            Older files lack newer metrics; top5 needs more than five classes.
        per_class: One row per class.
        confusion: The confusion matrix: rows are true classes, columns predicted ones.
        reliability: Confidence against accuracy.
        temperature: What logits were divided by.
        flip: Whether predictions were averaged with those of the mirror images.
        predictions: Every single prediction, for those who look at mistakes.
    """

    split: str
    count: int
    classes: tuple[str, ...]
    metrics: Mapping[str, Estimate]
    per_class: tuple[ClassResult, ...]
    confusion: tuple[tuple[int, ...], ...]
    reliability: tuple[ConfidenceBin, ...]
    temperature: float = 1.0
    flip: bool = False
    predictions: Predictions | None = None

    def __post_init__(self) -> None:
        width = len(self.classes)
        if "accuracy" not in self.metrics:
            raise ValueError("accuracy is missing")
        if tuple(row.name for row in self.per_class) != self.classes:
            raise ValueError(f"per_class does not name the {width} classes in their order")
        if [len(row) for row in self.confusion] != [width] * width:
            raise ValueError(f"confusion is not {width} by {width}, as there are {width} classes")
        counted = sum(map(sum, self.confusion))
        if counted != self.count:
            raise ValueError(f"confusion counts {counted:,} images, and count is {self.count:,}")
        if self.predictions and len(self.predictions.truth) != self.count:
            length = len(self.predictions.truth)
            raise ValueError(f"there are {length:,} predictions, and count is {self.count:,}")

    def __getattr__(self, name: str) -> Estimate:
        metrics = self.__dict__.get("metrics", {})
        if name not in metrics:
            raise AttributeError(
                f"an Evaluation has no {name!r}; its metrics: {', '.join(metrics)}"
            )
        return metrics[name]

    def __repr__(self) -> str:
        return (
            f"Evaluation({self.split}: {self.count:,} images of {len(self.classes):,} classes, "
            f"accuracy {self.metrics['accuracy'].percent})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: all metrics with their meaning, the largest confusions."""
        from smallvit.pages import html_table

        rows = [
            (METRICS[name].title, METRICS[name].text(value), METRICS[name].explanation)
            for name, value in self.metrics.items()
        ]
        return html_table(self._heading(), rows, self._confusions())

    @property
    def top5(self) -> Estimate | None:
        """Top-5 accuracy; None where there are no more than five classes."""
        return self.metrics.get("top5")

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes of which the split has no image; nothing was measured about them."""
        return tuple(row.name for row in self.per_class if not row.support)

    def summary(self) -> str:
        """A few lines for a terminal; `describe` has more."""
        brief = [name for name in self.metrics if METRICS[name].brief]
        return "\n".join([self._heading(), *self._rows(brief), *self._chance()])

    def describe(self) -> str:
        """For a terminal: all metrics, the worst classes, the largest confusions."""
        lines = [self._heading(), *self._rows(self.metrics), *self._chance()]
        present = [row for row in self.per_class if row.support]
        worst = sorted(present, key=lambda row: (row.recall.value, -row.support))[:_WORST]
        if len(present) > 2:
            lines += ["", "worst classes (recall)"]
            lines += [
                f"  {row.recall.percent}  {shown(row.name)}, {counted(row.support, 'image')}"
                for row in worst
            ]
        if confused := self._confusions():
            lines += ["", "largest confusions", *(f"  {each}" for each in confused)]
        return "\n".join(lines)

    def _chance(self) -> list[str]:
        """A line if always predicting the most frequent class would have been as good."""
        most = max(self.per_class, key=lambda row: row.support)
        share = most.support / self.count
        if share < self.accuracy.value:
            return []
        return [
            f"The accuracy is no better than always predicting {shown(most.name)}, the most "
            f"frequent class: {100 * share:.1f} %"
        ]

    def _confusions(self) -> list[str]:
        return [
            f"{pair.images:,} of {pair.support:,} {shown(pair.truth)} predicted as "
            f"{shown(pair.predicted)}"
            for pair in largest_confusions(self, _CONFUSED)
        ]

    def _heading(self) -> str:
        many, missing = len(self.classes), len(self.absent)
        note = f", {missing} of them absent" if missing else ""
        return (
            f"{self.split}: {counted(self.count, 'image')} of {counted(many, 'class', 'classes')}"
            f"{note}; 95 % confidence intervals in brackets"
        )

    def _rows(self, names: Iterable[str]) -> list[str]:
        rows = [(METRICS[name], METRICS[name].text(self.metrics[name])) for name in names]
        title = max(len(metric.title) for metric, _ in rows)
        value = max(len(text) for _, text in rows)
        return [
            f"{metric.title:<{title}}  {text:<{value}}  {metric.explanation}"
            for metric, text in rows
        ]

    def to_json(self) -> str:
        """As JSON, one line per key; `from_json` gives back exactly the same."""
        from smallvit.config_io import to_plain

        plain: dict[str, Any] = {"format": FORMAT}
        for name, value in to_plain(self).items():
            plain |= (
                {key: value.get(key) for key in METRICS} if name == "metrics" else {name: value}
            )
        plain["answers"] = plain.pop("predictions")  # as format 1 calls them
        lines = (
            f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}"
            for name, value in plain.items()
        )
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, source: str = "the evaluation") -> "Evaluation":
        """From JSON.

        Args:
            text: What `to_json` gave.
            source: Where it is from, for messages.

        Raises:
            ValueError: It is not JSON, was written by a newer version, or is not complete.
        """
        from smallvit.config_io import check_keys, from_plain

        check("text", text, str)
        try:
            plain: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{source} is not JSON: {error}") from error
        version = plain.pop("format", None) if isinstance(plain, dict) else None
        if not isinstance(version, int) or version > FORMAT:
            raise ValueError(
                f"{source} has evaluation format {version!r} and this smallvit reads up to "
                f"{FORMAT}: upgrade smallvit, or evaluate again"
            )
        try:
            keys = {name: name for name in cls.__dataclass_fields__ if name != "metrics"}
            keys["predictions"] = "answers"
            check_keys(plain, [*METRICS, *keys.values()], "")
            measured = {name: plain[name] for name in METRICS if plain.get(name) is not None}
            metrics = {name: from_plain(Estimate, value, name) for name, value in measured.items()}
            rest = {name: plain[key] for name, key in keys.items() if key in plain}
            return from_plain(cls, {**rest, "metrics": metrics})
        except ValueError as error:
            raise ValueError(f"{source} is damaged: {error}") from error


def largest_confusions(evaluation: Evaluation, limit: int) -> list[Confusion]:
    """The pairs of classes that are confused most often; equals by the share of the class."""
    classes, support = evaluation.classes, [row.support for row in evaluation.per_class]
    pairs = [
        Confusion(classes[i], classes[j], count, support[i])
        for i, row in enumerate(evaluation.confusion)
        for j, count in enumerate(row)
        if count and i != j
    ]
    return sorted(pairs, key=lambda pair: (-pair.images, pair.support))[:limit]


class Folds(NamedTuple):
    """A metric on each fold of a cross-validation, with mean and standard deviation."""

    values: tuple[float, ...]
    mean: float
    std: float


class Pooled(NamedTuple):
    """The folds of a cross-validation together.

    Attributes:
        images: Of all folds; each is tested once.
        accuracy: Over all of them.
        metrics: What each fold says, by the name of the metric.
    """

    images: int
    accuracy: Estimate
    metrics: dict[str, Folds]


def pooled(evaluations: Sequence[Evaluation]) -> Pooled:
    """Puts the evaluations of a cross-validation's folds together."""
    count = sum(each.count for each in evaluations)
    hits = sum(round(each.accuracy.value * each.count) for each in evaluations)
    metrics = {}
    for name in METRICS:
        values = tuple(each.metrics[name].value for each in evaluations if name in each.metrics)
        if len(values) == len(evaluations):
            std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            metrics[name] = Folds(values, float(np.mean(values)), std)
    return Pooled(count, proportion(hits, count), metrics)
