"""Two models on the same images: whether one is better, or the difference is chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from smallvit.evaluation.intervals import Estimate, Z
from smallvit.evaluation.results import Evaluation

LEVEL = 0.05
"""A difference that chance alone would bring less often than this is significant."""


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Two models on the same images.

    Attributes:
        count: Images.
        gained: Images that only the second has right.
        lost: Images that only the first has right.
        p: The p-value of McNemar's exact test: how often chance alone would bring a difference as
            large, if both were equally good.
        difference: Accuracy of the second minus that of the first, with its 95 % interval
            (Agresti and Min 2005: half an image is added to each of the four counts).
    """

    count: int
    gained: int
    lost: int
    p: float
    difference: Estimate


def same_images(first: Evaluation, second: Evaluation) -> bool:
    """Whether both evaluations are of images with the same names and classes, in order.

    What images hold is not compared: use it for evaluations of the same data.
    """
    one, two = first.predictions, second.predictions
    if one is None or two is None or not one.names:
        return False
    labels = [
        [evaluation.classes[label] for label in predictions.truth]
        for evaluation, predictions in ((first, one), (second, two))
    ]
    return one.names == two.names and labels[0] == labels[1]


def compare(first: Evaluation, second: Evaluation) -> Paired:
    """Compares the predictions of two models for the same images.

    Raises:
        ValueError: The images are not the same, or the predictions were not kept.
    """
    if not same_images(first, second):
        raise ValueError(
            "expected two evaluations with predictions for the same images: evaluate both on the "
            "same split of the same data"
        )
    assert first.predictions is not None
    assert second.predictions is not None
    hits = [
        [truth == guess for truth, guess in zip(part.truth, part.predicted, strict=True)]
        for part in (first.predictions, second.predictions)
    ]
    gained = sum(two and not one for one, two in zip(*hits, strict=True))
    lost = sum(one and not two for one, two in zip(*hits, strict=True))
    return Paired(
        count=first.count,
        gained=gained,
        lost=lost,
        p=mcnemar(gained, lost),
        difference=_difference(gained, lost, first.count),
    )


def mcnemar(gained: int, lost: int) -> float:
    """The exact two-sided p-value: how often a fair coin is at least as one-sided."""
    tosses, term, tail = gained + lost, 1, 0
    for heads in range(min(gained, lost) + 1):
        tail += term
        term = term * (tosses - heads) // (heads + 1)
    return min(1.0, 2 * tail / 2**tosses)


def holm(values: Sequence[float]) -> list[float]:
    """P-values of several tests at once, corrected after Holm so that each may be read alone."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    corrected, least = [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(values) - rank) * values[index]))
        corrected[index] = least
    return corrected


def _difference(gained: int, lost: int, count: int) -> Estimate:
    value, total = (gained - lost) / count, count + 2
    centre = (gained - lost) / total
    half = Z * math.sqrt((gained + lost + 1) / total - centre**2) / math.sqrt(total)
    return Estimate(
        value=value,
        low=max(-1.0, min(value, centre - half)),
        high=min(1.0, max(value, centre + half)),
    )
