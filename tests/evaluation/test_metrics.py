"""Every number equals scikit-learn's."""

import subprocess
import sys
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from smallvit.evaluation.calibration import calibration_error, reliability
from smallvit.evaluation.checks import check_labels, check_probabilities
from smallvit.evaluation.metrics import (
    Tally,
    averages,
    class_scores,
    confusion_matrix,
    estimates,
    log_loss,
    ranked_within,
    sample_losses,
    tally,
)


def sample(count: int, num_classes: int, seed: int = 0, skew: float = 0.0) -> tuple:
    """Labels, the rarer the higher their number with skew, and probabilities that know a little."""
    random = np.random.default_rng(seed)
    shares = np.exp(-skew * np.arange(num_classes))
    truth = random.choice(num_classes, size=count, p=shares / shares.sum())
    logits = random.normal(size=(count, num_classes)) + 1.5 * np.eye(num_classes)[truth]
    raised = np.exp(logits)
    return truth, raised / raised.sum(1, keepdims=True)


def absent() -> tuple:
    """Classes that are never true, never predicted, and neither."""
    truth, probabilities = sample(60, 4)
    truth[truth == 2] = 0
    probabilities[:, [1, 3]] = 0
    truth[:5] = 1
    return truth, probabilities / probabilities.sum(1, keepdims=True)


def single() -> tuple:
    truth, probabilities = sample(30, 4)
    probabilities[:, 1] += 100
    return np.ones_like(truth), probabilities / probabilities.sum(1, keepdims=True)


