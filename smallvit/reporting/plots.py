"""The charts of a page: learning curves, calibration, temperatures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smallvit.evaluation.intervals import wilson
from smallvit.evaluation.metrics import Reliability
from smallvit.evaluation.results import ConfidenceBin, Evaluation
from smallvit.reporting.charts import (
    Bar,
    Chart,
    Dot,
    Frame,
    Point,
    Rule,
    Series,
    Tick,
    Whisker,
    compact,
    share,
    spanned,
    whole_percent,
)
from smallvit.runs.folder import Run

_NAMES = {"loss": "Loss", "accuracy": "Accuracy"}
_KINDS = {"train": "training (augmented images)", "val": "validation"}


def values(run: Run, log: Sequence[Mapping[str, Any]], kind: str, name: str) -> list[Point]:
    """A number of the log over the images seen."""
    batch = run.config.loop.batch_size
    return [
        (float(line["step"] * batch), float(line[name]))
        for line in log
        if line["kind"] == kind and line.get(name) is not None
    ]


def curves(run: Run, log: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Loss and accuracy of training and validation; none where the log is empty."""
    best = run.info.get("best_step")
    batch = run.config.loop.batch_size
    charts = []
    for name in ("accuracy", "loss"):
        lines = {kind: values(run, log, kind, name) for kind in ("val", "train")}
        lines = {label: points for label, points in lines.items() if points}
        if not lines:
            continue
        named = {_KINDS[kind]: points for kind, points in lines.items()}
        chosen = best * batch if best and "val" in lines else None
        charts.append(_over_images(name, named, chosen))
    return charts


def compared_curves(runs: Mapping[str, tuple[Run, Sequence[Mapping[str, Any]]]]) -> list[Chart]:
    """Validation of several runs together; training where one has no validation."""
    charts = []
    logs = runs.values()
    kind = "val" if all(values(run, log, "val", "loss") for run, log in logs) else "train"
    for name in ("accuracy", "loss"):
        lines = {label: values(run, log, kind, name) for label, (run, log) in runs.items()}
        lines = {label: points for label, points in lines.items() if points}
        if lines:
            where = "validation" if kind == "val" else "training"
            charts.append(_over_images(name, lines, None, f"{_NAMES[name]} on {where}"))
    return charts


def _over_images(
    name: str, lines: Mapping[str, list[Point]], best: float | None, title: str = ""
) -> Chart:
    heights = [y for points in lines.values() for _, y in points]
    widest = max(x for points in lines.values() for x, _ in points)
    low, high = spanned(heights)
    if name == "accuracy":
        low, high = max(low, 0.0), min(high, 1.0)
        if high - low < 0.02:
            low, high = max(0.0, low - 0.01), min(1.0, high + 0.01)
    else:
        low = max(low, 0.0)
    frame = Frame((0.0, widest), (low, high))
    write = whole_percent if name == "accuracy" else compact
    x_ticks, y_ticks = frame.ticks(compact, write)
    told = "; ".join(
        f"{label}: from {write(points[0][1])} to {write(points[-1][1])}"
        for label, points in lines.items()
    )
    return Chart(
        title=title or _NAMES[name],
        told=f"{_NAMES[name]} over {widest:,.0f} images seen. {told}.",
        x_label="images seen",
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        series=tuple(
            frame.series(label, style, points, lambda x, y: f"{x:,.0f} images: {write(y)}")
            for style, (label, points) in enumerate(lines.items())
        ),
        rules=() if best is None else (_upright(frame, best, lines),),
    )


def _upright(frame: Frame, at: float, lines: Mapping[str, list[Point]]) -> Rule:
    """A line at the chosen weights, labelled where the curves beside it are not."""
    low, high = frame.y_range
    near = [min(points, key=lambda point: abs(point[0] - at))[1] for points in lines.values()]
    raised = sum(near) / len(near) < (low + high) / 2
    return Rule((frame.x(at), frame.y(low)), (frame.x(at), frame.y(high)), "chosen", raised)


