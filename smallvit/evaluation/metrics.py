"""How good predictions are: pure functions of true labels and predicted probabilities.

`METRICS`, at the foot, is the only table of what is measured: a row there appears in the JSON, in
the terminal, on the report page and on the comparison page.

Values are those of scikit-learn with `zero_division=0`: a ratio of nothing to nothing counts as 0,
and macro averages run over the classes that occur in truth or prediction (its default labels), so
that a class absent from both does not change them. Balanced accuracy runs over the classes that
occur in truth. Rows of a confusion matrix are true classes, columns predicted ones.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int64, Num

from smallvit.evaluation.calibration import BINS, bin_of
from smallvit.evaluation.checks import check_labels, check_probabilities
from smallvit.evaluation.intervals import REPLICATES, Estimate, bootstrap, proportion, ratio

_TINY = float(np.finfo(np.float64).eps)


class Tally(NamedTuple):
    """Counts per class, all that precision, recall and F1 rest on.

    Attributes:
        hits: How often it was true and predicted.
        support: How often it was true.
        predicted: How often it was predicted.
    """

    hits: Float64[np.ndarray, " K"]
    support: Float64[np.ndarray, " K"]
    predicted: Float64[np.ndarray, " K"]


class ClassScores(NamedTuple):
    """Precision, recall and F1 per class."""

    precision: Float64[np.ndarray, " K"]
    recall: Float64[np.ndarray, " K"]
    f1: Float64[np.ndarray, " K"]


def confusion_matrix(
    truth: Int[np.ndarray, " N"], predicted: Int[np.ndarray, " M"], num_classes: int
) -> Int64[np.ndarray, "K K"]:
    """How often each class (row) was predicted as each class (column).

    Raises:
        ValueError: Lengths differ, or labels are out of range.
    """
    check_labels(truth, num_classes, "true label")
    check_labels(predicted, num_classes, "predicted label")
    if len(truth) != len(predicted):
        raise ValueError(f"there are {len(truth):,} true labels and {len(predicted):,} predicted")
    cells = truth.astype(np.int64) * num_classes + predicted
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def tally(confusion: Int64[np.ndarray, "K K"]) -> Tally:
    """The counts per class of a confusion matrix."""
    counts = confusion.astype(np.float64)
    return Tally(np.diagonal(counts), counts.sum(1), counts.sum(0))


def class_scores(counts: Tally) -> ClassScores:
    """Precision, recall and F1 per class; 0 where there is nothing to divide by."""
    return ClassScores(
        ratio(counts.hits, counts.predicted),
        ratio(counts.hits, counts.support),
        ratio(2 * counts.hits, counts.support + counts.predicted),
    )


def averages(counts: Tally) -> dict[str, float]:
    """Precision, recall and F1 over all classes, macro and weighted, and balanced accuracy.

    The macro averages are called precision, recall and f1, the weighted ones weighted_precision
    and so on; weights are how often a class is true.
    """
    scores = class_scores(counts)
    occurs = counts.support + counts.predicted > 0
    true = counts.support > 0
    macro = {name: float(row[occurs].mean()) for name, row in scores._asdict().items()}
    weights = counts.support / counts.support.sum()
    weighted = {f"weighted_{name}": float(row @ weights) for name, row in scores._asdict().items()}
    return {**macro, **weighted, "balanced_accuracy": float(scores.recall[true].mean())}


def ranked_within(
    probabilities: Float[np.ndarray, "N K"], truth: Int[np.ndarray, " N"], k: int
) -> Bool[np.ndarray, " N"]:
    """Whether the true class is among the k most probable; equals rank in order of class."""
    of_truth = probabilities[np.arange(len(truth)), truth][:, None]
    earlier = np.arange(probabilities.shape[1]) < truth[:, None]
    before = (probabilities > of_truth) | ((probabilities == of_truth) & earlier)
    return np.asarray(before.sum(1) < k)


def sample_losses(
    probabilities: Float[np.ndarray, "N K"], truth: Int[np.ndarray, " N"]
) -> Float64[np.ndarray, " N"]:
    """Minus the logarithm of each true class's probability, which counts as 2e-16 at least."""
    of_truth = probabilities[np.arange(len(truth)), truth].astype(np.float64)
    return np.asarray(-np.log(np.clip(of_truth, _TINY, 1)))


