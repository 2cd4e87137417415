"""How weights start: PyTorch's distributions, which Linen's defaults are not."""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
from flax.linen import initializers
from jax import Array

Initializer = Callable[..., Any]
Init = Literal["xavier", "compact", "trunc"]

#: Standard deviation of learned positions.
POSITION_STD = {"xavier": 1.0, "compact": 0.2, "trunc": 0.02}

XAVIER: Initializer = initializers.variance_scaling(1.0, "fan_avg", "normal")
NARROW: Initializer = initializers.normal(0.02)
KAIMING: Initializer = initializers.variance_scaling(2.0, "fan_in", "normal")
#: How PyTorch starts a convolution: uniform within ±1/√fan_in.
UNIFORM: Initializer = initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def linear(init: Init) -> Initializer:
    """Of every linear layer."""
    return XAVIER if init == "xavier" else NARROW


def uniform_bias(fan_in: int) -> Initializer:
    """PyTorch's start of a convolution's bias."""

    def start(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        bound = 1 / math.sqrt(fan_in)
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return start
