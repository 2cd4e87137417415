"""What pages are made of: choices, charts, images."""

import base64
import io
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from smallvit.evaluation import Predictions, measure
from smallvit.reporting.charts import (
    Chart,
    Dot,
    Frame,
    Series,
    compact,
    curves,
    round_numbers,
    spanned,
    temperature_chart,
)
from smallvit.reporting.images import (
    SIDE,
    confident_mistakes,
    data_uri,
    enlarged,
    find_suspects,
    right_and_wrong,
)
from smallvit.reporting.matrix import order_classes
from smallvit.reporting.narrative import caveats, duration
from smallvit.reporting.report import sheet_page
from smallvit.reporting.sheet import Sheet
from smallvit.runs import Run, RunConfig

PREDICTIONS = Predictions(
    truth=(0, 0, 0, 1, 1, 2, 2),
    predicted=(0, 1, 0, 1, 2, 0, 2),
    confidence=(0.9, 0.8, 0.95, 0.5, 0.99, 0.7, 0.6),
)


def test_the_most_confident_mistakes_come_first() -> None:
    assert confident_mistakes(PREDICTIONS, 10) == [4, 1, 5]
    assert confident_mistakes(PREDICTIONS, 2) == [4, 1]


def test_classes_take_turns() -> None:
    assert right_and_wrong(PREDICTIONS, 3) == ([2, 6, 3], [4, 1, 5])
    assert right_and_wrong(PREDICTIONS, 9)[0] == [2, 6, 3, 0]


def test_planted_label_errors_are_found() -> None:
    random = np.random.default_rng(0)
    truth = random.integers(0, 4, 400)
    logits = random.normal(size=(400, 4)) + 7 * np.eye(4)[truth]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = truth.copy()
    planted = random.choice(400, 12, replace=False)
    labels[planted] = (labels[planted] + 1) % 4
    found = find_suspects(probabilities, labels)
    indices = [each.image for each in found]
    assert set(indices) <= set(planted.tolist())
    assert len(indices) >= 10
    margins = [each.confidence - each.label for each in found]
    assert margins == sorted(margins, reverse=True)
    assert all(each.predicted == truth[each.image] for each in found)


def test_an_unsure_model_suspects_nobody() -> None:
    probabilities = np.full((30, 3), 0.3)
    probabilities[:, 1] = 0.4
    assert find_suspects(probabilities, np.zeros(30, np.int64)) == []


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_tiny_images_keep_every_pixel(channels: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (28, 20, channels), np.uint8)
    uri = data_uri(image)
    assert uri.startswith("data:image/png;base64,")
    assert np.array_equal(np.asarray(decoded(uri))[..., 0], image[..., 0])
    assert enlarged(image).shape == (112, 80, 3)


def test_large_images_become_small() -> None:
    image = np.random.default_rng(0).integers(0, 256, (600, 2000, 3), np.uint8)
    uri = data_uri(image)
    assert uri.startswith("data:image/webp;base64,")
    assert decoded(uri).size == (SIDE, round(SIDE * 0.3))
    assert len(uri) < 20_000


def test_axes() -> None:
    assert round_numbers(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert round_numbers(0.13, 0.29, 4) == [0.15, 0.2, 0.25]
    assert round_numbers(0, 38400, 4) == [0, 10000, 20000, 30000]
    assert [compact(value) for value in (0.25, 12, 2500, 3e6)] == ["0.25", "12", "2.5k", "3M"]
    low, high = spanned([2.0, 2.0])
    assert low < 2 < high
    assert spanned([0.0, float("nan"), 10.0]) == pytest.approx((-0.6, 10.6))
    frame = Frame((0, 10), (0, 1))
    assert frame.x(0) < frame.x(5) < frame.x(10)
    assert frame.y(0) > frame.y(0.5) > frame.y(1)
    assert frame.y(7) == frame.y(1)
    long = [(float(x), 0.5) for x in range(100)]
    assert frame.series("many", 0, long, lambda x, y: "").dots == ()


def test_curves_are_the_log(run: Run) -> None:
    log = run.log()
    accuracy, loss = curves(run, log)
    assert [chart.title for chart in (accuracy, loss)] == ["Accuracy", "Loss"]
    validated = [line for line in log if line["kind"] == "val"]
    dots = accuracy.series[0].dots
    assert len(dots) == len(validated) == 3
    assert dots[0].label == f"32 images: {100 * validated[0]['accuracy']:.3g} %"
    assert len(accuracy.rules) == 1
    trained = [line for line in log if line["kind"] == "train"]
    (alone, _) = curves(run, trained)
    assert len(alone.series) == 1
    assert not alone.rules
    assert curves(run, []) == []


def test_lines_after_the_eighth_look_like_no_other() -> None:
    dots = (Dot(x=1, y=1, label=""),)
    series = tuple(Series(label="", style=n, line="0,0", dots=dots) for n in range(16))
    axes: dict[str, Any] = {"x_label": "", "x_ticks": (), "y_ticks": ()}
    chart = Chart(title="", description="", series=series, **axes)
    page = sheet_page(Sheet(title="", lead=(), charts=(chart,)))
    samples = re.findall(r'<li><svg viewBox="0 0 30 12".*?</svg>', page, re.DOTALL)
    assert len(samples) == len(set(samples)) == 16


def test_temperatures_have_one_dot_per_head() -> None:
    chart = temperature_chart([[0.9, 1.1], [0.7, 0.8]])
    assert [len(series.dots) for series in chart.series] == [0, 4]
    assert "layer 2 0.75" in chart.description


def test_one_layer_of_temperatures_has_no_line_and_no_legend_of_one() -> None:
    chart = temperature_chart([[0.9, 1.1, 0.7]])
    assert [(series.label, len(series.dots)) for series in chart.series] == [("one head", 3)]


def test_the_recall_of_a_class_with_few_images_says_how_many() -> None:
    labels = np.repeat([0, 1], [12, 1])
    evaluation = measure(
        np.eye(2, dtype=np.float32)[0 * labels], labels, ("many", "one"), split="test"
    )
    run = SimpleNamespace(info={}, config=RunConfig())
    facts: Any = SimpleNamespace(evaluation=evaluation, audit=None, run=run)
    said = " ".join(caveats(facts))
    assert "recall is 0 % for one (1 image) and 100 % for many." in said


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0.2, 1, 80, 120, 7200)] == [
        *("1 second", "1 second", "80 seconds", "2 minutes", "2.0 hours"),
    ]


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
    positions = np.random.default_rng(0).permutation(8)
    distance = np.abs(positions[:, None] - positions)
    confusion = (100 * 0.25**distance).astype(int)
    order = positions[order_classes(confusion)]
    assert order.tolist() in (list(range(8)), list(range(7, -1, -1)))


def test_nothing_confused_keeps_the_order() -> None:
    assert order_classes(np.diag([3, 0, 2])) == [0, 1, 2]
    assert order_classes(np.zeros((1, 1), int)) == [0]
