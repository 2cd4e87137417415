"""Temperature scaling against a search through all temperatures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smallvit.evaluation.calibration import (
    HIGHEST,
    LOWEST,
    fit_temperature,
    flip_average,
    safe_temperature,
    softmax,
)


def losses_at(logits: np.ndarray, labels: np.ndarray, temperatures: np.ndarray) -> np.ndarray:
    """The log loss at each temperature, without the bound that `log_loss` puts on it."""
    scaled = logits[None] / temperatures[:, None, None]
    peak = scaled.max(2, keepdims=True)
    normaliser = np.log(np.exp(scaled - peak).sum(2)) + peak[..., 0]
    return (normaliser - scaled[:, np.arange(len(labels)), labels]).mean(1)


def searched(logits: np.ndarray, labels: np.ndarray) -> float:
    """The best of 4,001 temperatures, then the best of as many around it."""
    low, high = np.log(LOWEST), np.log(HIGHEST)
    for _ in range(2):
        grid = np.exp(np.linspace(low, high, 4001))
        best = int(losses_at(logits, labels, grid).argmin())
        low, high = np.log(grid[max(best - 1, 0)]), np.log(grid[min(best + 1, 4000)])
    return float(grid[best])


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("num_classes", [2, 7])
def test_no_other_temperature_is_better(scale: float, num_classes: int) -> None:
    random = np.random.default_rng(num_classes)
    labels = random.integers(num_classes, size=40)
    logits = random.normal(size=(40, num_classes)) + 1.2 * np.eye(num_classes)[labels]
    logits = scale * logits + 50
    assert fit_temperature(logits, labels) == pytest.approx(searched(logits, labels), rel=1e-5)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(-3, 4), st.floats(0, 3))
def test_anything_stays_in_bounds_and_helps(seed: int, scale: float, skill: float) -> None:
    random = np.random.default_rng(seed)
    labels = random.integers(3, size=random.integers(1, 20))
    logits = random.normal(size=(len(labels), 3)) + skill * np.eye(3)[labels]
    logits *= 10**scale
    found = fit_temperature(logits, labels)
    assert LOWEST <= found <= HIGHEST
    others = np.clip([found, 1.0, 0.98 * found, 1.02 * found], LOWEST, HIGHEST)
    loss, *rest = losses_at(logits, labels, others)
    if not (logits.argmax(1) == labels).all():
        assert loss <= min(rest) * (1 + 1e-12)


def test_a_temperature_put_in_is_found_again() -> None:
    random = np.random.default_rng(0)
    logits = 2 * random.normal(size=(20_000, 5))
    labels = np.array([random.choice(5, p=row) for row in softmax(logits)])
    for temperature in (0.5, 1.0, 3.0):
        assert fit_temperature(temperature * logits, labels) == pytest.approx(temperature, rel=0.03)


@pytest.mark.parametrize(
    ("logits", "labels", "expected"),
    [
        ([[0.0, 3.0]], [1], 1.0),  # one sample, right
        ([[1e30, 0.0], [0.0, 1e30]], [0, 1], 1.0),  # right by any margin
        ([[0.0, 3.0]], [0], HIGHEST),  # one sample, wrong
        ([[1e30, 0.0], [0.0, 1e30]], [1, 0], HIGHEST),
        ([[2.0, 2.0], [5.0, 5.0]], [0, 1], 1.0),  # says nothing
        ([[9.0], [9.0]], [0, 0], 1.0),  # one class
        ([[1e-3, 0.0]] * 9 + [[0.0, 1e-3]], [0] * 10, LOWEST),  # far too modest
    ],
)
def test_degenerate(logits: list, labels: list, expected: float) -> None:
    assert fit_temperature(np.array(logits), np.array(labels)) == expected


def test_single_precision_is_fine() -> None:
    random = np.random.default_rng(5)
    labels = random.integers(4, size=60)
    logits = (3 * random.normal(size=(60, 4)) + np.eye(4)[labels]).astype(np.float32)
    assert fit_temperature(logits, labels) == fit_temperature(logits.astype(np.float64), labels)


@pytest.mark.parametrize(
    ("logits", "labels", "sentence"),
    [
        (np.array([[0.0, np.inf]]), np.array([0]), "1 of 1 images have logits that are not fin"),
        (np.zeros((2, 3)), np.array([0]), "there are 1 labels and 2 rows of logits"),
        (np.zeros((2, 3)), np.array([0, 3]), "a label is 3: with 3 classes, 0 to 2 are allowed"),
        (np.zeros((0, 3)), np.zeros(0, int), "expected one label per image"),
    ],
)
def test_bad_input(logits: np.ndarray, labels: np.ndarray, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fit_temperature(logits, labels)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_temperatures_are_positive(temperature: float) -> None:
    with pytest.raises(ValueError, match=r"temperature is .*: allowed is any number above 0"):
        softmax(np.zeros((1, 2)), temperature)


def test_flip_average_is_the_mean_of_both_probabilities_and_finite() -> None:
    images = np.array([[[0, 10, 20]], [[1, 1, 9]]], np.uint8)
    logits = {
        0: [3.0, -2000.0, 0.0],
        20: [1.0, -900.0, 0.0],
        1: [0.0, 1.0, 2.0],
        9: [0.0, 0.0, 0.0],
    }

    def model(pixels: np.ndarray) -> np.ndarray:
        return np.array([logits[int(image[0, 0])] for image in pixels], np.float32)

    averaged = flip_average(model, images, axis=2)
    assert averaged.dtype == np.float32
    assert np.isfinite(averaged).all()
    expected = (softmax(model(images)) + softmax(model(images[:, :, ::-1]))) / 2
    np.testing.assert_allclose(np.exp(averaged.astype(np.float64)), expected, rtol=1e-5)
    # The smaller of the two is lost in the sum, and the larger one halved.
    assert averaged[0, 1] == pytest.approx(-900 - np.log(2 * (1 + np.e)), rel=1e-6)


@pytest.mark.parametrize("images", [10, 30, 100, 500, 2_000])
def test_the_mean_log_loss_never_rises(images):
    """Over models that are too sure, about right and not sure enough, as they come."""
    random, changes = np.random.default_rng(images), []
    for true in np.exp(random.normal(0, 0.4, 200)):
        logits = random.normal(0, 2.0, (images + 300, 5))
        odds = softmax(logits, true)
        labels = (random.random((len(odds), 1)) > odds.cumsum(1)).sum(1).clip(0, 4)
        temperature = safe_temperature(logits[:images], labels[:images])
        # With the true odds as targets, only the temperature's own error is left in the loss.
        losses = [
            -(odds[images:] * np.log(softmax(logits[images:], value))).sum(1).mean()
            for value in (1.0, temperature)
        ]
        changes.append(losses[1] - losses[0])
    assert np.mean(changes) <= 0
    if images >= 100:
        assert np.mean(changes) < -0.005


@pytest.mark.parametrize("images", [10, 30, 100, 500, 2_000])
@pytest.mark.parametrize("true", [0.6, 0.9, 1.0, 1.15, 1.6, 3.0])
def test_few_images_do_not_make_probabilities_worse(images, true):
    """Labels drawn from logits at a true temperature; the loss is that over all classes' odds."""
    random, before, after = np.random.default_rng(images), [], []
    for _ in range(60):
        logits = random.normal(0, 2.0, (images + 500, 5))
        odds = softmax(logits, true)
        labels = (random.random((len(odds), 1)) > odds.cumsum(1)).sum(1).clip(0, 4)
        temperature = safe_temperature(logits[:images], labels[:images])
        # With the true odds as targets, only the temperature's own error is left in the loss.
        for losses, value in ((before, 1.0), (after, temperature)):
            shown = np.log(softmax(logits[images:], value))
            losses.append(-(odds[images:] * shown).sum(1).mean())
    assert np.mean(after) <= np.mean(before) + 1.5e-3 / (images / 10)
    if images >= 500 and not 0.8 < true < 1.2:
        assert np.mean(after) < np.mean(before) - 0.005
