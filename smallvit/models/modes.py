"""Evaluation mode for a while."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module, *, fork_rng: bool = False) -> Iterator[None]:
    """Runs a model in evaluation mode and without gradients.

    Afterwards every module is in the mode it was in before.

    Args:
        model: Any model.
        fork_rng: Whether torch's random generators are restored afterwards as well.
    """
    modes = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    model.eval()
    try:
        # Not inference_mode: what a model keeps between calls must still work in training.
        with ExitStack() as stack:
            if fork_rng:
                stack.enter_context(torch.random.fork_rng(list(devices)))
            stack.enter_context(torch.no_grad())
            yield
    finally:
        for module, mode in modes:
            module.training = mode