def log_loss(probabilities: Float[np.ndarray, "N K"], truth: Int[np.ndarray, " M"]) -> float:
    """The mean of `sample_losses`.

    Raises:
        ValueError: Rows are not distributions, or labels do not fit them.
    """
    check_probabilities(probabilities, truth)
    return float(sample_losses(probabilities, truth).mean())


@dataclass(frozen=True)
class Sample:
    """Images with their true labels and the probabilities that a model gives every class."""

    truth: Int[np.ndarray, " N"]
    probabilities: Float[np.ndarray, "N K"]

    @cached_property
    def predicted(self) -> Int[np.ndarray, " N"]:
        """The most probable class of each image."""
        return self.probabilities.argmax(1)

    @cached_property
    def correct(self) -> Bool[np.ndarray, " N"]:
        """Whether that is the true one."""
        return np.asarray(self.truth == self.predicted)

    @cached_property
    def losses(self) -> Float64[np.ndarray, " N"]:
        """See `sample_losses`."""
        return sample_losses(self.probabilities, self.truth)

    @cached_property
    def gaps(self) -> tuple[Int64[np.ndarray, " N"], Float64[np.ndarray, " N"]]:
        """The bin of each image's confidence, and by how much it is right above its confidence."""
        confidence = self.probabilities.max(1).astype(np.float64)
        return bin_of(confidence), self.correct - confidence


@dataclass(frozen=True)
class Draw:
    """A sample in which each image counts as often as its weight says: what a metric is given.

    Weights are 1 for the value itself; the bootstrap draws some images several times and others
    not at all. They always sum to the number of images.
    """

    sample: Sample
    weights: Float64[np.ndarray, " N"]

    def mean(self, values: Num[np.ndarray, " N"] | Bool[np.ndarray, " N"]) -> float:
        """The weighted mean of a number per image."""
        return float(self.weights @ values) / len(self.weights)

    @cached_property
    def tally(self) -> Tally:
        """The counts per class."""
        truth, predicted = self.sample.truth, self.sample.predicted
        count = self.sample.probabilities.shape[1]
        return Tally(
            np.bincount(truth, self.weights * self.sample.correct, count),
            np.bincount(truth, self.weights, count),
            np.bincount(predicted, self.weights, count),
        )

    @cached_property
    def averages(self) -> dict[str, float]:
        """See `averages`."""
        return averages(self.tally)


@dataclass(frozen=True)
class Metric:
    """A number that is measured, and how it is shown.

    Attributes:
        title: What people call it.
        meaning: One line that explains it.
        value: Computes it.
        shown: As a percentage or as a plain number.
        higher_is_better: Whether more of it is better.
        interval: Wilson's for a share of images, the bootstrap's for anything else.
        uses_confidence: Whether it depends on how probable a prediction is, and not only on which
            class is predicted.
        min_classes: With fewer classes it says nothing and is left out.
        brief: Whether it is among the few numbers of a summary.
    """

    title: str
    meaning: str
    value: Callable[[Draw], float]
    _: KW_ONLY
    shown: Literal["percent", "number"] = "percent"
    higher_is_better: bool = True
    interval: Literal["wilson", "bootstrap"] = "bootstrap"
    uses_confidence: bool = False
    min_classes: int = 1
    brief: bool = False

    @property
    def explanation(self) -> str:
        """The meaning, and the direction where one might take it for the other."""
        return self.meaning + ("" if self.higher_is_better else "; lower is better")

    def text(self, estimate: Estimate) -> str:
        """The number with its interval, as it is shown."""
        return estimate.percent if self.shown == "percent" else estimate.number


