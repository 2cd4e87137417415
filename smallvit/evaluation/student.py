"""Student's t distribution: its tail and its quantile, without SciPy."""

import math
from functools import cache

_TINY = 1e-300


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
