"""Minutes into steps."""

import time
from typing import NamedTuple

from smallvit.training.loop import Job, step_within_memory

_MARGIN = 0.04  # of the budget, for what was not measured
_SHARE = 0.06  # most of the time that goes into validation
_TRIAL = 0.05  # of the budget, spent on measuring
_LEAST = 3


class Budget(NamedTuple):
    """What a command may take.

    Attributes:
        seconds: From `started` to the end of the command.
        started: On time.monotonic's clock.
        tested: Images of the test split, which are looked at in the end.
    """

    seconds: float
    started: float
    tested: int


def plan_steps(job: Job, budget: Budget, every: int | None) -> tuple[int, int, float]:
    """Takes some steps, undoes them, and says how many fit.

    Returns:
        Steps, steps between validations, and when to be done with them.

    Raises:
        ValueError: The time is over before anything could be trained.
    """
    per_step, per_validation = _measure(job, budget)
    # The test costs about a third of training on as many images; validation is repeated once.
    after = per_step / job.config.loop.batch_size / 2 * budget.tested + per_validation
    end = budget.started + budget.seconds * (1 - _MARGIN) - after - 1.0
    left = end - time.monotonic()
    if every is None:
        least = per_validation / (_SHARE * per_step)
        every = max(job.loader.steps_per_epoch, int(least) + 1)
    steps = job.world.agree(int(left / (per_step + per_validation / every)))
    if steps < 1:
        raise ValueError(
            f"{budget.seconds / 60:g} minutes are over before the first step: one takes "
            f"{per_step:.2g} seconds here, and preparation took "
            f"{time.monotonic() - budget.started:.0f}; allow more time, or choose a smaller model"
        )
    return steps, max(every, steps // 100), end


def _measure(job: Job, budget: Budget) -> tuple[float, float]:
    """Seconds of a step and of a validation; the training is afterwards where it was."""
    saved = job.stepper.snapshot()
    times: list[float] = []
    until = time.monotonic() + _TRIAL * budget.seconds
    number = 0
    # All processes take the same steps, or one would wait for ever.
    while job.world.agree(len(times) < _LEAST or (time.monotonic() < until and len(times) < 200)):
        started = time.monotonic()
        step_within_memory(job, number, lr=0.0, mixed=job.config.augment.mixed)
        job.stepper.take_sums()  # waits for the device
        if number:  # the first one compiles
            times.append(time.monotonic() - started)
        number += 1
    job.stepper.restore(saved)
    per_step = sum(times) / len(times)
    per_validation = 0.0
    if job.validate is not None:
        job.validate()
        started = time.monotonic()
        job.validate()
        per_validation = time.monotonic() - started
    return per_step, per_validation
