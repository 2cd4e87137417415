"""Kernels in Triton, and their twins in plain PyTorch.

Importing this imports no Triton; the first launch does.
"""

from smallvit.layers.kernels.draws import uniform_numbers
from smallvit.layers.kernels.fused import exporting, fused_attention, fusible, runs_on
from smallvit.layers.kernels.philox import philox
from smallvit.layers.kernels.plain import Windows, plain_attention
from smallvit.layers.kernels.pool import fused_pool, plain_pool, poolable

__all__ = [
    "Windows",
    "exporting",
    "fused_attention",
    "fused_pool",
    "fusible",
    "philox",
    "plain_attention",
    "plain_pool",
    "poolable",
    "runs_on",
    "uniform_numbers",
]
