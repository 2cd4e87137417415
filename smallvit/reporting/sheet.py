"""What an experiment found, as a terminal and a page both show it: sentences, tables, charts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smallvit.evaluation import Estimate
from smallvit.reporting.charts import (
    Chart,
    Dot,
    Frame,
    Point,
    Series,
    Tick,
    Whisker,
    round_numbers,
    spanned,
)
from smallvit.reporting.charts import compact as short
from smallvit.reporting.charts import percent as share


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value in a table.

    Attributes:
        text: As people read it.
        sort: What it is sorted by; None sorts it by its text.
        interval: A share to be drawn beside it.
    """

    text: str
    sort: float | None = None
    interval: Estimate | None = None

    @classmethod
    def number(cls, value: float | None, form: str) -> "Cell":
        """A number; a dash where there is none."""
        return (
            cls(text="–", sort=-1.0) if value is None else cls(text=form.format(value), sort=value)
        )

    @classmethod
    def percent(cls, value: float | None, unit: str = " %") -> "Cell":
        """A share."""
        return cls.number(None if value is None else 100 * value, "{:.1f}" + unit)

    @classmethod
    def bounds(cls, estimate: Estimate | None) -> "Cell":
        """The interval of a share."""
        if estimate is None:
            return cls.number(None, "")
        text = f"{100 * estimate.low:.1f}–{100 * estimate.high:.1f}"
        return cls(text=text, sort=estimate.low, interval=estimate)

    @classmethod
    def size(cls, value: float | None) -> "Cell":
        """A large number in thousands, millions or billions."""
        for least, unit, letter in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
            if value is not None and value >= least:
                return cls(text=f"{value / unit:.3g}{letter}", sort=value)
        return cls.number(value, "{:,.0f}")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        title: Above it.
        columns: Their headings; the first column holds names.
        rows: Cells of each row.
        notes: Below it, a sentence each.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What an experiment found.

    Attributes:
        title: Of the page.
        lead: The answer, a sentence each.
        notes: What the answer does not say.
        tables: The numbers.
        charts: The same to look at.
        failures: Why runs failed, by their name.
        record: What one needs to repeat it, by name.
    """

    title: str
    lead: tuple[str, ...]
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    record: Mapping[str, str] = field(default_factory=dict)


def accuracy_over(
    lines: Mapping[str, Sequence[Point]],
    *,
    title: str,
    x_label: str,
    intervals: Mapping[str, Sequence[Estimate]] | None = None,
    joined: bool = True,
    doubling: bool = False,
) -> Chart:
    """Accuracy of several rows against something else.

    Args:
        lines: Points of each row: something, and an accuracy.
        title: Of the chart.
        x_label: What that something is.
        intervals: Of the points.
        joined: Whether points are joined by lines.
        doubling: Whether the lower axis is logarithmic.
    """

    def at(x: float) -> float:
        return math.log2(x) if doubling else x

    bounds = [e for row in (intervals or {}).values() for e in row]
    heights = [y for points in lines.values() for _, y in points]
    low, high = spanned([*heights, *(e.low for e in bounds), *(e.high for e in bounds)])
    places = [at(x) for points in lines.values() for x, _ in points]
    across = spanned(places) if doubling or not joined else (0.0, max([*places, 1e-9]))
    if across[0] < 0 and not doubling:
        across = 0.0, across[1]
    frame = Frame(across, (max(low, 0.0), min(max(high, max(low, 0.0) + 0.02), 1.0)))
    series = []
    for style, (label, points) in enumerate(lines.items()):
        moved = [(at(x), y) for x, y in points]
        whiskers = tuple(
            Whisker(frame.x(x), frame.y(e.low), frame.y(e.high))
            for (x, _), e in zip(moved, (intervals or {}).get(label, ()), strict=False)
        )
        dots = tuple(
            Dot(frame.x(moved_x), frame.y(y), f"{label}, {x:,.3g}: {share(y)}")
            for (moved_x, _), (x, y) in zip(moved, points, strict=True)
        )
        line = frame.line(moved) if joined and len(moved) > 1 else ""
        marks = dots if len(dots) <= 30 else ()
        series.append(Series(label=label, style=style, line=line, dots=marks, whiskers=whiskers))
    ticks = frame.x_ticks(short)
    if doubling:
        low_x, high_x = (2**place for place in frame.x_range)
        ticks = tuple(Tick(frame.x(at(v)), short(v)) for v in _octaves(low_x, high_x))
    ends = "; ".join(f"{label}: up to {share(max(y for _, y in p))}" for label, p in lines.items())
    return Chart(
        title=title,
        description=f"Accuracy against {x_label}. {ends}.",
        x_label=x_label,
        x_ticks=ticks,
        y_ticks=frame.y_ticks(share),
        series=tuple(series),
    )


def _octaves(low: float, high: float) -> list[float]:
    """A few round numbers on a logarithmic axis."""
    rounds = [times * 10.0**power for power in range(-3, 12) for times in (1, 2, 5)]
    inside = [number for number in rounds if low <= number <= high]
    if len(inside) < 2:
        return round_numbers(low, high, 3)
    return inside[:: 1 + len(inside) // 7]
