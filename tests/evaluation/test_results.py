"""An Evaluation: what it says, and JSON in and out."""

import copy
import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smallvit.evaluation import METRICS, Evaluation, measure, pooled
from smallvit.evaluation.calibration import softmax
from smallvit.evaluation.intervals import proportion
from smallvit.evaluation.metrics import estimates
from smallvit.evaluation.results import largest_confusions

FORMAT_1 = Path(__file__).parents[1] / "golden/runs/format_1/evaluation.json"


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
    expected = estimates(labels, probabilities, replicates=20, seed=3)
    assert evaluation.metrics == expected
    assert list(evaluation.metrics) == list(METRICS)
    assert {name: getattr(evaluation, name) for name in METRICS} == expected
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
    predictions = evaluation.predictions
    assert predictions is not None
    assert predictions.truth == tuple(labels)
    assert predictions.predicted == tuple(predicted)
    np.testing.assert_allclose(predictions.confidence, probabilities.max(1), atol=1e-6)
    assert predictions.names == ()


def test_a_temperature_changes_no_prediction() -> None:
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
    for before in (evaluation, replace(evaluation, predictions=None)):
        text = before.to_json()
        after = Evaluation.from_json(text)
        assert after == before
        assert after.to_json() == text
    assert text.encode()  # even names that are not UTF-8


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
        (
            {"answers": {"truth": [0], "predicted": [0], "confidence": [1]}},
            "there are 1 predictions",
        ),
        ({"answers": {"truth": [0], "predicted": [], "confidence": [1]}}, "predicted has 0 entri"),
    ],
)
def test_json_that_is_none_of_ours(change: dict, sentence: str) -> None:
    plain = json.loads(example()[0].to_json()) | change
    with pytest.raises(ValueError, match=sentence):
        Evaluation.from_json(json.dumps(plain), "here")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "here is not JSON"),
        ("[1]", "here has evaluation format None"),
        ("", "here is not JSON"),
    ],
)
def test_text_that_is_no_evaluation(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Evaluation.from_json(text, "here")


def test_summary() -> None:
    logits = np.eye(3)[[0, 0, 0, 1, 1, 0, 1, 1]]
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    evaluation = measure(logits, labels, ["a", "b", "c"], split="test")
    assert evaluation.absent == ("c",)
    heading, *rows = evaluation.summary().splitlines()
    assert heading.startswith("test: 8 images of 3 classes, 1 of them absent; 95 % confidence")
    words = [re.split("  +", row) for row in rows]
    assert words == [
        ["Accuracy", "75.0 % (40.9–92.9)", METRICS["accuracy"].explanation],
        ["Precision", evaluation.precision.percent, METRICS["precision"].explanation],
        ["Recall", evaluation.recall.percent, METRICS["recall"].explanation],
        ["F1", evaluation.f1.percent, METRICS["f1"].explanation],
    ]
    assert len({row.index(text) for row, (_, text, _) in zip(rows, words, strict=True)}) == 1
    assert evaluation.f1.value == pytest.approx(0.75)
    assert evaluation.top5 is None
    assert "Top-5 accuracy  " in example(6)[0].summary()


def test_what_is_no_better_than_the_most_frequent_class_says_so() -> None:
    labels = np.array([0] * 15 + [1])
    same = measure(np.eye(2)[0 * labels], labels, ["often", "rarely"], split="test")
    line = "The accuracy is no better than always predicting often, the most frequent class: 93.8 %"
    assert same.summary().splitlines()[-1] == line
    assert line in same.describe()
    better = measure(np.eye(2)[labels], labels, ["often", "rarely"], split="test")
    assert "no better" not in better.summary() + better.describe()


def test_of_a_class_without_images_nothing_is_known() -> None:
    evaluation = measure(np.eye(3)[[0, 1]], np.array([0, 1]), ["a", "b", "c"], split="test")
    row = evaluation.per_class[2]
    assert (row.support, row.precision, row.f1) == (0, 0, 0)
    assert (row.recall.value, row.recall.low, row.recall.high) == (0, 0, 1)
    assert evaluation.recall.value == 1


def test_description() -> None:
    evaluation = example(4, 60)[0]
    lines = evaluation.describe().splitlines()
    rows = [re.split("  +", line) for line in lines[1 : lines.index("")]]
    assert [title for title, _, _ in rows] == [METRICS[name].title for name in evaluation.metrics]
    loss = evaluation.log_loss
    assert ["Log loss", f"{loss.value:.3f} ({loss.low:.3f}–{loss.high:.3f})"] in [
        row[:2] for row in rows
    ]
    worst = min(evaluation.per_class, key=lambda row: (row.recall.value, -row.support))
    after = lines[lines.index("worst classes (recall)") + 1]
    assert after == f"  {worst.recall.percent}  {worst.name}, {worst.support} images"
    (most,) = largest_confusions(evaluation, 1)
    after = lines[lines.index("largest confusions") + 1]
    assert after == (
        f"  {most.images} of {most.support} {most.truth} predicted as {most.predicted}"
    )


def test_files_of_format_1_open_and_are_written_as_they_were() -> None:
    text = FORMAT_1.read_text(encoding="utf-8")
    evaluation = Evaluation.from_json(text)
    assert evaluation.to_json() == text
    assert evaluation.accuracy.value == 2 / 12
    assert evaluation.predictions is not None
    assert evaluation.predictions.names[0] == "noise[12]"


def test_a_metric_that_a_file_does_not_have_is_left_out() -> None:
    plain = json.loads(example()[0].to_json())
    del plain["ece"], plain["top5"], plain["answers"]
    evaluation = Evaluation.from_json(json.dumps(plain))
    assert "Calibration error" not in evaluation.describe()
    assert set(METRICS) - set(evaluation.metrics) == {"ece", "top5"}
    with pytest.raises(AttributeError, match="an Evaluation has no 'ece'; its metrics: accuracy"):
        _ = evaluation.ece
    assert json.loads(evaluation.to_json())["ece"] is None
    assert copy.deepcopy(evaluation) == pickle.loads(pickle.dumps(evaluation)) == evaluation


def test_largest_confusions() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    predicted = np.array([1, 1, 0, 2, 1, 1, 0])
    logits = np.eye(3, dtype=np.float32)[predicted]
    evaluation = measure(logits, labels, ("a", "b", "c"), split="test", replicates=10)
    assert largest_confusions(evaluation, 2) == [("a", "b", 2, 3), ("b", "c", 1, 2)]
    assert len(largest_confusions(evaluation, 9)) == 4


def test_pooled_folds() -> None:
    folds = [example(count=count, seed=count)[0] for count in (20, 30)]
    together = pooled(folds)
    right = sum(fold.confusion[k][k] for fold in folds for k in range(3))
    assert together.images == 50
    assert together.accuracy == proportion(right, 50)
    assert list(together.metrics) == [name for name in METRICS if name != "top5"]
    for name, metric in together.metrics.items():
        values = [getattr(fold, name).value for fold in folds]
        assert metric.values == tuple(values)
        assert metric.mean == pytest.approx(np.mean(values))
        assert metric.std == pytest.approx(abs(values[0] - values[1]) / np.sqrt(2))
    assert pooled(folds[:1]).metrics["f1"] == ((folds[0].f1.value,), folds[0].f1.value, 0.0)


@pytest.mark.parametrize(
    ("logits", "labels", "sentence"),
    [
        (np.zeros((2, 3)), np.zeros(2, int), "there are 3 logits per image and 2 classes"),
        (np.zeros((2, 2)), np.zeros(3, int), "there are 3 true labels and 2 rows"),
        (np.zeros((2, 2)), np.array([0, 2]), "a true label is 2: with 2 classes"),
        (np.array([[0.0, np.nan], [0, 0]]), np.zeros(2, int), "1 of 2 images have logits that"),
        (np.zeros((0, 2)), np.zeros(0, int), "expected one true label per image"),
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
