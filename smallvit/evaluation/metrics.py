"""How good answers are: pure functions of true labels and predicted labels or probabilities.

Values are those of scikit-learn with `zero_division=0`: a ratio of nothing to nothing counts as 0,
and macro averages run over the classes that occur in truth or prediction (its default labels), so
that a class absent from both neither helps nor harms. Balanced accuracy runs over the classes that
occur in truth. Rows of a confusion matrix are true classes, columns predicted ones.

Numbers with intervals: `estimates`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int64, Num

from smallvit.evaluation.intervals import REPLICATES, Estimate, bootstrap, proportion

BINS = 15
"""Equal bins of confidence, for the calibration error."""

_TINY = float(np.finfo(np.float64).eps)
_SLACK = 1e-3
_AVERAGES = (
    *("precision", "recall", "f1", "balanced_accuracy"),
    *("weighted_precision", "weighted_recall", "weighted_f1"),
)


class Tally(NamedTuple):
    """Counts for each class, all that precision, recall and F1 rest on.

    Attributes:
        hits: How often it was the truth and the answer.
        support: How often it was the truth.
        predicted: How often it was the answer.
    """

    hits: Float64[np.ndarray, " K"]
    support: Float64[np.ndarray, " K"]
    predicted: Float64[np.ndarray, " K"]


class ClassScores(NamedTuple):
    """Precision, recall and F1 of each class."""

    precision: Float64[np.ndarray, " K"]
    recall: Float64[np.ndarray, " K"]
    f1: Float64[np.ndarray, " K"]


class Reliability(NamedTuple):
    """Samples by confidence of their answer, one row for each of the equal bins from 0 to 1.

    Attributes:
        samples: How many are in the bin, whose upper edge belongs to it.
        confidence: Their mean confidence; 0 in an empty bin.
        accuracy: The share of them that is right; 0 in an empty bin.
    """

    samples: Int64[np.ndarray, " bins"]
    confidence: Float64[np.ndarray, " bins"]
    accuracy: Float64[np.ndarray, " bins"]

    @property
    def error(self) -> float:
        """The expected calibration error: how far confidence is from accuracy, on average."""
        gaps = np.abs(self.accuracy - self.confidence)
        return float(self.samples @ gaps / self.samples.sum())


def check_labels(labels: Num[np.ndarray, "..."], num_classes: int, what: str = "label") -> None:
    """Refuses what are no labels of `num_classes` classes, or none at all.

    Raises:
        ValueError: There are none, they are no whole numbers, or some are out of range.
    """
    if labels.ndim != 1 or not len(labels):
        raise ValueError(f"expected one {what} an image, and got an array of {labels.shape}")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"a {what} is a whole number, and these are {labels.dtype}")
    if labels.min() < 0 or labels.max() >= num_classes:
        wrong = int(labels.min() if labels.min() < 0 else labels.max())
        raise ValueError(
            f"a {what} is {wrong}: with {num_classes} classes, 0 to {num_classes - 1} are allowed"
        )


def check_probabilities(probabilities: Num[np.ndarray, "..."]) -> None:
    """Refuses what are no probabilities of classes, one row an image.

    Raises:
        ValueError: The shape is wrong, or rows hold something that is no distribution.
    """
    if probabilities.ndim != 2 or not probabilities.size:
        raise ValueError(
            f"expected probabilities as (images, classes), and got {probabilities.shape}"
        )
    bad = ~np.isfinite(probabilities).all(1)
    if bad.any():
        raise ValueError(
            f"{bad.sum():,} of {len(bad):,} images have probabilities that are not finite, "
            f"the first at place {int(bad.argmax())}: the model has diverged"
        )
    sums = probabilities.sum(1, dtype=np.float64)
    bad = (np.abs(sums - 1) > _SLACK) | (probabilities.min(1) < 0)
    if bad.any():
        place = int(bad.argmax())
        raise ValueError(
            f"probabilities at place {place} go down to {probabilities[place].min():.3g} and sum "
            f"to {sums[place]:.3g}: none may be negative and each row sums to 1; softmax logits "
            "first"
        )


def confusion_matrix(
    truth: Int[np.ndarray, " N"], predicted: Int[np.ndarray, " M"], num_classes: int
) -> Int64[np.ndarray, "K K"]:
    """How often each class (row) was answered with each class (column).

    Raises:
        ValueError: Lengths differ, or labels are out of range.
    """
    _check_answers(truth, predicted, num_classes)
    cells = truth.astype(np.int64) * num_classes + predicted
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def tally(confusion: Int64[np.ndarray, "K K"]) -> Tally:
    """The counts of each class in a confusion matrix."""
    counts = confusion.astype(np.float64)
    return Tally(np.diagonal(counts), counts.sum(1), counts.sum(0))


def class_scores(counts: Tally) -> ClassScores:
    """Precision, recall and F1 of each class; 0 where there is nothing to divide by."""
    return ClassScores(
        _ratio(counts.hits, counts.predicted),
        _ratio(counts.hits, counts.support),
        _ratio(2 * counts.hits, counts.support + counts.predicted),
    )


def averages(counts: Tally) -> dict[str, float]:
    """Precision, recall and F1 over all classes, macro and weighted, and balanced accuracy.

    The macro averages are called precision, recall and f1, the weighted ones weighted_precision
    and so on; weights are how often a class is the truth.
    """
    scores = class_scores(counts)
    occurs = counts.support + counts.predicted > 0
    true = counts.support > 0
    macro = {name: float(row[occurs].mean()) for name, row in scores._asdict().items()}
    weights = counts.support / counts.support.sum()
    weighted = {f"weighted_{name}": float(row @ weights) for name, row in scores._asdict().items()}
    return {**macro, **weighted, "balanced_accuracy": float(scores.recall[true].mean())}


def ranked_within(
    probabilities: Float[np.ndarray, "N K"], truth: Int[np.ndarray, " M"], k: int
) -> Bool[np.ndarray, " N"]:
    """Whether the true class is among the k most probable; equals rank in order of class."""
    _check_both(truth, probabilities)
    own = probabilities[np.arange(len(truth)), truth][:, None]
    earlier = np.arange(probabilities.shape[1]) < truth[:, None]
    before = (probabilities > own) | ((probabilities == own) & earlier)
    return np.asarray(before.sum(1) < k)


def sample_losses(
    probabilities: Float[np.ndarray, "N K"], truth: Int[np.ndarray, " M"]
) -> Float64[np.ndarray, " N"]:
    """Minus the logarithm of each true class's probability, which counts as 2e-16 at least."""
    _check_both(truth, probabilities)
    own = probabilities[np.arange(len(truth)), truth].astype(np.float64)
    return np.asarray(-np.log(np.clip(own, _TINY, 1)))


