"""What labels, logits and probabilities must be; anything else is refused with a sentence."""

import numpy as np
from jaxtyping import Float, Num

SLACK = 1e-3
"""How far the probabilities of an image may be from a sum of 1."""


def check_labels(labels: Num[np.ndarray, "..."], num_classes: int, what: str = "label") -> None:
    """Refuses anything but labels of `num_classes` classes, at least one of them.

    Raises:
        ValueError: There are none, they are not whole numbers, or some are out of range.
    """
    if labels.ndim != 1 or not len(labels):
        raise ValueError(f"expected one {what} per image, and got an array of {labels.shape}")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"a {what} is a whole number, and these are {labels.dtype}")
    if labels.min() < 0 or labels.max() >= num_classes:
        wrong = int(labels.min() if labels.min() < 0 else labels.max())
        raise ValueError(
            f"a {what} is {wrong}: with {num_classes} classes, 0 to {num_classes - 1} are allowed"
        )


def check_probabilities(
    probabilities: Num[np.ndarray, "..."], truth: Num[np.ndarray, "..."]
) -> None:
    """Refuses anything but one distribution over classes per image, and one label per image.

    Raises:
        ValueError: The shape is wrong, rows are not distributions, or labels do not fit them.
    """
    rows, classes = len(probabilities), probabilities.shape[-1]
    if probabilities.ndim != 2:
        raise ValueError(f"expected probabilities as (images, classes), got {probabilities.shape}")
    check_labels(truth, classes, "true label")
    if len(truth) != rows:
        raise ValueError(f"there are {len(truth):,} true labels and {rows:,} rows of probabilities")
    bad = ~np.isfinite(probabilities).all(1)
    if bad.any():
        raise ValueError(
            f"{bad.sum():,} of {len(bad):,} images have probabilities that are not finite, "
            f"the first at index {int(bad.argmax())}: the model has diverged"
        )
    sums = probabilities.sum(1, dtype=np.float64)
    bad = (np.abs(sums - 1) > SLACK) | (probabilities.min(1) < 0)
    if bad.any():
        first = int(bad.argmax())
        raise ValueError(
            f"probabilities at index {first} go down to {probabilities[first].min():.3g} and sum "
            f"to {sums[first]:.3g}: none may be negative and each row sums to 1; softmax logits "
            "first"
        )


class NotFiniteError(ValueError):
    """Logits are infinite or not a number."""


def check_logits(logits: Float[np.ndarray, "N K"]) -> None:
    """Refuses logits that are not finite.

    Raises:
        NotFiniteError: Some are infinite or not a number.
        ValueError: They have another shape.
    """
    if logits.ndim != 2:
        raise ValueError(f"expected logits as (images, classes), got {logits.shape}")
    bad = ~np.isfinite(logits).all(1)
    if bad.any():
        raise NotFiniteError(
            f"{bad.sum():,} of {len(bad):,} images have logits that are not finite, the first at "
            f"index {int(bad.argmax())}: the model has diverged, or its precision is too low"
        )
