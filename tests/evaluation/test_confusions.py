"""Classes that are confused, side by side."""

import numpy as np
import pytest

from smallvit.evaluation import measure
from smallvit.evaluation.confusions import largest_confusions, order_classes


@pytest.mark.parametrize("seed", range(5))
def test_groups_of_confused_classes_stand_together(seed: int) -> None:
    random = np.random.default_rng(seed)
    group = random.permutation(np.repeat(np.arange(4), 5))
    same = group[:, None] == group
    confusion = np.where(same, random.integers(3, 9, same.shape), random.integers(0, 2, same.shape))
    np.fill_diagonal(confusion, 50)
    order = order_classes(confusion)
    assert sorted(order) == list(range(20))
    changes = np.count_nonzero(np.diff(group[order]))
    assert changes == 3


def test_a_chain_becomes_a_line() -> None:
    """Each class is confused with its neighbours, the nearer the more."""
    places = np.random.default_rng(0).permutation(8)
    distance = np.abs(places[:, None] - places)
    confusion = (100 * 0.25**distance).astype(int)
    order = places[order_classes(confusion)]
    assert order.tolist() in (list(range(8)), list(range(7, -1, -1)))


def test_nothing_confused_keeps_the_order() -> None:
    assert order_classes(np.diag([3, 0, 2])) == [0, 1, 2]
    assert order_classes(np.zeros((1, 1), int)) == [0]


def test_largest_confusions() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    answers = np.array([1, 1, 0, 2, 1, 1, 0])
    logits = np.eye(3, dtype=np.float32)[answers]
    found = measure(logits, labels, ("a", "b", "c"), split="test", replicates=10)
    assert largest_confusions(found, 2) == [("a", "b", 2, 3), ("b", "c", 1, 2)]
    assert len(largest_confusions(found, 9)) == 4
