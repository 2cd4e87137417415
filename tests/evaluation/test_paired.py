"""Two models on the same images."""

import numpy as np
import pytest
from scipy.stats import binomtest

from smallvit.evaluation import Evaluation, measure
from smallvit.evaluation.paired import LEVEL, compare, holm, mcnemar, same_images


def evaluation(right: np.ndarray, names: tuple[str, ...] | None = None) -> Evaluation:
    """Of two classes, right where requested."""
    labels = np.arange(len(right)) % 2
    predicted = np.where(right, labels, 1 - labels)
    titles = names or tuple(f"{number}.png" for number in range(len(right)))
    logits = np.eye(2)[predicted].astype(np.float32)
    return measure(logits, labels, ("no", "yes"), split="test", names=titles, replicates=10)


@pytest.mark.parametrize(
    ("gained", "lost"), [(0, 0), (1, 0), (3, 3), (9, 1), (40, 61), (700, 500), (0, 2000)]
)
def test_mcnemar_is_the_exact_binomial_test(gained: int, lost: int) -> None:
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(gained, lost) == mcnemar(lost, gained)


def test_compare() -> None:
    one, two = np.ones(200, bool), np.ones(200, bool)
    one[:30], two[20:40] = False, False
    found = compare(evaluation(one), evaluation(two))
    assert (found.count, found.gained, found.lost) == (200, 20, 10)
    assert found.p == pytest.approx(binomtest(10, 30).pvalue)
    assert found.difference.value == pytest.approx(0.05)
    assert found.difference.low < 0 < found.difference.value < found.difference.high
    back = compare(evaluation(two), evaluation(one)).difference
    assert (back.low, back.high) == pytest.approx((-found.difference.high, -found.difference.low))


def test_the_interval_of_a_difference_covers() -> None:
    """In about 95 of 100 experiments the truth, 4 points, is inside."""
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(300):
        draw = random.random(150)
        one, two = draw < 0.80, (draw < 0.74) | (draw > 0.90)  # the second: 0.84
        found = compare(evaluation(one), evaluation(two)).difference
        inside += found.low <= 0.04 <= found.high
    assert 0.92 <= inside / 300 <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "agree", "first", "second"),
    [
        *((60, 0.5, 0.25, 0.25), (200, 0.8, 0.1, 0.1), (1000, 0.9, 0.05, 0.05)),
        *((60, 0.5, 0.15, 0.35), (200, 0.8, 0.05, 0.15), (1000, 0.9, 0.04, 0.06)),
    ],
)
def test_level_and_coverage(images: int, agree: float, first: float, second: float) -> None:
    """McNemar's test of two models, and the interval of their difference.

    Shares of the images on which both are right or both wrong, only the first is right, only the
    second is.
    """
    random = np.random.default_rng(5)
    draws = random.multinomial(images, [agree, first, second], size=4000)
    seen = inside = 0
    counts, times = np.unique(draws, axis=0, return_counts=True)
    for (both, lost, gained), repeated in zip(counts.tolist(), times.tolist(), strict=True):
        one = np.arange(images) < both + lost
        two = (np.arange(images) < both) | (np.arange(images) >= both + lost)
        found = compare(evaluation(one), evaluation(two))
        assert (found.gained, found.lost) == (gained, lost)
        seen += repeated * (found.p < LEVEL)
        inside += repeated * (found.difference.low <= second - first <= found.difference.high)
    assert 0.935 <= inside / 4000 <= 0.985
    if first == second:
        assert seen / 4000 <= LEVEL  # it is exact, so never above
    else:
        assert seen / 4000 > 2 * LEVEL


@pytest.mark.slow
def test_many_models_that_are_alike_are_rarely_called_different() -> None:
    """Holm's correction: the chance of one wrong verdict or more among all stays at the level."""
    random = np.random.default_rng(6)
    wrong = uncorrected = 0
    for _ in range(2000):
        hard = random.random(300)
        hits = [0.7 * hard + 0.3 * random.random(300) < 0.6 for _ in range(6)]
        values = []
        for other in hits[1:]:
            gained, lost = (other & ~hits[0]).sum(), (hits[0] & ~other).sum()
            values.append(mcnemar(int(gained), int(lost)))
        wrong += min(holm(values)) < LEVEL
        uncorrected += min(values) < LEVEL
    assert wrong / 2000 <= LEVEL
    assert uncorrected / 2000 > LEVEL  # a check that this one can fail


def test_other_images_are_refused() -> None:
    right = np.ones(4, bool)
    other = evaluation(right, ("a", "b", "c", "d"))
    assert not same_images(evaluation(right), other)
    with pytest.raises(ValueError, match="predictions for the same images"):
        compare(evaluation(right), other)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
