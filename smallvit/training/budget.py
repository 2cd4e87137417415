"""How much: images per batch, and steps from epochs, or from minutes by measuring."""

import logging
from collections.abc import Callable
from dataclasses import replace

from smallvit.data import Dataset, Loader
from smallvit.runs.config import RunConfig
from smallvit.training.distributed import World
from smallvit.training.optim import validation_interval
from smallvit.training.step import Stepper

logger = logging.getLogger(__name__)

_MARGIN = 0.04  # of the budget, for what was not measured
_SHARE = 0.06  # most of the time that goes into validation
_TRIAL = 0.05  # of the budget, spent on measuring
_LEAST = 3


def limit_batch(config: RunConfig, dataset: Dataset) -> RunConfig:
    """The config with a batch that is not larger than the training split."""
    count, batch = len(dataset.split("train")), config.loop.batch_size
    if batch <= count:
        return config
    group = config.augment.mix_group if config.augment.mixed else 1
    smaller = count // group * group
    if not smaller:
        raise ValueError(
            f"{count} training images are fewer than a mixing group of {group}: switch mixing "
            "off with --set augment.mixup=0 --set augment.cutmix=0"
        )
    logger.warning("batch_size %d is larger than the training split: %d now", batch, smaller)
    return replace(config, loop=replace(config.loop, batch_size=smaller, accumulation=1))


def make_loader(config: RunConfig, dataset: Dataset, world: World) -> Loader:
    """Batches of the training split.

    Raises:
        ValueError: The batch cannot be divided among processes, passes and mixing groups.
    """
    loop, group = config.loop, config.augment.mix_group if config.augment.mixed else 1
    unit = world.size * loop.accumulation * group
    if loop.batch_size % unit:
        raise ValueError(
            f"batch_size is {loop.batch_size}: {world.size} processes with {loop.accumulation} "
            f"passes each{f' and mixing groups of {group}' if group > 1 else ''} need a "
            f"multiple of {unit}"
        )
    return Loader(
        dataset.pixels("train"),
        dataset.labels("train"),
        batch_size=loop.batch_size,
        seed=config.seed,
        rank=world.rank,
        world_size=world.size,
        device=world.device,
        balanced=loop.balanced,
        repeats=loop.repeats,
    )


def plan_steps(
    config: RunConfig,
    dataset: Dataset,
    loader: Loader,
    stepper: Stepper,
    *,
    started: float,
    clock: Callable[[], float],
) -> tuple[int, int, float | None]:
    """How many steps; for a budget of minutes it takes some, measures them and undoes them.

    Args:
        started: When the minutes began, on the clock.
        clock: Seconds; only their differences count.

    Returns:
        Steps, steps between validations, and when they have to be done: None has time.

    Raises:
        ValueError: The time is over before the first step.
    """
    schedule, every, deadline = config.schedule, config.loop.every, None
    steps = schedule.steps or max(1, round(schedule.epochs * loader.steps_per_epoch))
    if schedule.steps is None and schedule.minutes is not None:
        per_step, per_validation = _measure(config, dataset, loader, stepper, clock)
        tested = len(dataset.splits.get("test", ()))
        # The test costs about a third of training on as many images; validation is repeated once.
        after = per_step / config.loop.batch_size / 2 * tested + per_validation
        deadline = started + 60 * schedule.minutes * (1 - _MARGIN) - after - 1.0
        if every is None:
            least = int(per_validation / (_SHARE * per_step)) + 1
            every = max(loader.steps_per_epoch, least)
        steps = int((deadline - clock()) / (per_step + per_validation / every))
        every = max(every, steps // 100)
        # Each process has measured; the first one's plan counts.
        steps, every, deadline = stepper.world.agree((steps, every, deadline))
        if steps < 1:
            raise ValueError(
                f"{schedule.minutes:g} minutes are over before the first step: one takes "
                f"{per_step:.2g} seconds here, and preparation took {clock() - started:.0f}; "
                "allow more time, or choose a smaller model"
            )
    every = every or validation_interval(steps, loader.steps_per_epoch)
    return steps, min(every, steps), deadline


def _measure(
    config: RunConfig,
    dataset: Dataset,
    loader: Loader,
    stepper: Stepper,
    clock: Callable[[], float],
) -> tuple[float, float]:
    """Seconds of a step and of a validation; the training is afterwards where it was."""
    world, saved = stepper.world, stepper.snapshot()
    times: list[float] = []
    until = clock() + _TRIAL * 60 * (config.schedule.minutes or 0)
    number = 0
    # All processes take the same steps, or one would wait for ever.
    while world.agree(len(times) < _LEAST or (clock() < until and len(times) < 200)):
        started = clock()
        stepper(loader.batch(number), number, lr=0.0, mixed=config.augment.mixed)
        stepper.take_means()  # waits for the device
        if number:  # the first one compiles
            times.append(clock() - started)
        number += 1
    stepper.restore(saved)
    seconds = 0.0
    if "val" in dataset.splits:
        for _ in range(2):  # the second time counts
            started = clock()
            stepper.evaluated().validate(dataset, "val", world)
            seconds = clock() - started
    return sum(times) / len(times), seconds