def log_loss(probabilities: Float[np.ndarray, "N K"], truth: Int[np.ndarray, " M"]) -> float:
    """The mean of `sample_losses`."""
    return float(sample_losses(probabilities, truth).mean())


def reliability(
    confidence: Float[np.ndarray, " N"], correct: Bool[np.ndarray, " N"], bins: int = BINS
) -> Reliability:
    """Confidence against accuracy.

    Args:
        confidence: The probability of each answer.
        correct: Whether it is right.
        bins: Into how many equal parts 0 to 1 is divided.
    """
    places = _bin(confidence, bins)
    samples = np.bincount(places, minlength=bins)
    sums = (
        np.bincount(places, weights=values, minlength=bins)
        for values in (confidence.astype(np.float64), correct)
    )
    return Reliability(samples, *(_ratio(part, samples.astype(np.float64)) for part in sums))


def estimates(
    truth: Int[np.ndarray, " N"],
    answers: Int[np.ndarray, " M"] | Float[np.ndarray, "M K"],
    num_classes: int,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> dict[str, Estimate]:
    """All headline numbers by name, with their intervals.

    Args:
        truth: The true labels.
        answers: Predicted labels, or the probability of every class. With probabilities there are
            also log_loss and ece, and top5 where there are more than five classes.
        num_classes: How many there are.
        replicates: Of the bootstrap.
        seed: Of the bootstrap.

    Returns:
        Wilson's interval for accuracy and top5, the bootstrap's for the others. Where all answers
        are right, or all wrong, every draw looks the same and says nothing; precision, recall and
        F1 are then as sure as the accuracy is. The calibration error of a small sample leans
        upwards, and so does its interval.

    Raises:
        ValueError: Lengths differ, labels are out of range, or rows are no probabilities.
    """
    probabilities = answers if answers.ndim == 2 else None
    if probabilities is not None:
        _check_both(truth, probabilities)
        if probabilities.shape[1] != num_classes:
            many = probabilities.shape[1]
            raise ValueError(f"{many} probabilities an image, and {num_classes} classes")
    predicted = answers if probabilities is None else probabilities.argmax(1)
    _check_answers(truth, predicted, num_classes)
    correct = truth == predicted
    found = {"accuracy": proportion(correct)}
    if probabilities is not None and num_classes > 5:
        found["top5"] = proportion(ranked_within(probabilities, truth, 5))
    statistics = _statistics(truth, predicted, num_classes, probabilities)
    drawn = bootstrap(statistics, len(truth), replicates=replicates, seed=seed)
    if correct.all() or not correct.any():
        drawn |= {name: _as_sure_as(found["accuracy"], drawn[name]) for name in _AVERAGES}
    return found | drawn


def _statistics(
    truth: Int[np.ndarray, " N"],
    predicted: Int[np.ndarray, " N"],
    num_classes: int,
    probabilities: Float[np.ndarray, "N K"] | None,
) -> Callable[[Float64[np.ndarray, " N"]], dict[str, float]]:
    """What the bootstrap asks for: the numbers if each sample occurs so many times."""
    correct = truth == predicted

    def of_labels(times: Float64[np.ndarray, " N"]) -> dict[str, float]:
        return averages(
            Tally(
                np.bincount(truth, times * correct, num_classes),
                np.bincount(truth, times, num_classes),
                np.bincount(predicted, times, num_classes),
            )
        )

    if probabilities is None:
        return of_labels
    losses = sample_losses(probabilities, truth)
    confidence = probabilities.max(1).astype(np.float64)
    places, gaps = _bin(confidence, BINS), correct - confidence

    def of_both(times: Float64[np.ndarray, " N"]) -> dict[str, float]:
        sums = np.bincount(places, times * gaps, BINS)
        return {
            **of_labels(times),
            "log_loss": float(times @ losses) / len(times),
            "ece": float(np.abs(sums).sum()) / len(times),
        }

    return of_both


def _as_sure_as(accuracy: Estimate, average: Estimate) -> Estimate:
    low, high = min(accuracy.low, average.low), max(accuracy.high, average.high)
    return Estimate(value=average.value, low=low, high=high)


def _check_answers(
    truth: Num[np.ndarray, "..."], predicted: Num[np.ndarray, "..."], num_classes: int
) -> None:
    check_labels(truth, num_classes, "true label")
    check_labels(predicted, num_classes, "predicted label")
    _check_lengths(truth, predicted, "predicted labels")


def _check_both(truth: Num[np.ndarray, "..."], probabilities: Num[np.ndarray, "..."]) -> None:
    check_probabilities(probabilities)
    check_labels(truth, probabilities.shape[1], "true label")
    _check_lengths(truth, probabilities, "rows of probabilities")


def _check_lengths(
    truth: Num[np.ndarray, "..."], answers: Num[np.ndarray, "..."], what: str
) -> None:
    if len(truth) != len(answers):
        raise ValueError(f"there are {len(truth):,} true labels and {len(answers):,} {what}")


def _bin(confidence: Float[np.ndarray, " N"], bins: int) -> Int64[np.ndarray, " N"]:
    edges = np.linspace(0, 1, bins + 1)[1:-1]
    return np.searchsorted(edges, confidence)


def _ratio(
    part: Float64[np.ndarray, " n"], whole: Float64[np.ndarray, " n"]
) -> Float64[np.ndarray, " n"]:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
