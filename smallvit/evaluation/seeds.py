"""Models that were trained several times: how good each is on average, and which is better.

Each training of a model (a seed) is tested on the same images, so an accuracy varies for two
reasons: other seeds, and other images. A mean over S seeds and N images has the variance

    var(seeds) / S + var(images) / N − residual / (S N)

of a crossed design: the first two terms are what the means per seed and per image show, and each
holds what seed and image leave unexplained, so that it is taken off once. Intervals are Student's
with Satterthwaite's degrees of freedom. Simulations in tests/evaluation check how often they hold
the truth, and how often a test sees a difference where there is none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from smallvit.evaluation.intervals import Estimate, t_tail, t_within
from smallvit.evaluation.paired import mcnemar, same_images
from smallvit.evaluation.results import Evaluation

Hits = Bool[np.ndarray, "S N"]
"""Whether each training (a row) predicts each image (a column) right."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The variance of a mean over seeds and images.

    Attributes:
        seeds: What seeds contribute; 0 where there is one.
        images: What images contribute.
        whole: The variance; what seeds and images both show is counted once.
        freedom: Its degrees of freedom.
    """

    seeds: float
    images: float
    whole: float
    freedom: float


@dataclass(frozen=True, kw_only=True)
class Versus:
    """One model against another, each trained with one or several seeds.

    Attributes:
        difference: Mean accuracy of the second minus that of the first, with its 95 % interval.
        p: How often chance alone would bring a difference as large, if both were equally good.
        seeds: The fewer of the trainings of both. With one, interval and p are those of two
            trained models on other images, and say nothing of another seed.
        from_seeds: The share of the variance that more seeds would lower; the rest is the test
            images'.
    """

    difference: Estimate
    p: float
    seeds: int
    from_seeds: float


def hits_of(evaluations: Sequence[Evaluation]) -> Hits:
    """Which images each training predicts right.

    Raises:
        ValueError: The images are not the same, or the predictions were not kept.
    """
    if not all(same_images(evaluations[0], each) for each in evaluations):
        raise ValueError(
            "expected evaluations with predictions for the same images: evaluate all on the same "
            "split of the same data"
        )
    rows = []
    for each in evaluations:
        assert each.predictions is not None  # as same_images requires
        rows.append(np.array(each.predictions.truth) == np.array(each.predictions.predicted))
    return np.stack(rows)


def mean_accuracy(hits: Hits) -> Estimate:
    """The mean over all seeds, with the 95 % interval of another seed's on other images.

    The interval is Wilson's for as many independent images as would give this variance.
    """
    value = float(hits.mean())
    spread = _spread([(hits, 1.0)])
    count = hits.shape[1]
    independent = value * (1 - value) / spread.whole if spread.whole else float(count)
    independent = min(independent, float(hits.size))
    t = t_within(spread.freedom)
    scale = 1 + t**2 / independent
    centre = (value + t**2 / (2 * independent)) / scale
    half = t * math.sqrt(value * (1 - value) / independent + (t / (2 * independent)) ** 2) / scale
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Estimate(value=value, low=min(low, value), high=max(high, value))


def deviation(hits: Hits) -> float | None:
    """The standard deviation of the accuracy over seeds; None for one seed."""
    return float(hits.mean(1).std(ddof=1)) if len(hits) > 1 else None


def versus(first: Hits, second: Bool[np.ndarray, "T M"]) -> Versus:
    """Compares two models on the same images.

    The seeds of both are taken as independent: a seed of the same number draws the same batches,
    which can only make both more alike than this assumes.

    Raises:
        ValueError: The numbers of images differ.
    """
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"expected hits on the same images, and got {first.shape[1]} and {second.shape[1]}"
        )
    value = float(second.mean() - first.mean())
    spread = _spread([(second, 1.0), (first, -1.0)])
    error = math.sqrt(spread.whole)
    p = t_tail(value / error, spread.freedom) if error else 1.0
    if len(first) == len(second) == 1:
        p = mcnemar(int((second & ~first).sum()), int((first & ~second).sum()))
    half = t_within(spread.freedom) * error
    return Versus(
        difference=Estimate(value=value, low=max(-1.0, value - half), high=min(1.0, value + half)),
        p=p,
        seeds=min(len(first), len(second)),
        from_seeds=spread.seeds / (spread.seeds + spread.images) if error else 0.0,
    )


def _spread(parts: Sequence[tuple[np.ndarray, float]]) -> Spread:
    """The variance of a sum of signed means over seeds of the same images."""
    count = parts[0][0].shape[1]
    images = sum((sign * hits.mean(0) for hits, sign in parts), np.zeros(count))
    # Half an image of each kind, as Agresti and Min add to a paired table: where all images are
    # alike the variance is small, but not nothing.
    half = 1.0 if len(parts) > 1 else 0.0
    total = count + 2 * half
    of_images = ((images**2).sum() + half) / total - (images.sum() / total) ** 2
    of_images = float(of_images) / max(total - 1, 1)
    seeds, residual, slack = 0.0, 0.0, of_images**2 / max(count - 1, 1)
    for hits, _ in parts:
        trained = len(hits)
        if trained > 1:
            share = float(hits.mean(1).var(ddof=1)) / trained
            seeds, slack = seeds + share, slack + share**2 / (trained - 1)
            residual += _residual(hits.astype(np.float64)) / (trained * count)
    whole = max(seeds + of_images - residual, seeds, of_images)
    freedom = whole**2 / slack if slack else math.inf
    return Spread(seeds=seeds, images=of_images, whole=whole, freedom=max(1.0, freedom))


def _residual(hits: Float64[np.ndarray, "S N"]) -> float:
    """The mean square that neither seed nor image explains."""
    left = hits - hits.mean(0) - hits.mean(1, keepdims=True) + hits.mean()
    return float((left**2).sum() / ((len(hits) - 1) * max(hits.shape[1] - 1, 1)))
