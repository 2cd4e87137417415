"""Charts as plain geometry, which the page draws as SVG; nothing here is text of a page."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WIDTH, HEIGHT = 360, 230
"""Of every chart; on a phone about one unit a pixel, so that its text can be read."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 22, 14, 42
_DOTTED = 30

Point = tuple[float, float]


class Tick(NamedTuple):
    """A line of an axis."""

    at: float
    label: str


class Dot(NamedTuple):
    """A point, with what it says when pointed at."""

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
    """A reference line; the label of an upright one stands at its foot, or raised at its head."""

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
    """What belongs together and looks alike.

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
        told: The same in words, for those who cannot see it.
        x_label: Below.
        x_ticks: Places of the lower axis.
        y_ticks: Places of the left axis.
        series: What is drawn.
        bars: Drawn below everything, in grey.
        rules: Reference lines.
    """

    title: str
    told: str
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
    """From values to places in a chart."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x_range, self.y_range = x, y

    def x(self, value: float) -> float:
        """Where a value lies from left to right."""
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * _share(value, self.x_range), 1)

    def y(self, value: float) -> float:
        """Where a value lies from top to bottom."""
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * _share(value, self.y_range), 1)

    def ticks(
        self, format_x: Callable[[float], str], format_y: Callable[[float], str]
    ) -> tuple[tuple[Tick, ...], tuple[Tick, ...]]:
        """Both axes' ticks at round numbers."""
        across = tuple(Tick(self.x(v), format_x(v)) for v in round_numbers(*self.x_range, 4))
        upward = tuple(Tick(self.y(v), format_y(v)) for v in round_numbers(*self.y_range, 5))
        return across, upward

    def series(
        self, label: str, style: int, points: Sequence[Point], told: Callable[[float, float], str]
    ) -> Series:
        """A line, with dots where there is room for them."""
        places = [(self.x(x), self.y(y)) for x, y in points]
        dots = [Dot(*place, told(*point)) for place, point in zip(places, points, strict=True)]
        return Series(
            label=label,
            style=style,
            line=" ".join(f"{x},{y}" for x, y in places),
            dots=tuple(dots) if len(dots) <= _DOTTED else (),
        )


def _share(value: float, within: tuple[float, float]) -> float:
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


def share(value: float) -> str:
    """A share in a sentence."""
    return f"{100 * value:.1f} %"


def whole_percent(value: float) -> str:
    """A share for an axis."""
    return f"{100 * value:.3g} %"
