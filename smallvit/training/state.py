"""What a checkpoint holds, gathered from a running training and put back into one."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smallvit.runs.checkpoint import Checkpoint
from smallvit.training.loop import Job, Progress

if TYPE_CHECKING:
    from collections.abc import Mapping


def gather_state(job: Job) -> Checkpoint:
    """Everything that decides how the run goes on."""
    stepper, progress = job.stepper, job.progress
    progress.sums = job.world.total(stepper.sums).tolist()
    progress.log_size = job.journal.size
    tensors = {f"learner.{name}": value for name, value in stepper.learner.state_dict().items()}
    if stepper.average is not None:
        average = stepper.average.state_dict()
        tensors |= {f"average.{name}": value for name, value in average.items()}
    for number, held in stepper.optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{key}": value for key, value in held.items()}
    tensors |= {f"best.{name}": value for name, value in job.best.items()}
    state = {**progress.to_dict(), "scaler": stepper.scaler.state_dict()}
    return Checkpoint(step=progress.step, tensors=tensors, state=state)


def restore_state(job: Job, checkpoint: Checkpoint) -> None:
    """The reverse.

    Raises:
        ValueError: The checkpoint belongs to another model.
    """
    stepper = job.stepper
    state = dict(checkpoint.state)
    scaler = state.pop("scaler")
    job.progress = Progress.from_dict(state)
    tensors = checkpoint.tensors
    try:
        stepper.learner.load_state_dict(below(tensors, "learner"))
        if stepper.average is not None:
            stepper.average.load_state_dict(below(tensors, "average"))
    except RuntimeError as error:
        raise ValueError(f"the checkpoint belongs to another model: {error}") from error
    trained = [p for group in stepper.optimiser.param_groups for p in group["params"]]
    held: dict[int, dict[str, Tensor]] = {}
    for name, value in below(tensors, "optimiser").items():
        number, _, key = name.partition(".")
        held.setdefault(int(number), {})[key] = _laid_out_as(trained[int(number)], value)
    now = stepper.optimiser.state_dict()
    stepper.optimiser.load_state_dict({"state": held, "param_groups": now["param_groups"]})
    if scaler:
        stepper.scaler.load_state_dict(scaler)
    job.best = below(tensors, "best")
    stepper.accumulation = job.progress.accumulation
    sums = job.progress.sums if job.world.leads else [0.0] * len(job.progress.sums)
    stepper.sums.copy_(torch.tensor(sums, dtype=stepper.sums.dtype))


def _laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    """A value in its parameter's order of memory, which is what fused optimisers go by."""
    if value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, requires_grad=False).copy_(value)


def below(tensors: "Mapping[str, Tensor]", prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)
    }
