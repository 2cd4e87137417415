"""The training loop, flat: steps, and now and then a look at validation and a checkpoint."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from smallvit.data import Loader
from smallvit.runs.config import RunConfig
from smallvit.training.distributed import World
from smallvit.training.log import Journal
from smallvit.training.schedule import is_mixed, learning_rate
from smallvit.training.step import NonFiniteError, Stepper
from smallvit.training.stop import Stop

logger = logging.getLogger(__name__)

_LOOK = 50  # steps between questions that a GPU has to stop for
_AGREE = 10  # steps between questions to all processes


class Score(NamedTuple):
    """What validation says."""

    accuracy: float
    loss: float

    def beats(self, other: "Score | None") -> bool:
        """More right, or as many with a lower loss."""
        return other is None or (self.accuracy, -self.loss) > (other.accuracy, -other.loss)


@dataclass
class Progress:
    """How far a run is, as plain numbers; what a checkpoint keeps beside tensors.

    Attributes:
        step: Steps done.
        steps: Steps there are to do; fewer than planned if the time is short.
        best_step: When validation was best.
        best: What it said then.
        waited: Validations since then.
        sums: What the steps since the last line of the log say.
        log_size: Bytes of the log.
        accumulation: Passes a step is made of, more than planned after memory ran out.
        ended: Why it is over: "finished", "patience", "time"; or "".
    """

    step: int = 0
    steps: int = 0
    best_step: int = 0
    best: Score | None = None
    waited: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    log_size: int = 0
    accumulation: int = 1
    ended: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "best": list(self.best) if self.best else None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Progress":
        """From plain data."""
        best = data.get("best")
        return cls(**{**data, "best": Score(*best) if best else None})


@dataclass
class Job:
    """Everything the loop works with.

    Attributes:
        validate: The score of the model as it is now; None where there is no validation split.
        save: Writes a checkpoint.
        deadline: When to be done, on time.monotonic's clock; None takes the time it takes.
        best: The weights that were best on validation.
    """

    config: RunConfig
    world: World
    loader: Loader
    stepper: Stepper
    journal: Journal
    progress: Progress
    every: int
    validate: Callable[[], Score] | None
    save: Callable[["Job"], None]
    deadline: float | None = None
    best: dict[str, Tensor] = field(default_factory=dict)

    @property
    def chosen(self) -> nn.Module:
        """What is validated and saved: the average of the weights, if there is one."""
        model = self.stepper.learner.model
        average = self.stepper.average
        if average is not None:
            for slow, fast in zip(average.buffers(), model.buffers(), strict=True):
                slow.copy_(fast)
        return model if average is None else average


def run_loop(job: Job) -> None:
    """Takes all steps that are left, or those until something ends them; see `Progress.ended`.

    Raises:
        NonFiniteError: The loss was; the last checkpoint holds the last good weights.
    """
    config, progress, stepper = job.config, job.progress, job.stepper
    first, since = progress.step, _Interval(progress.step)
    saved = time.monotonic()
    with Stop() as stop:
        while not progress.ended:
            step = progress.step
            _take_step(job, step)
            progress.step = step + 1
            if step == first:
                since = _Interval(progress.step)  # what a first step costs says nothing of others
            job.journal.advance(progress.step, progress.steps)
            looking = progress.step % job.every == 0 or progress.step == progress.steps
            if looking or progress.step % _LOOK == 0:
                stepper.check()
            if looking:
                _look(job, since)
                since = _Interval(progress.step)
            if progress.step == progress.steps:
                progress.ended = progress.ended or "finished"
            asked, late = _questions(job, stop)
            if asked:
                job.save(job)
                return
            if late and not progress.ended:
                if not looking:
                    _look(job, since)
                progress.ended = "time"
            due = time.monotonic() - saved >= config.loop.checkpoint_seconds
            if looking and job.world.agree(due) and not progress.ended:
                job.save(job)
                saved = time.monotonic()


def _take_step(job: Job, step: int) -> None:
    """One step of the schedule."""
    config, progress = job.config, job.progress
    lr = learning_rate(step, progress.steps, config.optim.lr, config.schedule)
    mixed = config.augment.mixed and is_mixed(step, progress.steps, config.schedule)
    step_within_memory(job, step, lr=lr, mixed=mixed)


def step_within_memory(job: Job, step: int, *, lr: float, mixed: bool) -> None:
    """One step, in more passes if memory runs out."""
    config, progress = job.config, job.progress
    while True:
        try:
            job.stepper(job.loader.batch(step), step, lr=lr, mixed=mixed)
            return
        except torch.OutOfMemoryError:
            share = config.loop.batch_size // job.world.size
            group = config.augment.mix_group if config.augment.mixed else 1
            job.stepper.halve(share, group)
            progress.accumulation = job.stepper.accumulation
            job.journal.tell(
                f"out of memory: a step is now made of {progress.accumulation} passes of "
                f"{share // progress.accumulation} images"
            )


def _look(job: Job, since: "_Interval") -> None:
    """Writes what the steps since the last look said, and validates."""
    progress, config = job.progress, job.config
    loss, accuracy, count = job.stepper.take_sums()
    seconds = time.monotonic() - since.started
    if not math.isfinite(loss):
        raise NonFiniteError(progress.step - 1)
    steps = progress.step - since.step
    rate = seconds / max(steps, 1)
    told = {
        "epoch": round(progress.step / job.loader.steps_per_epoch, 3),
        "images": progress.step * config.loop.batch_size,
        "lr": learning_rate(progress.step - 1, progress.steps, config.optim.lr, config.schedule),
        "loss": loss,
        "accuracy": accuracy,
        "images_per_second": round(config.loop.batch_size / max(rate, 1e-9), 1),
        "seconds": round(seconds, 3),
    }
    assert count > 0
    job.journal.write("train", step=progress.step, **told)
    val = None
    if job.validate is not None:
        started = time.monotonic()
        score = job.validate()
        val = {"loss": score.loss, "accuracy": score.accuracy}
        spent = round(time.monotonic() - started, 3)
        job.journal.write("val", step=progress.step, **val, seconds=spent)
        _choose(job, score)
    rate = (time.monotonic() - since.started) / max(steps, 1)  # with validation
    job.journal.tell_progress(told, val, rate * (progress.steps - progress.step))
    if job.deadline is not None:
        _shorten(job, rate)


def _choose(job: Job, score: Score) -> None:
    """Keeps the weights if they are the best so far; stops when patience is at its end."""
    progress = job.progress
    if score.beats(progress.best):
        progress.best, progress.best_step, progress.waited = score, progress.step, 0
        job.best = {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in job.chosen.state_dict().items()
        }
        return
    progress.waited += 1
    patience = job.config.schedule.patience
    if patience and progress.waited >= patience:
        progress.ended = "patience"


def _shorten(job: Job, rate: float) -> None:
    """Plans fewer steps where the machine has become slower than it was measured."""
    progress = job.progress
    assert job.deadline is not None
    left = progress.steps - progress.step
    affordable = job.world.agree(int((job.deadline - time.monotonic()) / rate))
    if 0 <= affordable < left * 0.98:
        fewer = progress.step + affordable
        job.journal.write("plan", step=progress.step, steps=fewer)
        job.journal.tell(
            f"this machine has become slower: {fewer:,} steps instead of {progress.steps:,}"
        )
        progress.steps = max(fewer, progress.step)
        if progress.steps == progress.step:
            progress.ended = "time"


def _questions(job: Job, stop: Stop) -> tuple[bool, bool]:
    """Whether someone asked to stop, and whether the time is over; the same for all processes."""
    late = job.deadline is not None and time.monotonic() > job.deadline
    if job.world.size == 1:
        return stop.asked, late
    if job.progress.step % _AGREE and job.progress.step != job.progress.steps:
        return False, False
    # The deadline is on the first process's clock, and another machine's shows another time.
    return job.world.any(stop.asked), job.world.agree(late)


class _Interval:
    """Since when the log waits for its next line."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.started = time.monotonic()
