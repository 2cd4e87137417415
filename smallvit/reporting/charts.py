"""The charts of a page (learning curves, calibration, temperatures) as geometry for SVG."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from smallvit.evaluation.calibration import ConfidenceBin
from smallvit.evaluation.intervals import wilson
from smallvit.evaluation.results import Evaluation
from smallvit.runs.folder import Run

WIDTH, HEIGHT = 360, 230
"""Of every chart; on a phone about one unit per pixel, so that its text can be read."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 22, 14, 42
_DOTTED = 30

_NAMES = {"accuracy": "Accuracy", "loss": "Loss"}
_KINDS = {"val": "validation", "train": "training (images as seen)"}

Point = tuple[float, float]
Log = Sequence[Mapping[str, Any]]


class Tick(NamedTuple):
    """A labelled position on an axis."""

    at: float
    label: str


class Dot(NamedTuple):
    """A point, with a label that is shown when it is pointed at."""

    x: float
    y: float
    label: str


class Bar(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


class Rule(NamedTuple):
    """A reference line; the label of an upright one is at its foot, or raised at its head."""

    first: Point
    second: Point
    label: str = ""
    raised: bool = False


class Whisker(NamedTuple):
    """An upright interval."""

    x: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Series:
    """Lines and points that are drawn alike.

    Attributes:
        label: In the legend.
        style: Number of its colour, line and mark.
        line: Points of a line, as SVG writes them.
        dots: Points.
        whiskers: Intervals of the points.
    """

    label: str
    style: int
    line: str = ""
    dots: tuple[Dot, ...] = ()
    whiskers: tuple[Whisker, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart.

    Attributes:
        title: What it shows.
        description: The same in words, for screen readers.
        x_label: Below.
        x_ticks: Of the lower axis.
        y_ticks: Of the left axis.
        series: What is drawn.
        bars: Drawn below everything, in grey.
        rules: Reference lines.
    """

    title: str
    description: str
    x_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    bars: tuple[Bar, ...] = ()
    rules: tuple[Rule, ...] = ()
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


class Frame:
    """From values to positions in a chart."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x_range, self.y_range = x, y

    def x(self, value: float) -> float:
        """The position of a value from left to right."""
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * _fraction(value, self.x_range), 1)

    def y(self, value: float) -> float:
        """The position of a value from top to bottom."""
        height = (HEIGHT - _TOP - _BOTTOM) * _fraction(value, self.y_range)
        return round(HEIGHT - _BOTTOM - height, 1)

    def line(self, points: Iterable[Point]) -> str:
        """A line through points, as SVG writes it."""
        return " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)

    def x_ticks(self, write: Callable[[float], str]) -> tuple[Tick, ...]:
        """Ticks of the lower axis at round numbers."""
        return tuple(Tick(self.x(v), write(v)) for v in round_numbers(*self.x_range, 4))

    def y_ticks(self, write: Callable[[float], str]) -> tuple[Tick, ...]:
        """Ticks of the left axis at round numbers."""
        return tuple(Tick(self.y(v), write(v)) for v in round_numbers(*self.y_range, 5))

    def series(
        self, label: str, style: int, points: Sequence[Point], write: Callable[[float, float], str]
    ) -> Series:
        """A line, with dots where there is room for them."""
        dots = tuple(Dot(self.x(x), self.y(y), write(x, y)) for x, y in points)
        few = dots if len(dots) <= _DOTTED else ()
        return Series(label=label, style=style, line=self.line(points), dots=few)


def _fraction(value: float, within: tuple[float, float]) -> float:
    low, high = within
    return (min(max(value, low), high) - low) / (high - low)


def round_numbers(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two numbers, about so many."""
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def spanned(values: Iterable[float], *, margin: float = 0.06) -> tuple[float, float]:
    """A range that holds all values, with some room."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    room = margin * (high - low) or 0.5 * abs(high) or 1.0
    return low - room, high + room


def compact(value: float) -> str:
    """A number for an axis: 12, 3.5k, 1.2M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """A share for an axis."""
    return f"{100 * value:.3g} %"


def _logged(run: Run, log: Log, kind: str, name: str) -> list[Point]:
    """A number of the log over the images seen."""
    batch = run.config.loop.batch_size
    return [
        (float(line["step"] * batch), float(line[name]))
        for line in log
        if line["kind"] == kind and line.get(name) is not None
    ]


def curves(run: Run, log: Log) -> list[Chart]:
    """Accuracy and loss of training and validation; none where the log is empty."""
    best = run.info.get("best_step")
    charts = []
    for name, title in _NAMES.items():
        lines = {label: _logged(run, log, kind, name) for kind, label in _KINDS.items()}
        lines = {label: points for label, points in lines.items() if points}
        chosen = best * run.config.loop.batch_size if best and _KINDS["val"] in lines else None
        if lines:
            charts.append(_over_images(name, title, lines, chosen))
    return charts


def compared_curves(runs: Mapping[str, tuple[Run, Log]]) -> list[Chart]:
    """Validation of several runs together; training where one has no validation."""
    logs = runs.values()
    kind = "val" if all(_logged(run, log, "val", "loss") for run, log in logs) else "train"
    where = "validation" if kind == "val" else "training"
    charts = []
    for name, title in _NAMES.items():
        lines = {label: _logged(run, log, kind, name) for label, (run, log) in runs.items()}
        lines = {label: points for label, points in lines.items() if points}
        if lines:
            charts.append(_over_images(name, f"{title} on {where}", lines, None))
    return charts


def _over_images(
    name: str, title: str, lines: Mapping[str, list[Point]], chosen: float | None
) -> Chart:
    low, high = spanned(y for points in lines.values() for _, y in points)
    low = max(low, 0.0)
    if name == "accuracy":
        high = min(high, 1.0)
        if high - low < 0.02:
            low, high = max(0.0, low - 0.01), min(1.0, high + 0.01)
    widest = max(x for points in lines.values() for x, _ in points)
    frame = Frame((0.0, widest), (low, high))
    write = percent if name == "accuracy" else compact
    ends = "; ".join(
        f"{label}: from {write(points[0][1])} to {write(points[-1][1])}"
        for label, points in lines.items()
    )
    return Chart(
        title=title,
        description=f"{_NAMES[name]} over {widest:,.0f} images seen. {ends}.",
        x_label="images seen",
        x_ticks=frame.x_ticks(compact),
        y_ticks=frame.y_ticks(write),
        series=tuple(
            frame.series(label, style, points, lambda x, y: f"{x:,.0f} images: {write(y)}")
            for style, (label, points) in enumerate(lines.items())
        ),
        rules=() if chosen is None else (_upright(frame, chosen, lines),),
    )


def _upright(frame: Frame, at: float, lines: Mapping[str, list[Point]]) -> Rule:
    """A line at the chosen weights, with its label away from the curves."""
    low, high = frame.y_range
    near = [min(points, key=lambda point: abs(point[0] - at))[1] for points in lines.values()]
    raised = sum(near) / len(near) < (low + high) / 2
    return Rule((frame.x(at), frame.y(low)), (frame.x(at), frame.y(high)), "chosen", raised)


def calibration(evaluation: Evaluation, before: Sequence[ConfidenceBin]) -> Chart:
    """Confidence against accuracy, with intervals, after and before temperature scaling."""
    frame = Frame((0.0, 1.0), (0.0, 1.0))
    bins = [each for each in evaluation.reliability if each.samples]
    counts = np.array([each.samples for each in bins])
    low, high = wilson(np.array([each.accuracy for each in bins]) * counts, counts)
    scaled = before and evaluation.temperature != 1
    label = f"after temperature {evaluation.temperature:.2f}" if scaled else "the model"

    def dot(each: ConfidenceBin) -> Dot:
        means = f"confidence {percent(each.confidence)}, accuracy {percent(each.accuracy)}"
        label = f"{each.samples:,} predictions: {means}"
        return Dot(frame.x(each.confidence), frame.y(each.accuracy), label)

    after = Series(
        label=f"{label}, with 95 % intervals",
        style=0,
        dots=tuple(dot(each) for each in bins),
        whiskers=tuple(
            Whisker(frame.x(each.confidence), frame.y(down), frame.y(up))
            for each, down, up in zip(bins, low.tolist(), high.tolist(), strict=True)
        ),
    )
    series = [after]
    if scaled:
        dots = tuple(dot(each) for each in before if each.samples)
        series = [Series(label="before", style=1, dots=dots), after]
    return Chart(
        title="Accuracy by confidence",
        description="; ".join(each.label for each in after.dots),
        x_label="confidence of the predictions; grey: how many",
        x_ticks=frame.x_ticks(percent),
        y_ticks=frame.y_ticks(percent),
        series=tuple(series),
        bars=_histogram(frame, bins),
        rules=(Rule((frame.x(0), frame.y(0)), (frame.x(1), frame.y(1))),),
    )


def _histogram(frame: Frame, bins: Sequence[ConfidenceBin]) -> tuple[Bar, ...]:
    """How many predictions have which confidence, in the lowest quarter of the chart."""
    most = max(each.samples for each in bins)
    foot = frame.y(0)
    bars = []
    for each in bins:
        left, right = frame.x(each.low) + 1, frame.x(each.high) - 1
        top = frame.y(0.25 * each.samples / most)
        bars.append(Bar(left, top, round(right - left, 1), round(foot - top, 1)))
    return tuple(bars)


def temperature_chart(layers: Sequence[Sequence[float]]) -> Chart:
    """The learned temperature of every head of every layer."""
    count = len(layers)
    frame = Frame((0.4, count + 0.6), spanned([1.0, *(v for layer in layers for v in layer)]))
    means = [(n, sum(layer) / len(layer)) for n, layer in enumerate(layers, 1)]
    mean = Series(label="mean of the layer", style=0, line=frame.line(means))
    heads = tuple(
        Dot(frame.x(number), frame.y(value), f"layer {number}, head {head}: {value:.3f}")
        for number, layer in enumerate(layers, 1)
        for head, value in enumerate(layer, 1)
    )
    first, last = ((frame.x(x), frame.y(1)) for x in frame.x_range)
    return Chart(
        title="Learned temperature per layer",
        description="Means: " + ", ".join(f"layer {n} {mean:.2f}" for n, mean in means),
        x_label="layer, the first one left",
        x_ticks=tuple(Tick(frame.x(n), str(n)) for n in range(1, count + 1, max(1, count // 12))),
        y_ticks=frame.y_ticks(compact),
        # One layer has no line to follow.
        series=(*([mean] if count > 1 else []), Series(label="one head", style=1, dots=heads)),
        rules=(Rule(first, last, "at the start"),),
    )