CASES = {
    "random": lambda: sample(500, 10),
    "imbalanced": lambda: sample(400, 7, skew=1.2),
    "binary": lambda: sample(80, 2),
    "absent": absent,
    "single": single,
    "one sample": lambda: sample(1, 6),
    "wrong throughout": lambda: (np.zeros(9, np.int64), np.eye(3)[np.arange(9) % 2 + 1]),
    "right throughout": lambda: (np.arange(9) % 3, np.eye(3)[np.arange(9) % 3]),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    return CASES[request.param]()


def quietly(function: Callable, *arguments: object, **options: object) -> object:
    """scikit-learn warns of absent and single classes, which is what some cases are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)


def test_as_scikit_learn(case: tuple[np.ndarray, np.ndarray]) -> None:
    truth, probabilities = case
    classes = list(range(probabilities.shape[1]))
    predicted = probabilities.argmax(1)
    found = {
        name: estimate.value
        for name, estimate in estimates(truth, probabilities, replicates=2).items()
    }
    expected = {
        "accuracy": sk.accuracy_score(truth, predicted),
        "balanced_accuracy": quietly(sk.balanced_accuracy_score, truth, predicted),
        "log_loss": quietly(sk.log_loss, truth, probabilities, labels=classes),
    }
    for prefix, average in (("", "macro"), ("weighted_", "weighted")):
        numbers = sk.precision_recall_fscore_support(
            truth, predicted, average=average, zero_division=0
        )
        names = [f"{prefix}{name}" for name in ("precision", "recall", "f1")]
        expected |= dict(zip(names, numbers[:3], strict=True))
    if len(classes) > 5:
        expected["top5"] = sk.top_k_accuracy_score(truth, probabilities, k=5, labels=classes)
    expected["ece"] = expected_calibration_error(probabilities.max(1), truth == predicted)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12, abs=1e-14), name


def expected_calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Guo et al. (2017), equation 3, one bin after the other."""
    total = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if inside.any():
            gap = abs(correct[inside].mean() - confidence[inside].mean())
            total += inside.sum() / len(confidence) * gap
    return total


def test_classes_as_scikit_learn(case: tuple[np.ndarray, np.ndarray]) -> None:
    truth, probabilities = case
    classes = list(range(probabilities.shape[1]))
    predicted = probabilities.argmax(1)
    confusion = confusion_matrix(truth, predicted, len(classes))
    assert confusion.dtype == np.int64
    expected = quietly(sk.confusion_matrix, truth, predicted, labels=classes)
    np.testing.assert_array_equal(confusion, expected)
    counts = tally(confusion)
    numbers = sk.precision_recall_fscore_support(
        truth, predicted, labels=classes, average=None, zero_division=0
    )
    ours = (*class_scores(counts), counts.support)
    for mine, theirs in zip(ours, numbers, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_any_labels_as_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    truth, predicted = np.array(pairs).T
    found = averages(tally(confusion_matrix(truth, predicted, 5)))
    for average, prefix in (("macro", ""), ("weighted", "weighted_")):
        numbers = sk.precision_recall_fscore_support(
            truth, predicted, average=average, zero_division=0
        )
        ours = [found[prefix + name] for name in ("precision", "recall", "f1")]
        np.testing.assert_allclose(ours, numbers[:3], rtol=1e-12, atol=1e-15)
    balanced = quietly(sk.balanced_accuracy_score, truth, predicted)
    assert found["balanced_accuracy"] == pytest.approx(balanced)
    assert all(0 <= value <= 1 + 1e-12 for value in found.values())


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 99))
def test_top_k_has_k_classes_and_begins_with_the_prediction(k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    probabilities = random.multinomial(9, [0.1] * 10, size=20) / 9  # full of equals
    within = np.array([ranked_within(probabilities, np.full(20, label), k) for label in range(10)])
    np.testing.assert_array_equal(within.sum(0), min(k, 10))
    assert within[probabilities.argmax(1), np.arange(20)].all()


def test_reliability_as_scikit_learn() -> None:
    truth, probabilities = sample(300, 3)
    confidence, correct = probabilities.max(1), truth == probabilities.argmax(1)
    bins = reliability(confidence, correct)
    shares, means = calibration_curve(correct, confidence, n_bins=15)
    filled = [each for each in bins if each.samples]
    assert len(filled) < len(bins) == 15
    np.testing.assert_allclose([each.accuracy for each in filled], shares, rtol=1e-12)
    np.testing.assert_allclose([each.confidence for each in filled], means, rtol=1e-12)
    assert sum(each.samples for each in filled) == 300
    assert not any(each.accuracy for each in bins if not each.samples)
    expected = estimates(truth, probabilities, replicates=2)["ece"].value
    assert calibration_error(bins) == pytest.approx(expected, rel=1e-12)


def test_edges_belong_to_the_bin_below() -> None:
    bins = reliability(np.array([0.0, 1 / 15, 1.0]), np.array([False, True, True]))
    assert (bins[0].samples, bins[14].samples) == (2, 1)


def test_a_calibrated_prediction_has_no_error_and_a_sure_wrong_one_all_of_it() -> None:
    half = np.array([True, False])
    assert calibration_error(reliability(np.array([0.5, 0.5]), half)) == 0
    assert calibration_error(reliability(np.ones(4), np.zeros(4, bool))) == 1


@settings(deadline=None)
@given(st.integers(0, 99))
def test_log_loss_is_never_negative_nor_infinite(seed: int) -> None:
    random = np.random.default_rng(seed)
    probabilities = np.eye(4, dtype=np.float32)[random.integers(4, size=9)] * np.float32(1 + 1e-6)
    losses = sample_losses(probabilities, random.integers(4, size=9))
    assert (losses >= 0).all()
    assert losses.max() < 37
    assert log_loss(probabilities, np.zeros(9, np.int64)) >= 0


def test_a_class_nobody_has_seen_changes_no_average() -> None:
    counts = tally(np.array([[5, 1], [2, 4]]))
    wider = Tally(*(np.append(row, 0.0) for row in counts))
    assert averages(wider) == pytest.approx(averages(counts))


GOOD = np.full((3, 2), 0.5)


@pytest.mark.parametrize(
    ("truth", "probabilities", "sentence"),
    [
        (np.zeros(4, int), GOOD, "there are 4 true labels and 3 rows of probabilities"),
        (np.array([0, 1, 2]), GOOD, "a true label is 2: with 2 classes, 0 to 1 are allowed"),
        (np.array([0, -1, 1]), GOOD, "a true label is -1: with 2 classes"),
        (np.zeros(0, int), GOOD, r"expected one true label per image.*\(0,\)"),
        (np.zeros(3, int), GOOD * np.nan, "3 of 3 images have probabilities that are not finite"),
        (np.zeros(3, int), GOOD * 2, "sum to 2: none may be negative.*softmax logits first"),
        (np.zeros(3, int), GOOD + np.array([-1, 1]), "at index 0 go down to -0.5"),
    ],
)
@pytest.mark.parametrize("function", [estimates, lambda truth, rows: log_loss(rows, truth)])
def test_probabilities_that_cannot_be_measured(
    function: Callable, truth: np.ndarray, probabilities: np.ndarray, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        function(truth, probabilities)


@pytest.mark.parametrize(
    ("predicted", "sentence"),
    [
        (np.zeros(4, int), "there are 3 true labels and 4 predicted"),
        (np.array([0, 1, 7]), "a predicted label is 7: with 2 classes"),
    ],
)
def test_predictions_that_cannot_be_counted(predicted: np.ndarray, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        confusion_matrix(np.zeros(3, int), predicted, 2)


def test_probabilities_have_two_axes() -> None:
    with pytest.raises(ValueError, match=r"expected probabilities as .*\(2,\)"):
        check_probabilities(GOOD[0], np.zeros(3, int))


def test_labels_are_whole_numbers() -> None:
    with pytest.raises(ValueError, match="a label is a whole number, and these are float64"):
        check_labels(np.zeros(3), 2)


def test_numbers_need_no_torch() -> None:
    code = "import sys, smallvit.evaluation; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
