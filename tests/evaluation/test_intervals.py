"""Intervals: known values, the closed form, and how often they hold the truth."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smallvit.evaluation import Estimate
from smallvit.evaluation.intervals import bootstrap, proportion, wilson
from smallvit.evaluation.metrics import METRICS, estimates


def roots(successes: int, count: int) -> list[float]:
    """The shares p whose distance from the one observed is z of their own standard deviations.

    Wilson (1927): (share - p)² = z² p (1 - p) / n, a quadratic in p.
    """
    z, share = 1.959963984540054, successes / count
    a, b, c = 1 + z * z / count, -(2 * share + z * z / count), share * share
    spread = math.sqrt(max(b * b - 4 * a * c, 0))
    return [(-b - spread) / (2 * a), (-b + spread) / (2 * a)]


@settings(deadline=None)
@given(st.integers(1, 20_000), st.floats(0, 1))
def test_wilson_solves_its_equation(count: int, share: float) -> None:
    successes = round(share * count)
    low, high = (float(bound) for bound in wilson(np.array(successes), np.array(count)))
    assert [low, high] == pytest.approx(roots(successes, count), abs=1e-7)
    assert 0 <= low <= successes / count <= high <= 1
    assert (low == 0) == (successes == 0)
    assert (high == 1) == (successes == count)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [  # the last two: Newcombe (1998), table I, method 3
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
    ],
)
def test_wilson_known_values(successes: int, count: int, low: float, high: float) -> None:
    bounds = [float(bound) for bound in wilson(np.array(successes), np.array(count))]
    assert bounds == pytest.approx([low, high], abs=5e-5)


def test_wilson_of_nothing_says_nothing_and_rows_are_independent() -> None:
    low, high = wilson(np.array([0, 5]), np.array([0, 10]))
    assert (low[0], high[0]) == (0, 1)
    assert (low[1], high[1]) == tuple(wilson(np.array(5), np.array(10)))


def test_proportion() -> None:
    estimate = proportion(175, 200)
    assert estimate.value == 0.875
    assert estimate.percent == "87.5 % (82.2–91.4)"


def test_bootstrap_of_a_mean_agrees_with_its_normal_interval() -> None:
    values = np.random.default_rng(3).exponential(size=2000)
    found = bootstrap(lambda times: {"mean": float(times @ values) / times.sum()}, 2000)["mean"]
    half = 1.96 * values.std() / math.sqrt(2000)
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(found.value - half, abs=0.1 * half)
    assert found.high == pytest.approx(found.value + half, abs=0.1 * half)


def test_bootstrap_is_a_function_of_its_seed() -> None:
    truth, predicted = np.arange(60) % 4, np.eye(4)[np.arange(60) * 7 % 5 % 4]
    same = [estimates(truth, predicted, seed=seed, replicates=100) for seed in (0, 0, 1)]
    assert same[0] == same[1] != same[2]


def test_an_interval_holds_its_value() -> None:
    random = np.random.default_rng(0)
    probabilities = random.dirichlet([1.0] * 8, size=40)
    truth = np.array([random.choice(8, p=row) for row in probabilities])
    for name, estimate in estimates(truth, probabilities, replicates=100).items():
        assert estimate.low <= estimate.value <= estimate.high, name
        assert estimate.low < estimate.high, name


@pytest.mark.parametrize("right", [True, False])
def test_a_small_test_without_a_mistake_proves_little(right: bool) -> None:
    truth = np.arange(12) % 3
    predicted = truth if right else (truth + 1) % 3
    found = estimates(truth, np.eye(3)[predicted], replicates=20)
    accuracy = found["accuracy"]
    assert (accuracy.high - accuracy.low) > 0.2
    of_classes = [found[name] for name in found if not METRICS[name].uses_confidence]
    assert len(of_classes) == 8
    for estimate in of_classes:
        assert (estimate.low, estimate.high) == (accuracy.low, accuracy.high)
        assert estimate.value == (1 if right else 0)


@pytest.mark.parametrize(
    ("trials", "lowest"), [(100, 0.85), pytest.param(1000, 0.905, marks=pytest.mark.slow)]
)
def test_intervals_hold_the_truth_as_often_as_they_say(trials: int, lowest: float) -> None:
    """Test sets of 150 images from one confusion matrix."""
    shares = np.array([[0.40, 0.06, 0.04], [0.05, 0.22, 0.03], [0.04, 0.04, 0.12]])
    random = np.random.default_rng(11)
    hits, support, predicted = np.diagonal(shares), shares.sum(1), shares.sum(0)
    truth = {
        "f1": np.mean(2 * hits / (support + predicted)),
        "precision": np.mean(hits / predicted),
        "recall": np.mean(hits / support),
        "accuracy": hits.sum(),
    }
    held = dict.fromkeys(truth, 0)
    for trial in range(trials):
        cells = random.choice(9, size=150, p=shares.ravel())
        found = estimates(cells // 3, np.eye(3)[cells % 3], replicates=200, seed=trial)
        for name, value in truth.items():
            held[name] += found[name].low <= value <= found[name].high
    # Three standard deviations below 93 %, which is what 200 draws from so few images reach.
    assert all(lowest <= count / trials <= 0.995 for count in held.values()), held


def test_estimates_are_plain_and_frozen() -> None:
    estimate = Estimate(value=0.5, low=0.25, high=0.75)
    with pytest.raises(AttributeError):
        estimate.value = 1.0  # type: ignore[misc]
