"""95 % confidence intervals of numbers measured on a sample: Wilson's and the bootstrap's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Num

REPLICATES = 1000
Z = 1.959963984540054
"""A normal variable stays within this with 95 %."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number measured on a sample, and the 95 % interval around it."""

    value: float
    low: float
    high: float

    @property
    def percent(self) -> str:
        """As people read it: 87.3 % (85.1–89.2)."""
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f}–{100 * self.high:.1f})"

    @property
    def number(self) -> str:
        """What is not a share, as people read it: 0.512 (0.480–0.561)."""
        return f"{self.value:.3f} ({self.low:.3f}–{self.high:.3f})"

    def widened(self, other: "Estimate") -> "Estimate":
        """The same value with an interval that holds the other's as well."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Estimate(value=self.value, low=low, high=high)


def wilson(
    successes: Num[np.ndarray, "*shape"], count: Num[np.ndarray, "*shape"]
) -> tuple[Float64[np.ndarray, "*shape"], Float64[np.ndarray, "*shape"]]:
    """Wilson's 95 % interval of a proportion: low and high; 0 and 1 where nothing was counted."""
    total = np.maximum(count, 1).astype(np.float64)
    share = successes / total
    centre = (share + Z**2 / (2 * total)) / (1 + Z**2 / total)
    half = np.sqrt(share * (1 - share) / total + (Z / (2 * total)) ** 2) * Z / (1 + Z**2 / total)
    # Rounding would leave 1e-17 where the bounds are exactly 0 and 1.
    low = np.where(successes > 0, centre - half, 0.0)
    return low, np.where(successes < count, centre + half, 1.0)


def ratio(
    part: Float64[np.ndarray, " n"], total: Float64[np.ndarray, " n"]
) -> Float64[np.ndarray, " n"]:
    """The ratio of two numbers; 0 where the total is 0."""
    return np.divide(part, total, out=np.zeros_like(part), where=total > 0)


def proportion(successes: int, count: int) -> Estimate:
    """A share of images, with Wilson's interval."""
    low, high = wilson(np.array(successes), np.array(count))
    return Estimate(value=successes / count, low=float(low), high=float(high))


def bootstrap(
    statistics: Callable[[Float64[np.ndarray, " N"]], Mapping[str, float]],
    count: int,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Percentile intervals of any numbers of a sample.

    An interval is widened to hold the value itself where replicates lie to one side of it, as they
    do for a calibration error near 0.

    Args:
        statistics: Gives the numbers by name from how often each sample is drawn.
        count: Of the samples.
        replicates: How often to draw as many samples as there are, with repetition.
        seed: Of the draws.
    """
    generator = np.random.default_rng(seed)
    values = statistics(np.ones(count))
    drawn = np.empty((replicates, len(values)))
    for row in drawn:
        times = np.bincount(generator.integers(count, size=count), minlength=count)
        row[:] = list(statistics(times.astype(np.float64)).values())
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    return {
        name: Estimate(value=value, low=min(value, float(down)), high=max(value, float(up)))
        for (name, value), down, up in zip(values.items(), low, high, strict=True)
    }
