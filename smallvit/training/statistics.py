"""Batch norm's statistics of averaged weights.

A moving average of weights has other activations than any of the weights in it, and smaller ones
where these change quickly. With the statistics that the training has gathered it would be
normalised wrongly, the more the longer the average is: they are measured again on a few batches.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from smallvit.data.loader import Batch
from smallvit.training.distributed import World
from smallvit.training.objective import Objective

logger = logging.getLogger(__name__)

_IMAGES = 128  # images to measure on, at least
_BATCHES = 4  # batches, at least


class Shown(NamedTuple):
    """A batch as a step of the training sees it."""

    step: int
    batch: Batch
    mixed: bool


def batches_needed(batch_size: int) -> int:
    """How many batches are enough."""
    return max(_BATCHES, math.ceil(_IMAGES / batch_size))


def batch_norms(objective: Objective) -> list[Any]:
    """The batch norms of the model that keep statistics."""
    return [
        module
        for module in objective.model.modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
    ]


@torch.no_grad()
def measure_statistics(
    objective: Objective, shown: Sequence[Shown], world: World, passes: int = 1
) -> None:
    """Sets the statistics of every batch norm to their means over batches.

    Args:
        objective: In evaluation mode; only its batch norms see the batches as in training.
        shown: The batches.
        world: The processes that share them.
        passes: In how many parts a batch goes through the model; more if memory runs out.
    """
    while True:
        try:
            with _measuring(objective):
                _show(objective, shown, world, passes)
            break
        except torch.OutOfMemoryError:
            if world.size > 1 or not objective.divides(len(shown[0].batch.images), 2 * passes):
                raise
        passes *= 2
        logger.warning("out of memory: statistics are measured in passes half as large")
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
    for norm in batch_norms(objective):
        for found in (norm.running_mean, norm.running_var):
            found.copy_(world.total(found) / world.size)


def _show(objective: Objective, shown: Sequence[Shown], world: World, passes: int) -> None:
    for step, batch, mixed in shown:
        number = torch.tensor(step, device=world.device)
        for images, labels, positions in zip(*(each.chunk(passes) for each in batch), strict=True):
            objective.show(images, labels, number, positions, mixed=mixed)


@contextmanager
def _measuring(objective: Objective) -> Iterator[None]:
    """Batch norms forget what they know, and then take the mean of all they see."""
    norms = batch_norms(objective)
    before = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all
        norm.train()
    objective.training = True  # augmentation as in training; its other modules stay as they are
    try:
        yield
    finally:
        objective.training = False
        for norm, (momentum, tracked) in zip(norms, before, strict=True):
            norm.num_batches_tracked.copy_(tracked)
            norm.momentum = momentum
            norm.eval()
