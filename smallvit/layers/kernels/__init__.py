"""Fused attention in Triton, and its twin in plain PyTorch.

Importing this imports no Triton; the first launch does.
"""

from smallvit.layers.kernels.fused import fused_attention, fusible
from smallvit.layers.kernels.plain import Windows, plain_attention

__all__ = ["Windows", "fused_attention", "fusible", "plain_attention"]