def estimates(
    truth: Int[np.ndarray, " N"],
    probabilities: Float[np.ndarray, "M K"],
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> dict[str, Estimate]:
    """All metrics by name, with their intervals.

    Args:
        truth: The true labels.
        probabilities: Of every class.
        replicates: Of the bootstrap.
        seed: Of the bootstrap.

    Returns:
        In the order of the table. Where all predictions are right, or all wrong, every draw of the
        bootstrap looks the same and says nothing; metrics of the predicted classes are then as
        sure as the accuracy is. The calibration error of a small sample leans upwards, and so does
        its interval.

    Raises:
        ValueError: Lengths differ, labels are out of range, or rows are not distributions.
    """
    check_probabilities(probabilities, truth)
    sample, count = Sample(truth, probabilities), len(truth)
    table = {
        name: metric
        for name, metric in METRICS.items()
        if probabilities.shape[1] >= metric.min_classes
    }

    def values(weights: Float64[np.ndarray, " N"]) -> dict[str, float]:
        draw, drawn = Draw(sample, weights), table.items()
        return {name: each.value(draw) for name, each in drawn if each.interval == "bootstrap"}

    drawn = bootstrap(values, count, replicates=replicates, seed=seed)
    accuracy = proportion(int(sample.correct.sum()), count)
    constant = sample.correct.all() or not sample.correct.any()
    results = {}
    for name, metric in table.items():
        if metric.interval == "wilson":
            share = metric.value(Draw(sample, np.ones(count)))
            results[name] = proportion(round(share * count), count)
        elif constant and not metric.uses_confidence:
            results[name] = drawn[name].widened(accuracy)
        else:
            results[name] = drawn[name]
    return results


def _average(name: str) -> Callable[[Draw], float]:
    return lambda draw: draw.averages[name]


def _calibration_error(draw: Draw) -> float:
    bins, gaps = draw.sample.gaps
    return float(np.abs(np.bincount(bins, draw.weights * gaps, BINS)).sum()) / len(gaps)


METRICS: dict[str, Metric] = {
    "accuracy": Metric(
        "Accuracy",
        "share of images predicted right",
        lambda draw: draw.mean(draw.sample.correct),
        interval="wilson",
        brief=True,
    ),
    "top5": Metric(
        "Top-5 accuracy",
        "true class among the five most probable",
        lambda draw: draw.mean(ranked_within(draw.sample.probabilities, draw.sample.truth, 5)),
        interval="wilson",
        uses_confidence=True,
        min_classes=6,
        brief=True,
    ),
    "balanced_accuracy": Metric(
        "Balanced accuracy",
        "mean recall: every class counts the same",
        _average("balanced_accuracy"),
    ),
    "precision": Metric(
        "Precision",
        "how often a predicted class is right, mean over classes",
        _average("precision"),
        brief=True,
    ),
    "recall": Metric(
        "Recall",
        "how much of a class is found, mean over classes",
        _average("recall"),
        brief=True,
    ),
    "f1": Metric(
        "F1", "precision and recall combined, mean over classes", _average("f1"), brief=True
    ),
    "weighted_precision": Metric(
        "Weighted precision",
        "mean over classes weighted by their images",
        _average("weighted_precision"),
    ),
    "weighted_recall": Metric(
        "Weighted recall",
        "mean weighted by images: the same as accuracy",
        _average("weighted_recall"),
    ),
    "weighted_f1": Metric(
        "Weighted F1", "mean over classes weighted by their images", _average("weighted_f1")
    ),
    "log_loss": Metric(
        "Log loss",
        "minus log of the true class's probability",
        lambda draw: draw.mean(draw.sample.losses),
        shown="number",
        higher_is_better=False,
        uses_confidence=True,
    ),
    "ece": Metric(
        "Calibration error",
        "how far confidence is from accuracy (ECE)",
        _calibration_error,
        higher_is_better=False,
        uses_confidence=True,
    ),
}
"""What is measured, by the name that the JSON and `Evaluation` use."""
