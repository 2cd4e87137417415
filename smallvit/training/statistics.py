"""Batch norm's statistics of averaged weights.

A moving average of weights has other activations than any of the weights in it, and smaller ones
where these change quickly. With the statistics that the training has gathered it would be
normalised wrongly, the more the longer the average is: they are measured again on a few batches.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from smallvit.data.loader import Batch
from smallvit.training.distributed import World
from smallvit.training.objective import Objective

_IMAGES = 1_024  # images to measure on, at least
_BATCHES = 4  # batches, at least


class Shown(NamedTuple):
    """A batch as a step of the training sees it."""

    step: int
    batch: Batch
    mixed: bool


def batches_to_measure(step: int, batch_size: int) -> range:
    """The last steps before one, whose batches are enough."""
    count = max(_BATCHES, math.ceil(_IMAGES / batch_size))
    return range(max(step - count, 0), step)


@torch.no_grad()
def measure_statistics(
    objective: Objective, shown: Iterable[Shown], world: World, passes: int = 1
) -> None:
    """Sets the statistics of every batch norm to their means over batches.

    Args:
        objective: In evaluation mode; only its batch norms see the batches as in training.
        shown: The batches; none are asked for where there is no batch norm.
        world: The processes that share them.
        passes: In how many parts a batch goes through the model.
    """
    norms: list[Any] = [norm for norm in objective.model.modules() if _is_measured(norm)]
    if not norms:
        return
    before = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all
        norm.train()
    for step, batch, mixed in shown:
        number = torch.tensor(step, device=world.device)
        for images, labels, positions in zip(*(each.chunk(passes) for each in batch), strict=True):
            objective(images, labels, number, positions, mixed=mixed)
    for norm, (momentum, tracked) in zip(norms, before, strict=True):
        for found in (norm.running_mean, norm.running_var):
            found.copy_(world.total(found) / world.size)
        norm.num_batches_tracked.copy_(tracked)
        norm.momentum = momentum
        norm.eval()


def _is_measured(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.track_running_stats