def calibration(found: Evaluation, before: Reliability | None) -> Chart:
    """Confidence against accuracy, with intervals, as it is and as it was."""
    frame = Frame((0.0, 1.0), (0.0, 1.0))
    x_ticks, y_ticks = frame.ticks(whole_percent, whole_percent)
    bins = [each for each in found.reliability if each.samples]
    counts = np.array([each.samples for each in bins])
    low, high = wilson(np.array([each.accuracy for each in bins]) * counts, counts)
    label = f"after temperature {found.temperature:.2f}" if before is not None else "the model"
    series = [
        Series(
            label=f"{label}, with 95 % intervals",
            style=0,
            dots=tuple(
                Dot(
                    frame.x(each.confidence),
                    frame.y(each.accuracy),
                    f"{each.samples:,} answers, {share(each.confidence)} sure on average: "
                    f"{share(each.accuracy)} right",
                )
                for each in bins
            ),
            whiskers=tuple(
                Whisker(frame.x(each.confidence), frame.y(down), frame.y(up))
                for each, down, up in zip(bins, low.tolist(), high.tolist(), strict=True)
            ),
        )
    ]
    if before is not None and found.temperature != 1.0:
        rows = zip(*(column.tolist() for column in before), strict=True)
        series.insert(
            0,  # below the others
            Series(
                label="before",
                style=1,
                dots=tuple(
                    Dot(frame.x(sure), frame.y(right), f"{share(sure)} sure: {share(right)} right")
                    for samples, sure, right in rows
                    if samples
                ),
            ),
        )
    return Chart(
        title="Accuracy of answers by their confidence",
        told="; ".join(f"{share(e.confidence)} sure, {share(e.accuracy)} right" for e in bins),
        x_label="confidence of the answers; grey: how many",
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        series=tuple(series),
        bars=_histogram(frame, bins),
        rules=(Rule((frame.x(0), frame.y(0)), (frame.x(1), frame.y(1))),),
    )


def _histogram(frame: Frame, bins: Sequence[ConfidenceBin]) -> tuple[Bar, ...]:
    """How many answers are how sure, in the lowest quarter of the chart."""
    most = max(each.samples for each in bins)
    foot = frame.y(0)
    bars = []
    for each in bins:
        left, right = frame.x(each.low) + 1, frame.x(each.high) - 1
        top = frame.y(0.25 * each.samples / most)
        bars.append(Bar(left, top, round(right - left, 1), round(foot - top, 1)))
    return tuple(bars)


def temperature_chart(layers: Sequence[Sequence[float]]) -> Chart:
    """What every head of every layer learned."""
    count = len(layers)
    frame = Frame((0.4, count + 0.6), spanned([1.0, *(v for layer in layers for v in layer)]))
    _, y_ticks = frame.ticks(compact, compact)
    means = [sum(layer) / len(layer) for layer in layers]
    every = max(1, count // 12)
    heads = Series(
        label="one head",
        style=1,
        dots=tuple(
            Dot(frame.x(number), frame.y(value), f"layer {number}, head {head}: {value:.3f}")
            for number, layer in enumerate(layers, 1)
            for head, value in enumerate(layer, 1)
        ),
    )
    mean = Series(
        label="mean of the layer",
        style=0,
        line=" ".join(f"{frame.x(n)},{frame.y(m)}" for n, m in enumerate(means, 1)),
    )
    return Chart(
        title="Learned temperature of each layer",
        told="Means: " + ", ".join(f"layer {n} {m:.2f}" for n, m in enumerate(means, 1)),
        x_label="layer, from the image to the answer",
        x_ticks=tuple(Tick(frame.x(n), str(n)) for n in range(1, count + 1, every)),
        y_ticks=y_ticks,
        series=(mean, heads),
        rules=(
            Rule((frame.x(0.4), frame.y(1)), (frame.x(count + 0.6), frame.y(1)), "at the start"),
        ),
    )
