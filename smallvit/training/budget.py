"""How much: images per batch, and steps from epochs, or from minutes by measuring."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from smallvit.data import Dataset, Loader
from smallvit.evaluation.measure import Precision
from smallvit.runs.config import RunConfig
from smallvit.text import counted
from smallvit.training.classification import CALIBRATED
from smallvit.training.distributed import World
from smallvit.training.optim import validation_interval
from smallvit.training.pace import Pace
from smallvit.training.statistics import Shown, batches_needed
from smallvit.training.step import Stepper

logger = logging.getLogger(__name__)

_SHARE = 0.06  # most of the time that goes into validation
_TRIAL, _TRIAL_SECONDS = 0.01, 3.0  # of the budget, and at most, spent on measuring
#: Images per process that tell the speed of a test: more and more, until they take so many seconds.
_TRIED, _TELLING = (4, 16, 64, 256), 0.25
_STATISTICS = 4e-5  # seconds per tested image, for intervals and predictions
_WRITING = 0.5  # seconds, for weights and other files


def limit_batch(config: RunConfig, dataset: Dataset, world: World) -> RunConfig:
    """The config with a batch that is not larger than the training split."""
    count, batch = len(dataset.split("train")), config.loop.batch_size
    if batch <= count:
        return config
    group = config.augment.group
    unit = math.lcm(group * world.size, config.loop.repeats)
    smaller = count // unit * unit
    if not smaller and group > 1:
        raise ValueError(
            f"{count} training images are fewer than a mixing group of {group} for each process: "
            "switch mixing off with --set augment.mixup=0 --set augment.cutmix=0"
        )
    if not smaller:
        raise ValueError(
            f"{count} training images are too few for images that are shown {config.loop.repeats} "
            f"times in {counted(world.size, 'process', 'processes')}: {unit} are needed"
        )
    logger.warning("batch_size %d is larger than the training split: %d now", batch, smaller)
    return replace(config, loop=replace(config.loop, batch_size=smaller, accumulation=1))


def trained_on(config: RunConfig, dataset: Dataset) -> Dataset:
    """The dataset whose training images are shown: uncut ones where crops are cut out of them."""
    return dataset.uncut if config.augment.resized_crop else dataset


def decode(config: RunConfig, dataset: Dataset, *, progress: bool = False) -> None:
    """Brings the images of all splits into the cache, at the sizes a training wants them in."""
    for split in dataset.splits:
        of_split = trained_on(config, dataset) if split == "train" else dataset
        of_split.pixels(split, progress=progress)


def make_loader(config: RunConfig, dataset: Dataset, world: World) -> Loader:
    """Batches of the training split.

    Raises:
        ValueError: The batch cannot be divided among processes, passes and mixing groups.
    """
    loop, group = config.loop, config.augment.group
    unit = world.size * loop.accumulation * group
    if loop.batch_size % unit:
        raise ValueError(
            f"batch_size is {loop.batch_size}: {world.size} processes with {loop.accumulation} "
            f"passes each{f' and mixing groups of {group}' if group > 1 else ''} need a "
            f"multiple of {unit}"
        )
    return Loader(
        trained_on(config, dataset).pixels("train"),
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
) -> tuple[int, int, Pace | None]:
    """How many steps; for a budget of minutes it takes some, measures them and undoes them.

    Args:
        started: When the minutes began, on the clock.
        clock: Seconds; only their differences count.

    Returns:
        Steps, steps between validations, and what keeps them to the time: None has time.

    Raises:
        ValueError: The time is over before the first step.
    """
    schedule, every, pace = config.schedule, config.loop.every, None
    steps = schedule.steps or max(1, round(schedule.epochs * loader.steps_per_epoch))
    if schedule.steps is None and schedule.minutes is not None:
        per_step, per_validation, end, test = _measure(config, dataset, loader, stepper, clock)
        if every is None:
            least = int(per_validation / (_SHARE * per_step)) + 1
            every = max(loader.steps_per_epoch, least)
        # Each process has measured; the first one's numbers count.
        per_step, per_validation, end, test, every = stepper.world.agree(
            (per_step, per_validation, end, test, every)
        )
        pace = Pace(
            started=started,
            seconds=60 * schedule.minutes,
            step_seconds=per_step,
            validation=per_validation / per_step,
            end=end / per_step,
            test=test / per_step,
            every=every,
            clock=clock,
            waits=stepper.world.device.type == "cpu",
        )
        steps, reserve = stepper.world.agree((pace.affordable(), pace.reserve))
        if config.loop.every is None:
            every = pace.every = max(every, steps // 100)
        if steps < 1:
            raise ValueError(
                f"{schedule.minutes:g} minutes are over before the first step: one takes "
                f"{per_step:.2g} seconds here, preparation took {clock() - started:.0f}, and "
                f"{reserve:.0f} are kept for the test; allow more time, or choose a smaller model"
            )
        logger.info(
            "%.1f seconds of the time are kept for the test and all else that follows the last "
            "step; %.1f are needed at the speed measured now",
            reserve,
            end + test,
        )
    every = every or validation_interval(steps, loader.steps_per_epoch)
    # A number of steps that may still grow does not shorten the interval.
    return steps, every if pace else min(every, steps), pace


def _measure(
    config: RunConfig,
    dataset: Dataset,
    loader: Loader,
    stepper: Stepper,
    clock: Callable[[], float],
) -> tuple[float, float, float, float]:
    """Seconds of a step, of a validation, of what follows the last step, and of the test.

    The training is afterwards where it was.
    """
    world, saved = stepper.world, stepper.snapshot()
    times: list[float] = []
    until = clock() + min(_TRIAL * 60 * (config.schedule.minutes or 0), _TRIAL_SECONDS)
    number = 0
    # All processes take the same steps, or one would wait for ever.
    while world.agree(not times or (clock() < until and len(times) < 200)):
        started = clock()
        stepper(loader.batch(number), number, lr=0.0, mixed=config.augment.mixed)
        stepper.take_means()  # waits for the device
        if number:  # the first one compiles
            times.append(clock() - started)
        number += 1
    if config.augment.mixed and config.schedule.mixed < 1:  # what compiles later would be late
        stepper(loader.batch(number), number, lr=0.0, mixed=False)
        stepper.take_means()

    def shown() -> list[Shown]:
        steps = range(batches_needed(config.loop.batch_size))
        return [Shown(step, loader.batch(step), config.augment.mixed) for step in steps]

    settling = 0.0
    for number in (1, 2):  # a first time is slower
        started = clock()
        stepper.settle(-number, shown)
        settling = clock() - started
    stepper.restore(saved)
    per_step, objective = max(sum(times) / len(times), 1e-9), stepper.evaluated

    def per_image(precision: Precision) -> float:
        speed = 0.0
        for count in _TRIED:
            objective.try_inference(dataset, world, precision, count)  # a first time is slower
            started = clock()
            images = objective.try_inference(dataset, world, precision, count)
            seconds = clock() - started
            speed = seconds / max(images, 1)
            if world.agree(seconds > _TELLING):
                break
        return speed

    validated, tested = (len(dataset.splits.get(name, ())) for name in ("val", "test"))
    seen = validated + (tested if config.loop.log_test else 0)
    validation = settling + seen * per_image(objective.precision) if seen else 0.0
    # After the last step the validation images come once more, and some of them for calibration.
    end = (validation or settling) + _WRITING
    if not objective.needs_labels:  # nothing is tested
        return per_step, validation, end, 0.0
    end += tested * _STATISTICS
    test = (min(validated, CALIBRATED) + tested) * per_image("fp32")
    return per_step, validation, end, test
