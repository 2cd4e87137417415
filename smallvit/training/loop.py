"""The training loop, flat: steps, and now and then a validation and a checkpoint."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from smallvit.data import Dataset, Loader
from smallvit.evaluation.checks import NotFiniteError
from smallvit.files import write_bytes, write_tensors
from smallvit.runs.checkpoint import (
    ExplodedError,
    Progress,
    Score,
    remove_checkpoints,
    save_checkpoint,
)
from smallvit.runs.folder import Run
from smallvit.runs.places import CHECKPOINTS, CONFIG, EVALUATION, LAST, LOG, WEIGHTS, resume_command
from smallvit.training.log import Log
from smallvit.training.objective import Objective
from smallvit.training.optim import is_mixed, learning_rate, position
from smallvit.training.pace import Pace, Stop
from smallvit.training.statistics import Shown, batches_needed
from smallvit.training.step import NonFiniteError, Stepper

logger = logging.getLogger(__name__)

_CHECK = 50  # steps between checks that a GPU has to be waited for
_AGREE = 10  # steps between questions to all processes


@dataclass(frozen=True)
class Training:
    """Everything the loop works with.

    Attributes:
        clock: Seconds; only their differences count.
        pace: What keeps it to its time; None takes the time it takes.
    """

    run: Run
    dataset: Dataset
    loader: Loader
    stepper: Stepper
    progress: Progress
    log: Log
    clock: Callable[[], float]
    pace: Pace | None = None


def run_loop(training: Training, stop: Stop) -> None:
    """Takes all steps that are left, or those until something ends them; see `Progress.ended`.

    Raises:
        NonFiniteError: The loss is not finite; the last checkpoint holds the last good weights.
    """
    config, progress, clock = training.run.config, training.progress, training.clock
    first, saved = progress.step, clock()
    since = first, saved  # the step and time at which the log's interval begins
    while not progress.ended:
        at, whole = position(progress.step, progress.plans)
        lr = learning_rate(at, whole, config.optim.lr, config.schedule)
        training.stepper.objective.advance(int(at), whole)
        step, batch, mixed = _shown(training, progress.step)
        training.stepper(batch, step, lr=lr, mixed=mixed)
        progress.step = step + 1
        if step == first:
            began = clock()
            training.log.tell(f"the first step took {began - saved:.1f} s")
            if progress.steps > progress.step and config.loop.every != 1:
                since = progress.step, began  # it is slower than the others of its interval
            if training.pace is not None:
                training.pace.begin(progress.step)
        training.log.advance(progress.step, progress.steps)
        left, every = progress.steps - progress.step, config.loop.every or progress.steps
        # Every so many steps and at the end, but not a moment before the end.
        validates = left == 0 or (progress.step % every == 0 and 3 * left >= every)
        if validates or progress.step % _CHECK == 0:
            training.stepper.check()
        if validates:
            _end_interval(training, since, lr)
            since = progress.step, clock()
        if progress.step == progress.steps:
            progress.ended = progress.ended or "finished"
        if not progress.ended:
            _replan(training)
        requested, over = _questions(training, stop)
        if requested:
            progress.spent += clock() - since[1]
            save(training)
            return
        if over and not progress.ended:
            if not validates:
                _end_interval(training, since, lr)
            progress.replan(progress.step)
            progress.ended = "time"
        due = clock() - saved >= config.loop.checkpoint_seconds
        if validates and training.stepper.world.agree(due) and not progress.ended:
            save(training)
            saved = clock()
            if training.pace is not None:
                training.pace.begin(progress.step)  # writing is no step


def _shown(training: Training, step: int) -> Shown:
    """What a step sees."""
    config = training.run.config
    mixed = is_mixed(*position(step, training.progress.plans), config.schedule)
    return Shown(step, training.loader.batch(step), config.augment.mixed and mixed)


def _evaluated(training: Training) -> Objective:
    """What is validated and saved, as it is after the last step."""
    step, stepper = training.progress.step, training.stepper
    first = max(step - batches_needed(training.run.config.loop.batch_size), 0)
    stepper.settle(step, lambda: [_shown(training, each) for each in range(first, step)])
    return stepper.evaluated


def _end_interval(training: Training, since: tuple[int, float], lr: float) -> None:
    """Logs the steps since the last interval, and validates."""
    config, progress, clock = training.run.config, training.progress, training.clock
    first, started = since
    means = training.stepper.take_means()
    seconds = clock() - started
    if not math.isfinite(means["loss"]):
        raise NonFiniteError(progress.step - 1)
    steps = max(progress.step - first, 1)
    epoch = progress.step / training.loader.steps_per_epoch
    speed = round(config.loop.batch_size * steps / max(seconds, 1e-9), 1)
    training.log.write(
        "train",
        step=progress.step,
        epoch=round(epoch, 3),
        images=progress.step * config.loop.batch_size,
        lr=lr,
        **means,
        images_per_second=speed,
        seconds=round(seconds + progress.spent, 3),
    )
    progress.spent = 0.0
    before = clock()
    val = _validate(training) if "val" in training.dataset.splits else {}
    if config.loop.log_test and "test" in training.dataset.splits:
        world = training.stepper.world
        test = _evaluated(training).validate(training.dataset, "test", world)
        training.log.write("test", step=progress.step, **test)
    if training.pace is not None:
        training.pace.validated(clock() - before)
    rate = (clock() - started) / steps  # with validation
    left = rate * (progress.steps - progress.step)
    decides = training.stepper.objective.decides
    training.log.show_interval(epoch, means, {decides: val[decides]} if val else {}, speed, left)


def _validate(training: Training) -> dict[str, float]:
    """Loss and numbers of the validation split, with the weights as they are now.

    Keeps the weights if they are the best so far; ends the run when patience is at its end.

    Raises:
        NonFiniteError: The last step left weights that give nothing finite.
    """
    progress, before, objective = training.progress, training.clock(), _evaluated(training)
    try:
        val = objective.validate(training.dataset, "val", training.stepper.world)
    except NotFiniteError as error:
        raise NonFiniteError(progress.step) from error
    if not math.isfinite(val["loss"]):
        raise NonFiniteError(progress.step)
    seconds = round(training.clock() - before, 3)
    training.log.write("val", step=progress.step, **val, seconds=seconds)
    decides, patience = objective.decides, training.run.config.schedule.patience
    score = Score(-val["loss"] if decides == "loss" else val[decides], val["loss"])
    progress.waited += 1
    if score.beats(progress.best):
        progress.best, progress.best_step, progress.waited = score, progress.step, 0
        progress.best_weights = {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in objective.model.state_dict().items()
        }
    elif patience and progress.waited >= patience:
        progress.ended = "patience"
    return val


def _replan(training: Training) -> None:
    """Every few seconds: as many steps as fit now, where that is another number."""
    pace, progress, world = training.pace, training.progress, training.stepper.world
    if pace is None or (world.size > 1 and progress.step % _AGREE):
        return
    if not world.agree(pace.due(progress.step, progress.steps)):
        return
    training.stepper.check()  # waits for the device, which may be behind
    steps = world.agree(pace.plan(progress.step, progress.steps))
    if steps != progress.steps:
        progress.replan(steps)
        training.log.write("plan", step=progress.step, steps=steps)
        training.log.tell_plan(steps)


def _questions(training: Training, stop: Stop) -> tuple[bool, bool]:
    """Whether a stop was requested, and whether time is over; the same in all processes."""
    world, progress = training.stepper.world, training.progress
    over = training.pace is not None and training.pace.over
    if world.size == 1:
        return stop.requested, over
    if progress.step % _AGREE and progress.step != progress.steps:
        return False, False
    # The time is that of the first process's clock, and another machine's shows another one.
    return world.any(stop.requested), world.agree(over)


def save(training: Training) -> None:
    """Writes a checkpoint; one that cannot be written does not end the training."""
    progress, stepper, folder = training.progress, training.stepper, training.run.folder
    progress.sums = stepper.world.total(stepper.sums).tolist()
    progress.log_size = training.log.flush()
    progress.accumulation = stepper.accumulation
    progress.scaler = stepper.scaler.state_dict()
    exploded = ""
    if stepper.world.leads:
        try:
            save_checkpoint(folder / CHECKPOINTS, progress, stepper.state_dict())
            if progress.best_weights:
                write_tensors(folder / WEIGHTS, progress.best_weights)
        except ExplodedError as error:
            exploded = str(error)
        except OSError as error:
            logger.warning("could not write a checkpoint: %s; training goes on", error)
    if exploded := stepper.world.agree(exploded):
        raise NonFiniteError(progress.step, exploded)


def restore(progress: Progress, tensors: Mapping[str, Tensor], stepper: Stepper) -> None:
    """Puts a checkpoint back into a stepper.

    Raises:
        ValueError: The checkpoint belongs to another model.
    """
    stepper.load_state_dict(tensors)
    stepper.accumulation = progress.accumulation
    if progress.scaler:
        stepper.scaler.load_state_dict(progress.scaler)
    # The sums are those of all processes together.
    sums = progress.sums if stepper.world.leads else [0.0] * len(progress.sums)
    stepper.sums.copy_(torch.tensor(sums, dtype=stepper.sums.dtype))


def interrupted(training: Training) -> Run:
    """Says how a run goes on that a signal stopped."""
    run, progress = training.run, training.progress
    if training.stepper.world.leads:
        run = run.note(status="interrupted", step=progress.step, plans=progress.plans)
        done, steps = f"{progress.step:,}", f"{progress.steps:,}"
        command = resume_command(run.folder)
        logger.warning("stopped after %s of %s steps; go on with: %s", done, steps, command)
    return run


def finish(training: Training) -> Run:
    """Writes weights, evaluation and the last facts of a run that has ended."""
    run, world, progress = training.run, training.stepper.world, training.progress
    objective = _evaluated(training)
    last = {name: tensor.cpu() for name, tensor in objective.model.state_dict().items()}
    best = progress.best_weights or last
    if world.leads:
        _write_weights(run.folder, {WEIGHTS: best, LAST: last})
    objective.model.load_state_dict(best)
    torch.backends.cuda.matmul.allow_tf32 = False  # as `evaluate` computes
    try:
        pace = training.pace
        late = None if pace is None else lambda: world.agree(pace.late)
        facts, evaluation = objective.evaluate(training.dataset, world, late)
    except KeyboardInterrupt:
        if world.leads:
            command = resume_command(run.folder)
            logger.warning("stopped during the final test; go on with: %s", command)
        raise
    ending = {
        "status": "finished",
        "ended": progress.ended,
        "steps": progress.step,
        "best_step": progress.best_step or progress.step,
        "accumulation": training.stepper.accumulation,
        "plans": progress.plans,
        **facts,
    }
    if world.leads:
        if evaluation is not None:
            write_bytes(run.folder / EVALUATION, evaluation.to_json().encode())
        plans = progress.plans if len(progress.plans) > 1 else ()
        run = run.settle(run.config.with_steps(progress.steps, plans))
        run = run.note(**ending, hashes=run.hashed(CONFIG, WEIGHTS, LAST, LOG, EVALUATION))
        remove_checkpoints(run.folder / CHECKPOINTS)
    world.gather(None)  # all have come so far
    # What the first process wrote is what the others return.
    return run if world.leads else replace(run, info={**run.info, **ending})


def _write_weights(folder: Path, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Files of weights; where the disk is full, checkpoints make room for them."""
    for name, tensors in files.items():
        try:
            write_tensors(folder / name, tensors)
        except OSError as error:
            logger.warning(
                "could not write %s (%s): removing checkpoints to make room", name, error
            )
            remove_checkpoints(folder / CHECKPOINTS)
            write_tensors(folder / name, tensors)
