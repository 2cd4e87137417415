"""Accuracy against the number of training images, and what twice as many would bring."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import norm

from smallvit.evaluation.power_law import fit_power_law

Law = Callable[[float], float]


def outcomes(
    random: np.random.Generator,
    counts: tuple[int, ...],
    error: Law,
    *,
    seeds: int,
    images: int,
    luck: float,
) -> dict[int, np.ndarray]:
    """Trainings whose error follows a law, on test images of which some are always hard."""
    hard = random.standard_normal(images)
    hits = {}
    for count in counts:
        errors = np.clip(error(count) * np.exp(luck * random.standard_normal((seeds, 1))), 0, 0.99)
        own = random.standard_normal((seeds, images))
        hits[count] = 0.8 * hard + 0.6 * own < norm.isf(errors)
    return hits


def pure(count: float) -> float:
    return 3 * count**-0.35


def ends(count: float) -> float:
    return 0.05 + 6 * count**-0.5


def flat(count: float) -> float:
    return 0.2


COUNTS = (500, 1000, 2000, 4000, 8000)


@pytest.mark.parametrize("error", [pure, ends, flat])
def test_a_law_without_noise_is_found(error: Law) -> None:
    hits = {}
    for count in COUNTS:
        wrong = round(error(count) * 100_000)
        hits[count] = (np.arange(100_000) >= wrong)[None]
    law = fit_power_law(hits, replicates=3)
    truth = error(8000) - error(16_000)
    assert law.gain().value == pytest.approx(truth, abs=6e-4)
    assert law.gain(4).value == pytest.approx(error(8000) - error(32_000), abs=1e-3)
    assert law.accuracy(2000).value == pytest.approx(1 - error(2000), abs=1e-3)
    assert law.counts == COUNTS


def test_the_uncertainty_is_that_of_images_and_seeds() -> None:
    random = np.random.default_rng(0)
    widths = {}
    for name, images, luck in (("few", 200, 0.0), ("many", 5000, 0.0), ("lucky", 5000, 0.1)):
        hits = outcomes(random, COUNTS, pure, seeds=3, images=images, luck=luck)
        gain = fit_power_law(hits, replicates=200).gain()
        assert gain.low <= gain.value <= gain.high
        widths[name] = gain.high - gain.low
    assert widths["few"] > 2 * widths["many"]
    assert widths["lucky"] > 2 * widths["many"]
    again = [fit_power_law(hits, replicates=200).gain() for _ in range(2)]
    assert again[0] == again[1]


def coverage(error: Law, counts: tuple[int, ...], times: int, **how: float) -> float:
    random = np.random.default_rng(1)
    truth = error(counts[-1]) - error(2 * counts[-1])
    inside = 0
    for _ in range(times):
        hits = outcomes(random, counts, error, **how)
        gain = fit_power_law(hits, replicates=200).gain()
        inside += gain.low <= truth <= gain.high
    return inside / times


@pytest.mark.slow
@pytest.mark.parametrize("error", [pure, ends, flat])
@pytest.mark.parametrize(
    ("counts", "images", "luck"),
    [(COUNTS, 1000, 0.03), (COUNTS, 5000, 0.03), ((150, 300, 600), 150, 0.06)],
)
def test_the_interval_covers(error: Law, counts: tuple, images: int, luck: float) -> None:
    covered = coverage(error, counts, 200, seeds=3, images=images, luck=luck)
    assert 0.93 <= covered <= 1.0


@pytest.mark.slow
def test_without_seeds_the_interval_is_too_narrow() -> None:
    """Why one seed is not enough, and a check that the check above can fail."""
    assert coverage(pure, COUNTS, 200, seeds=1, images=1000, luck=0.05) < 0.9


def test_two_numbers_are_no_curve() -> None:
    hits = np.ones((1, 10), bool)
    with pytest.raises(ValueError, match="three or more"):
        fit_power_law({10: hits, 20: hits})
    with pytest.raises(ValueError, match="one of test images"):
        fit_power_law({10: hits, 20: hits, 40: hits[:, :5]})
    perfect = fit_power_law({10: hits, 20: hits, 40: hits}, replicates=5)
    assert perfect.gain().value == pytest.approx(0, abs=1e-9)
    assert perfect.seeds == 1
