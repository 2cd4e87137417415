"""`Evaluation`: what was measured, as plain numbers, to JSON and back."""

import json
from dataclasses import dataclass, fields
from typing import Any

from smallvit.evaluation.intervals import Estimate

FORMAT = 1
"""Of the JSON that is written; older is read, newer refused."""


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """How one class fares.

    Attributes:
        name: The class.
        support: Images that are of it.
        predicted: Images that were taken for it.
        precision: The share of those taken for it that are of it; 0 where there are none.
        recall: The share of those of it that were taken for it; 0 to 1 where there are none.
        f1: The harmonic mean of both.
    """

    name: str
    support: int
    predicted: int
    precision: float
    recall: Estimate
    f1: float


@dataclass(frozen=True, kw_only=True)
class ConfidenceBin:
    """Images whose answers are about equally sure.

    Attributes:
        low: Where the bin begins.
        high: Where it ends.
        samples: Images in it.
        confidence: Mean probability of their answers.
        accuracy: The share of the answers that is right.
    """

    low: float
    high: float
    samples: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What was answered to each image, in the order of the split.

    Attributes:
        truth: True classes, by number.
        predicted: Answered classes, by number.
        confidence: Calibrated probability of each answer, to six places.
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


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How a model fares on a split; see `smallvit.evaluation.metrics` for what numbers mean.

    Attributes:
        split: Which images: train, val or test of the data, or all of it.
        count: How many.
        classes: Names of the classes, in the order of all numbers of classes.
        accuracy: The share of right answers.
        top5: The share of images whose class is among the five most probable; None where there
            are no more than five classes.
        balanced_accuracy: Mean recall of the classes that occur.
        precision: Mean over classes that occur or were answered (macro), as recall and f1.
        weighted_precision: Mean weighted by images, as weighted_recall and weighted_f1.
        log_loss: Mean of minus the logarithm of the true class's probability.
        ece: Expected calibration error.
        per_class: One row a class.
        confusion: Rows are true classes, columns answers.
        reliability: Confidence against accuracy.
        temperature: What logits were divided by.
        flip: Whether the mirror image was asked too.
        answers: Every single answer, for those who look at mistakes.
    """

    split: str
    count: int
    classes: tuple[str, ...]
    accuracy: Estimate
    top5: Estimate | None = None
    balanced_accuracy: Estimate
    precision: Estimate
    recall: Estimate
    f1: Estimate
    weighted_precision: Estimate
    weighted_recall: Estimate
    weighted_f1: Estimate
    log_loss: Estimate
    ece: Estimate
    per_class: tuple[ClassResult, ...]
    confusion: tuple[tuple[int, ...], ...]
    reliability: tuple[ConfidenceBin, ...]
    temperature: float = 1.0
    flip: bool = False
    answers: Answers | None = None

    def __post_init__(self) -> None:
        width = len(self.classes)
        if tuple(row.name for row in self.per_class) != self.classes:
            raise ValueError(f"per_class does not name the {width} classes in their order")
        if [len(row) for row in self.confusion] != [width] * width:
            raise ValueError(f"confusion is not {width} by {width}, as there are {width} classes")
        counted = sum(map(sum, self.confusion))
        if counted != self.count:
            raise ValueError(f"confusion counts {counted:,} images, and count is {self.count:,}")
        if self.answers and len(self.answers.truth) != self.count:
            told = len(self.answers.truth)
            raise ValueError(f"there are {told:,} answers, and count is {self.count:,}")

    @property
    def headline(self) -> dict[str, Estimate]:
        """The numbers with intervals, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Estimate)}

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes of which the split has no image; nothing was learned about them."""
        return tuple(row.name for row in self.per_class if not row.support)

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = {"accuracy": self.accuracy, "top-5": self.top5}
        lines |= {"precision": self.precision, "recall": self.recall, "F1": self.f1}
        rows = [f"{name:<10} {value.percent}" for name, value in lines.items() if value]
        rows[0] += "  95 % interval"
        rows[-1] += "  mean over classes"
        many, missing = len(self.classes), len(self.absent)
        note = f", {missing} of them absent" if missing else ""
        return "\n".join([f"{self.split}: {self.count:,} images of {many:,} classes{note}", *rows])

    def to_json(self) -> str:
        """As JSON, a line for each field; `from_json` gives back exactly the same."""
        from smallvit.config_io import to_plain

        plain = {"format": FORMAT, **to_plain(self)}
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
            ValueError: It is no JSON, was written by a newer version, or is not complete.
        """
        from smallvit.config_io import from_plain

        try:
            plain: Any = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{source} is no JSON: {error}") from error
        version = plain.pop("format", None) if isinstance(plain, dict) else None
        if not isinstance(version, int) or version > FORMAT:
            raise ValueError(
                f"{source} has evaluation format {version!r} and this smallvit reads up to "
                f"{FORMAT}: upgrade smallvit, or evaluate again"
            )
        try:
            return from_plain(cls, plain)
        except ValueError as error:
            raise ValueError(f"{source} is damaged: {error}") from error
