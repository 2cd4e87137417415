"""95 % confidence intervals of numbers measured on a sample: Wilson's and the bootstrap's.

And Student's t distribution, for intervals and tests of means: its tail and its quantile, without
SciPy.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float64, Num

REPLICATES = 1000
_TINY = 1e-300
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


def t_tail(value: float, freedom: float) -> float:
    """How often a variable of Student's t distribution is further from 0, on either side."""
    if math.isinf(freedom) or freedom > 1e7:
        return math.erfc(abs(value) / math.sqrt(2))
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + value * value))


@cache
def t_within(freedom: float, share: float = 0.95) -> float:
    """Within this distance of 0 a variable stays with that probability."""
    wanted = math.log1p(-share)
    before, value = 0.0, 1.0
    excess = -wanted  # of the logarithm of the tail, at the point before
    for _ in range(100):  # the secant method on a nearly straight line
        now = math.log(t_tail(value, freedom)) - wanted
        if now == excess or abs(now) < 1e-13:
            break
        before, value = value, value - now * (value - before) / (now - excess)
        excess = now
    return value


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - _incomplete_beta(b, a, 1 - x)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logarithm + a * math.log(x) + b * math.log1p(-x)) / a
    # Lentz's method: numerators and denominators of the fraction, as ratios of neighbours.
    result, above, below = 1.0, 1.0, 0.0
    for step in range(1000):
        half = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = half * (b - half) * x / ((a + step - 1) * (a + step))
        else:
            term = -(a + half) * (a + b + half) * x / ((a + step - 1) * (a + step))
        below = 1 / ((1 + term * below) or _TINY)
        above = (1 + term / above) or _TINY
        result *= above * below
        if abs(above * below - 1) < 1e-14 and step:
            break
    return front * (result - 1)
