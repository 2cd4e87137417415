"""Several trainings of two models: means, differences, and what they may claim."""

import math

import numpy as np
import pytest
from scipy import stats

from smallvit.evaluation import measure
from smallvit.evaluation.intervals import proportion, t_tail, t_within
from smallvit.evaluation.paired import mcnemar
from smallvit.evaluation.seeds import Hits, deviation, hits_of, mean_accuracy, versus


@pytest.mark.parametrize("freedom", [1.0, 2.0, 2.7, 10.0, 99.5, 5000.0, math.inf])
def test_student(freedom: float) -> None:
    for value in (0.0, 0.1, -1.0, 2.5, 40.0):
        tail = 2 * stats.t.sf(abs(value), freedom)
        assert t_tail(value, freedom) == pytest.approx(tail, rel=1e-8)
    assert t_within(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-8)
    assert t_within(freedom, 0.5) == pytest.approx(stats.t.ppf(0.75, freedom), rel=1e-8)


def trained(
    random: np.random.Generator,
    hard: np.ndarray,
    seeds: int,
    *,
    skill: float,
    luck: float,
    taste: float = 0.7,
) -> Hits:
    """What trainings of one skill predict right.

    Luck varies between trainings, taste (which images are hard for this model) between models,
    and hardness is shared.
    """
    of_model = hard + taste * random.standard_normal(len(hard))
    logits = skill - of_model + luck * random.standard_normal((seeds, 1))
    return random.random((seeds, len(hard))) < 1 / (1 + np.exp(-logits))


def true_accuracy(skill: float, luck: float, taste: float) -> float:
    deviation = math.sqrt(luck**2 + 3.0**2 + taste**2)
    draws = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000) * deviation
    return float((1 / (1 + np.exp(-(skill + draws)))).mean())


def simulated(
    seeds: int, images: int, luck: float, times: int, taste: float = 0.7
) -> dict[str, float]:
    """How often intervals hold the truth, and tests see what is not there and what is."""
    random = np.random.default_rng(0)
    good, better = true_accuracy(2.0, luck, taste), true_accuracy(2.5, luck, taste)
    counts = dict.fromkeys(("mean", "difference", "false", "seen"), 0)
    for _ in range(times):
        hard = 3 * random.standard_normal(images)
        first, same, second = (
            trained(random, hard, seeds, skill=skill, luck=luck, taste=taste)
            for skill in (2.0, 2.0, 2.5)
        )
        mean, found = mean_accuracy(first), versus(first, second)
        counts["mean"] += mean.low <= good <= mean.high
        counts["difference"] += found.difference.low <= better - good <= found.difference.high
        counts["false"] += versus(first, same).p < 0.05
        counts["seen"] += found.p < 0.05
    return {name: count / times for name, count in counts.items()}


def test_intervals_hold_the_truth_and_tests_keep_their_level() -> None:
    found = simulated(seeds=3, images=1000, luck=0.1, times=100)
    assert found["mean"] >= 0.9
    assert found["difference"] >= 0.9
    assert found["false"] <= 0.07
    assert found["seen"] >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "images", "luck", "taste"),
    [
        *((2, 300, 0.2, 0.7), (3, 60, 0.1, 0.7), (3, 200, 0.05, 0.7), (3, 200, 0.2, 3.0)),
        *((3, 1000, 0.0, 3.0), (3, 1000, 0.3, 0.7), (5, 1000, 0.2, 0.7), (3, 10_000, 0.1, 0.7)),
    ],
)
def test_coverage_and_level(seeds: int, images: int, luck: float, taste: float) -> None:
    found = simulated(seeds, images, luck, 3000 if images < 5000 else 1000, taste)
    assert found["mean"] >= 0.92
    assert found["difference"] >= 0.935
    assert found["false"] <= 0.06


@pytest.mark.slow
def test_what_seeds_alone_would_claim_is_too_much() -> None:
    """A check that the check above can fail: without the images' part the level is lost."""
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(1000):
        hard = 3 * random.standard_normal(200)
        hits = [trained(random, hard, 3, skill=2.0, luck=0.02, taste=5.0) for _ in range(2)]
        means = np.stack([part.mean(1) for part in hits])
        error = math.sqrt((means.var(1, ddof=1) / 3).sum()) + 1e-9
        wrong += t_tail((means[0] - means[1]).mean() / error, 4) < 0.05
    assert wrong / 1000 > 0.2


def test_one_seed_is_mcnemar() -> None:
    random = np.random.default_rng(3)
    first, second = random.random((1, 200)) < 0.8, random.random((1, 200)) < 0.7
    found = versus(first, second)
    gained, lost = int((second & ~first).sum()), int((first & ~second).sum())
    assert found.p == mcnemar(gained, lost)
    assert found.difference.value == pytest.approx((gained - lost) / 200)
    assert (found.seeds, found.from_seeds) == (1, 0.0)
    wilson = proportion(int(first.sum()), 200)
    mean = mean_accuracy(first)
    assert (mean.low, mean.high) == pytest.approx((wilson.low, wilson.high), abs=1e-3)
    assert deviation(first) is None


def test_what_is_uncertain_is_attributed() -> None:
    random = np.random.default_rng(0)
    hard = 3 * random.standard_normal(2000)
    lucky = [trained(random, hard, 4, skill=2.0, luck=1.0) for _ in range(2)]
    steady = [trained(random, hard[:100], 4, skill=2.0, luck=0.0) for _ in range(2)]
    assert versus(*lucky).from_seeds > 0.8
    assert versus(*steady).from_seeds < 0.5
    assert deviation(lucky[0]) == pytest.approx(np.std(lucky[0].mean(1), ddof=1))


def test_models_that_agree_everywhere() -> None:
    right = np.ones((3, 40), bool)
    found = versus(right, right)
    assert (found.difference.value, found.p) == (0.0, 1.0)
    assert found.difference.low < 0 < found.difference.high  # 40 images do not prove equality
    mean = mean_accuracy(right)
    assert mean.value == mean.high == 1.0
    assert 0.85 < mean.low < 1.0
    with pytest.raises(ValueError, match="40 and 30"):
        versus(right, right[:, :30])


def test_hits_come_from_evaluations_of_the_same_images() -> None:
    labels = np.arange(6) % 2
    logits = np.eye(2, dtype=np.float32)[[0, 1, 1, 1, 0, 0]]

    def evaluated(names: str):
        return measure(logits, labels, ("a", "b"), split="test", names=list(names), replicates=5)

    hits = hits_of([evaluated("uvwxyz")] * 2)
    assert hits.tolist() == [[True, True, False, True, True, False]] * 2
    with pytest.raises(ValueError, match="same images"):
        hits_of([evaluated("uvwxyz"), evaluated("zyxwvu")])
