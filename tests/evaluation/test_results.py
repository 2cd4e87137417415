"""An Evaluation: what it says, and JSON in and out."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smallvit.evaluation import Evaluation, measure
from smallvit.evaluation.calibration import softmax
from smallvit.evaluation.metrics import estimates


def example(
    num_classes: int = 3, count: int = 20, **options: object
) -> tuple[Evaluation, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = random.integers(num_classes, size=count)
    logits = (2 * random.normal(size=(count, num_classes))).astype(np.float32)
    logits += 2 * np.eye(num_classes, dtype=np.float32)[labels]
    classes = [f"class {i}" for i in range(num_classes)]
    options = {"split": "test", "replicates": 20, **options}
    return measure(logits, labels, classes, **options), logits, labels


def test_all_numbers_arrive() -> None:
    evaluation, logits, labels = example(7, 60, temperature=1.7, flip=True, seed=3)
    probabilities = softmax(logits, 1.7)
    predicted = logits.argmax(1)
    expected = estimates(labels, probabilities, 7, replicates=20, seed=3)
    assert evaluation.headline == expected
    assert list(evaluation.headline)[:2] == ["accuracy", "top5"]
    assert (evaluation.split, evaluation.count) == ("test", 60)
    assert (evaluation.temperature, evaluation.flip) == (1.7, True)
    for label, row in enumerate(evaluation.per_class):
        own, taken = labels == label, predicted == label
        assert (row.name, row.support, row.predicted) == (f"class {label}", own.sum(), taken.sum())
        assert row.recall.value == pytest.approx((own & taken).sum() / own.sum())
        assert row.recall.low <= row.recall.value <= row.recall.high
        assert row.precision == pytest.approx((own & taken).sum() / taken.sum())
        assert evaluation.confusion[label][label] == (own & taken).sum()
    bins = evaluation.reliability
    assert [part.low for part in bins[1:]] == [part.high for part in bins[:-1]]
    assert sum(part.samples for part in bins) == 60
    gaps = [part.samples * abs(part.accuracy - part.confidence) for part in bins]
    assert evaluation.ece.value == pytest.approx(sum(gaps) / 60)
    answers = evaluation.answers
    assert answers is not None
    assert answers.truth == tuple(labels)
    assert answers.predicted == tuple(predicted)
    np.testing.assert_allclose(answers.confidence, probabilities.max(1), atol=1e-6)
    assert answers.names == ()


def test_a_temperature_changes_no_answer() -> None:
    plain, cold = example()[0], example(temperature=0.3)[0]
    assert plain.accuracy == cold.accuracy
    assert plain.confusion == cold.confusion
    assert plain.log_loss != cold.log_loss


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 8),
    st.integers(1, 30),
    st.integers(0, 99),
    st.text(st.characters(categories=["L", "Cs", "Cc", "So"]), max_size=5),
)
def test_json_round_trip_is_exact(num_classes: int, count: int, seed: int, name: str) -> None:
    random = np.random.default_rng(seed)
    labels = random.integers(num_classes, size=count)
    logits = random.normal(size=(count, num_classes))
    names = [f"{name} {i}.png" for i in range(count)]
    classes = [name + str(i) for i in range(num_classes)]
    evaluation = measure(logits, labels, classes, split="val", names=names, replicates=2)
    for before in (evaluation, replace(evaluation, answers=None)):
        text = before.to_json()
        after = Evaluation.from_json(text)
        assert after == before
        assert after.to_json() == text
    assert text.encode()  # even names that are no UTF-8


def test_json_is_plain_compact_and_readable() -> None:
    evaluation = example(4, 1000)[0]
    text = evaluation.to_json()
    plain = json.loads(text)
    assert plain["format"] == 1
    assert plain["accuracy"] == vars(evaluation.accuracy)
    assert plain["top5"] is None
    assert len(text) < 30_000
    assert len(text.splitlines()) == len(plain) + 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 2}, "here has evaluation format 2 and this smallvit reads up to 1"),
        ({"format": None}, "here has evaluation format None"),
        ({"accuracy": {"value": 1.0, "low": 0.5}}, "here is damaged: accuracy.high is missing"),
        ({"acuracy": 1}, "here is damaged: unknown key 'acuracy'; did you mean 'accuracy'"),
        ({"count": 19}, "here is damaged: confusion counts 20 images, and count is 19"),
        ({"classes": ["a", "b", "c"]}, "per_class does not name the 3 classes"),
        ({"confusion": [[20]]}, "confusion is not 3 by 3"),
        ({"answers": {"truth": [0], "predicted": [0], "confidence": [1]}}, "there are 1 answers"),
        ({"answers": {"truth": [0], "predicted": [], "confidence": [1]}}, "predicted has 0 entri"),
    ],
)
def test_json_that_is_none_of_ours(change: dict, sentence: str) -> None:
    plain = json.loads(example()[0].to_json()) | change
    with pytest.raises(ValueError, match=sentence):
        Evaluation.from_json(json.dumps(plain), "here")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{", "here is no JSON"), ("[1]", "here has evaluation format None"), ("", "here is no JSON")],
)
def test_text_that_is_no_evaluation(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Evaluation.from_json(text, "here")


def test_summary() -> None:
    logits = np.eye(3)[[0, 0, 0, 1, 1, 0, 1, 1]]
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    evaluation = measure(logits, labels, ["a", "b", "c"], split="test")
    assert evaluation.absent == ("c",)
    assert evaluation.summary().splitlines() == [
        "test: 8 images of 3 classes, 1 of them absent",
        "accuracy   75.0 % (40.9–92.9)  95 % interval",
        f"precision  {evaluation.precision.percent}",
        f"recall     {evaluation.recall.percent}",
        f"F1         {evaluation.f1.percent}  mean over classes",
    ]
    assert evaluation.f1.value == pytest.approx(0.75)
    assert "top-5      " in example(6)[0].summary()


def test_of_a_class_without_images_nothing_is_known() -> None:
    evaluation = measure(np.eye(3)[[0, 1]], np.array([0, 1]), ["a", "b", "c"], split="test")
    row = evaluation.per_class[2]
    assert (row.support, row.precision, row.f1) == (0, 0, 0)
    assert (row.recall.value, row.recall.low, row.recall.high) == (0, 0, 1)
    assert evaluation.recall.value == 1


@pytest.mark.parametrize(
    ("logits", "labels", "sentence"),
    [
        (np.zeros((2, 3)), np.zeros(2, int), "there are 3 logits an image and 2 classes"),
        (np.zeros((2, 2)), np.zeros(3, int), "there are 3 true labels and 2 rows"),
        (np.zeros((2, 2)), np.array([0, 2]), "a true label is 2: with 2 classes"),
        (np.array([[0.0, np.nan], [0, 0]]), np.zeros(2, int), "1 of 2 images have logits that"),
        (np.zeros((0, 2)), np.zeros(0, int), "expected one true label an image"),
    ],
)
def test_logits_that_cannot_be_measured(
    logits: np.ndarray, labels: np.ndarray, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        measure(logits, labels, ["a", "b"], split="test")


def test_names_belong_to_images() -> None:
    with pytest.raises(ValueError, match="names has 1 entries: expected one for each of the 2"):
        measure(np.eye(2), np.arange(2), ["a", "b"], split="test", names=["only one"])
