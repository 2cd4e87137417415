"""Which classes are taken for which, and an order of classes in which these stand together."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int

from smallvit.evaluation.results import Evaluation


class Confusion(NamedTuple):
    """Images of one class that were taken for another.

    Attributes:
        truth: What they are.
        answer: What they were taken for.
        images: How many.
        support: How many there are of the true class.
    """

    truth: str
    answer: str
    images: int
    support: int


def largest_confusions(found: Evaluation, limit: int) -> list[Confusion]:
    """The pairs of classes that are confused most often; equals by the share of the class."""
    pairs = [
        Confusion(found.classes[i], found.classes[j], count, found.per_class[i].support)
        for i, row in enumerate(found.confusion)
        for j, count in enumerate(row)
        if count and i != j
    ]
    return sorted(pairs, key=lambda pair: (-pair.images, pair.support))[:limit]


def order_classes(confusion: Int[np.ndarray, "K K"]) -> list[int]:
    """Places of the classes, so that those that are confused stand side by side.

    Classes are joined pairwise, the most confused first (average linkage on the share of images
    that go either way). Each group is a row; two rows are joined at the ends that are confused
    most. Where nothing is confused the order is the classes' own.
    """
    likeness = _likeness(confusion)
    rows = [[place] for place in range(len(confusion))]
    between = likeness.copy()
    np.fill_diagonal(between, -1)
    while len(rows) > 1:
        first, second = sorted(divmod(int(between.argmax()), len(rows)))
        if between[first, second] <= 0:
            break
        left, right = len(rows[first]), len(rows[second])
        mixed = (left * between[first] + right * between[second]) / (left + right)
        rows[first] = _joined(rows[first], rows[second], likeness)
        between[first], between[:, first] = mixed, mixed
        between[first, first] = -1
        between = np.delete(np.delete(between, second, 0), second, 1)
        del rows[second]
    return [place for row in rows for place in row]


def _likeness(confusion: Int[np.ndarray, "K K"]) -> Float64[np.ndarray, "K K"]:
    """The share of images of either class that is taken for the other."""
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    both = shares + shares.T
    np.fill_diagonal(both, 0)
    return np.asarray(both)


def _joined(left: list[int], right: list[int], likeness: Float64[np.ndarray, "K K"]) -> list[int]:
    """Two rows as one, turned so that the ends that meet are as alike as can be."""
    ways = [(a, b) for a in (left, left[::-1]) for b in (right, right[::-1])]
    best = max(ways, key=lambda way: likeness[way[0][-1], way[1][0]])
    return best[0] + best[1]
