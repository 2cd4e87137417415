"""From logits to calibrated probabilities, and how well confidence matches accuracy.

Temperature scaling (Guo et al., On Calibration of Modern Neural Networks, 2017): logits are divided
by a temperature that minimises the log loss on validation images. Predicted classes stay the same,
only their probabilities change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int, Int64, UInt8

from smallvit.arguments import checked
from smallvit.evaluation.checks import check_labels, check_logits
from smallvit.evaluation.intervals import ratio

LOWEST, HIGHEST = 0.05, 20.0
"""Bounds of a fitted temperature."""

_STEPS = 100
_DOUBT = 6.0

BINS = 15
"""Equal bins of confidence, for the calibration error."""


def softmax(
    logits: Float[np.ndarray, "N K"], temperature: float = 1.0
) -> Float64[np.ndarray, "N K"]:
    """Probabilities of logits, in double precision."""
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}: allowed is any number above 0")
    scaled = logits.astype(np.float64) / temperature
    raised = np.exp(scaled - scaled.max(1, keepdims=True))
    return np.asarray(raised / raised.sum(1, keepdims=True))


def flip_average(
    logits_of: Callable[[UInt8[np.ndarray, "N ..."]], Float[np.ndarray, "N K"]],
    images: UInt8[np.ndarray, "N ..."],
    axis: int,
) -> Float32[np.ndarray, "N K"]:
    """Logits of images and of their mirror images, averaged as probabilities.

    Args:
        logits_of: From images to finite logits.
        images: Any images.
        axis: Along which the width of the images lies.

    Returns:
        The logarithm of the mean of both probabilities.
    """
    plain, mirrored = (_log_softmax(logits_of(view)) for view in (images, np.flip(images, axis)))
    return (np.logaddexp(plain, mirrored) - np.log(2)).astype(np.float32)


def _log_softmax(logits: Float[np.ndarray, "N K"]) -> Float64[np.ndarray, "N K"]:
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


@checked
def fit_temperature(logits: Float[np.ndarray, "N K"], labels: Int[np.ndarray, " M"]) -> float:
    """The temperature that minimises the log loss.

    The loss is convex in the inverse of the temperature, so its slope is zero in one place, which
    Newton's steps find; a step that leaves the bracket is replaced by halving it.

    Args:
        logits: Of validation images.
        labels: Their classes.

    Returns:
        A temperature between LOWEST and HIGHEST. Where every prediction is right there is no
        minimum, as more confidence is always better: then, and where all temperatures are equally
        good, 1.

    Raises:
        ValueError: Lengths differ, labels are out of range, or logits are not finite.
    """
    check_logits(logits)
    check_labels(labels, logits.shape[1])
    if len(labels) != len(logits):
        raise ValueError(f"there are {len(labels):,} labels and {len(logits):,} rows of logits")
    exact = logits.astype(np.float64)
    # The loss depends on differences alone, and only sees how far others are from the truth.
    margins = exact - exact[np.arange(len(labels)), labels][:, None]
    if (margins <= 0).all():
        return 1.0

    def slopes(inverse: float) -> tuple[float, float]:
        """First and second derivative of the loss."""
        weights = softmax(margins, 1 / inverse)
        mean = (weights * margins).sum(1)
        spread = (weights * np.square(margins - mean[:, None])).sum(1)
        return float(mean.mean()), float(spread.mean())

    low, high, inverse = 1 / HIGHEST, 1 / LOWEST, 1.0
    if slopes(low)[0] >= 0:
        return HIGHEST
    if slopes(high)[0] <= 0:
        return LOWEST
    for _ in range(_STEPS):
        slope, curve = slopes(inverse)
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        following = inverse - slope / curve if curve > 0 else low
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - inverse) <= 1e-12 * inverse:
            break
        inverse = following
    return 1 / inverse


def safe_temperature(logits: Float[np.ndarray, "N K"], labels: Int[np.ndarray, " M"]) -> float:
    """The fitted temperature, drawn towards 1 as far as so few images may be wrong about it.

    What it gains on the images it was fitted to is half of a squared deviation from 1, in standard
    errors. Its logarithm shrinks by `_DOUBT` over that square, and all of it below: no evidence
    leaves the temperature at 1, much evidence leaves it as it was fitted.

    Raises:
        ValueError: As `fit_temperature`.
    """
    temperature = fit_temperature(logits, labels)
    rows = np.arange(len(labels))
    losses = [-_log_softmax(logits / t)[rows, labels].sum() for t in (1.0, temperature)]
    deviation = 2 * max(losses[0] - losses[1], 0.0)
    if deviation <= _DOUBT:
        return 1.0
    return float(temperature ** (1 - _DOUBT / deviation))


@dataclass(frozen=True, kw_only=True)
class ConfidenceBin:
    """Images whose predictions have about the same confidence.

    Attributes:
        low: Where the bin begins.
        high: Where it ends; this edge belongs to it.
        samples: Images in it.
        confidence: Mean probability of their predictions; 0 in an empty bin.
        accuracy: The share of the predictions that is right; 0 in an empty bin.
    """

    low: float
    high: float
    samples: int
    confidence: float
    accuracy: float


def reliability(
    confidence: Float[np.ndarray, " N"], correct: Bool[np.ndarray, " N"]
) -> tuple[ConfidenceBin, ...]:
    """Confidence against accuracy, in BINS equal bins from 0 to 1.

    Args:
        confidence: The probability of each prediction.
        correct: Whether it is right.
    """
    which, edges = bin_of(confidence), np.linspace(0, 1, BINS + 1).tolist()
    samples = np.bincount(which, minlength=BINS)
    means, shares = (
        ratio(np.bincount(which, values, BINS), samples.astype(np.float64)).tolist()
        for values in (confidence.astype(np.float64), correct)
    )
    return tuple(
        ConfidenceBin(
            low=edges[i],
            high=edges[i + 1],
            samples=int(samples[i]),
            confidence=means[i],
            accuracy=shares[i],
        )
        for i in range(BINS)
    )


def calibration_error(bins: Sequence[ConfidenceBin]) -> float:
    """The expected calibration error: the mean distance of confidence and accuracy."""
    gaps = sum(each.samples * abs(each.accuracy - each.confidence) for each in bins)
    return gaps / sum(each.samples for each in bins)


def bin_of(confidence: Float[np.ndarray, " N"]) -> Int64[np.ndarray, " N"]:
    """The number of the bin that each confidence falls into."""
    return np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence)
