"""Uniform numbers by position as an operator of torch: one node and one kernel.

Written out, the hash behind them is three hundred nodes of a graph, which a compiler takes seconds
to look at; `smallvit.augment.randomness` has it written out, for everything but these GPUs.
"""

import torch
from torch import Tensor


@torch.library.custom_op("smallvit::uniform", mutates_args=())
def uniform_numbers(seed: Tensor, step: Tensor, positions: Tensor, count: int) -> Tensor:
    """`count` numbers for each position, uniform on the open interval (0, 1)."""
    from smallvit.layers.kernels.draws_program import launch_draws

    return launch_draws(seed, step, positions, count)


@uniform_numbers.register_fake
def _(seed: Tensor, step: Tensor, positions: Tensor, count: int) -> Tensor:
    return positions.new_empty((positions.shape[0], count), dtype=torch.float32)
