"""`train`: one run from a config, or the rest of one."""

import logging
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

import smallvit
from smallvit.config_io import differences
from smallvit.data import Audit, Dataset, audit
from smallvit.runs.checkpoint import load_checkpoint
from smallvit.runs.config import RunConfig
from smallvit.runs.dataset import open_data
from smallvit.runs.folder import CHECKPOINTS, LOG, Run, new_folder, refuse_taken
from smallvit.training.budget import Budget, plan_steps
from smallvit.training.distributed import World, join_world, leave_world
from smallvit.training.finish import explain_stop, finish, save, score
from smallvit.training.log import Journal, require_loggers
from smallvit.training.loop import Job, Progress, run_loop
from smallvit.training.schedule import validation_interval
from smallvit.training.setup import (
    Built,
    be_deterministic,
    build_model,
    drloc_weight,
    fitted,
    make_loader,
    make_stepper,
)
from smallvit.training.state import restore_state
from smallvit.training.step import NonFiniteError

logger = logging.getLogger(__name__)


def train(
    config: RunConfig,
    *,
    out: str | os.PathLike[str] | None = None,
    dataset: Dataset | None = None,
    found: Audit | None = None,
    command: str | None = None,
    started: float | None = None,
    shown: bool = True,
) -> Run:
    """Trains a model and evaluates it on the test split.

    Args:
        config: What to do; `smallvit.plan` makes one.
        out: The run folder; None takes the next free runs/<data>-<model>-<n>.
        dataset: What the config names, if it is loaded already.
        found: Its audit, if there is one already.
        command: For the record: what was typed.
        started: When the time of `minutes` began, on time.monotonic's clock.
        shown: Whether a person is told anything.

    Returns:
        The run. Its `info["status"]` is "finished", or "interrupted" if it was asked to stop.

    Raises:
        ValueError: Something in the config or the data does not fit.
        OSError: The run folder cannot be written.
    """
    started = time.monotonic() if started is None else started
    world = join_world(config.loop.device)
    try:
        be_deterministic(config)
        require_loggers(tensorboard=config.tensorboard, wandb=config.wandb)
        if dataset is None:
            dataset = _open_together(config, world)
        config = fitted(config, dataset)
        _refuse_errors(dataset, found, config)
        folder = Path(out) if out is not None else new_folder(_stem(config), _short(config))
        folder = world.agree(folder)
        check_writable(folder)
        job, built = _prepare(config, dataset, world)
        _check_room(folder, job)
        _plan(job, dataset, folder, started)
        run = _create(job, dataset, built, folder, command)
        if shown and world.leads:
            _tell_start(job, built, run)
        return finish(_train(job, run, dataset, shown), job, dataset)
    finally:
        leave_world(world)


def resume(
    folder: str | os.PathLike[str],
    *,
    config: RunConfig | None = None,
    shown: bool = True,
) -> Run:
    """Goes on with a run that was stopped or killed, as if it never had been.

    Args:
        folder: The run folder.
        config: What is asked for now, if anything is: refused if it is not the run's own.
        shown: Whether a person is told anything.

    Raises:
        ValueError: The run is finished, its config or its data has changed, or it cannot be read.
    """
    run = Run.open(folder)
    if run.finished:
        raise ValueError(f"{run.folder} is finished; there is nothing to resume")
    if config is not None:
        _refuse_changes(run.config, config)
    world = join_world(run.config.loop.device)
    try:
        be_deterministic(run.config)
        dataset = _open_together(run.config, world)
        run.check_data(dataset)
        job, _ = _prepare(run.config, dataset, world)
        assert run.config.schedule.steps is not None
        assert run.config.loop.every is not None
        job.every, job.progress.steps = run.config.loop.every, run.config.schedule.steps
        checkpoint = load_checkpoint(run.folder / CHECKPOINTS)
        if checkpoint is not None:
            restore_state(job, checkpoint)
        logger.info("going on with %s after %s steps", run.folder, f"{job.progress.step:,}")
        return finish(_train(job, run, dataset, shown), job, dataset)
    finally:
        leave_world(world)


def _prepare(config: RunConfig, dataset: Dataset, world: World) -> tuple[Job, Built]:
    """Model, batches and step, with nothing trained yet."""
    built = build_model(config, dataset)
    weight = drloc_weight(config.loss.drloc, built.model)
    config = replace(config, loss=replace(config.loss, drloc=weight))
    stepper = make_stepper(config, dataset, built.model, world)
    job = Job(
        config=config,
        world=world,
        loader=make_loader(config, dataset, world),
        stepper=stepper,
        journal=Journal(None, steps=0),
        progress=Progress(accumulation=config.loop.accumulation),
        every=1,
        validate=None,
        save=lambda job: None,
    )
    if "val" in dataset.splits:
        job.validate = lambda: score(job, dataset, "val")
    return job, built


def _plan(job: Job, dataset: Dataset, folder: Path, started: float) -> None:
    """Fixes the number of steps, of which the config then has a record."""
    config, per_epoch = job.config, job.loader.steps_per_epoch
    schedule = config.schedule
    steps, every = schedule.steps, config.loop.every
    if steps is None and schedule.minutes is not None:
        test = dataset.splits.get("test")
        budget = Budget(60 * schedule.minutes, started, len(test) if test is not None else 0)
        steps, every, job.deadline = job.world.agree(plan_steps(job, budget, every))
    elif steps is None:
        steps = max(1, round(schedule.epochs * per_epoch))
    every = min(every or validation_interval(steps, per_epoch), steps)
    job.every, job.progress.steps = every, steps
    job.config = replace(
        config,
        schedule=replace(schedule, steps=steps),
        loop=replace(config.loop, every=every),
    )


def _create(job: Job, dataset: Dataset, built: Built, folder: Path, command: str | None) -> Run:
    """The run folder, with all that is known before the first step."""
    mean, std = dataset.statistics
    info = {
        "smallvit": smallvit.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "device": _device_name(job.world),
        "processes": job.world.size,
        "threads": torch.get_num_threads(),
        "command": command or "",
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "status": "training",
        "model": built.about,
        "parameters": sum(p.numel() for p in built.model.parameters()),
        "data": dataset.record(),
        "mean": list(mean),
        "std": list(std),
        "notes": [*dataset.notes, *built.notes],
    }
    if job.world.leads:
        return Run.create(folder, job.config, info)
    return Run(folder, job.config, info)


def _train(job: Job, run: Run, dataset: Dataset, shown: bool) -> Run:
    """The loop, between an open and a closed journal."""
    config, progress = job.config, job.progress
    job.journal = Journal(
        run.folder / LOG if job.world.leads else None,
        size=progress.log_size,
        steps=progress.steps,
        tensorboard=run.folder / "tensorboard" if config.tensorboard else None,
        wandb=(run.name, config.to_dict()) if config.wandb else None,
        shown=shown,
    )
    job.save = lambda job: save(job, run)
    try:
        run_loop(job)
    except NonFiniteError as error:
        if job.world.size == 1 and job.world.device.type == "cpu" and error.untouched:
            job.save(job)  # nothing has changed since the step before
        if job.world.leads:
            run.note(status="not finite", step=progress.step)
        raise ValueError(explain_stop(error, job, run)) from error
    finally:
        job.journal.close()
        job.stepper.learner.release()
    return run


def _open_together(config: RunConfig, world: World) -> Dataset:
    """The dataset; the first process decodes what the others then find in the cache."""
    if not world.leads:
        world.wait()
    dataset = open_data(config.data, progress=world.leads and sys.stderr.isatty())
    for split in dataset.splits:
        dataset.pixels(split, progress=world.leads and sys.stderr.isatty())
    if world.leads:
        world.wait()
    return dataset


def _refuse_errors(dataset: Dataset, found: Audit | None, config: RunConfig) -> None:
    """Stops before a training that would not be worth its time."""
    (found or audit(dataset)).check(config.data.allow)
    if len(dataset.classes) < 2:
        raise ValueError(f"{dataset.source} has one class: a classifier needs two or more")


def _refuse_changes(old: RunConfig, new: RunConfig) -> None:
    # A run's own config has the steps that were planned; what leaves them open asks for the same.
    schedule, loop = new.schedule, new.loop
    new = replace(
        new,
        schedule=replace(schedule, steps=schedule.steps or old.schedule.steps),
        loop=replace(loop, every=loop.every or old.loop.every),
    )
    told = differences(old.to_dict(), new.to_dict())
    if told:
        raise ValueError(
            f"a run resumes with the config it began with, and {'; '.join(told)}: leave that out, "
            "or start a new run"
        )


def check_writable(folder: Path) -> None:
    """Refuses a place where nothing can be written, before any work is done.

    Raises:
        ValueError: The folder is not empty.
        OSError: It cannot be written.
    """
    refuse_taken(folder)
    place = _standing(folder)
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise OSError(f"{place} cannot be written to: choose another place with --out")


def _standing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    return place


def _check_room(folder: Path, job: Job) -> None:
    """Refuses a disk that cannot hold what a run writes: three checkpoints and two models."""
    place = _standing(folder)
    size = sum(p.numel() * p.element_size() for p in job.stepper.learner.model.parameters())
    need, free = 3 * 5 * size + 2 * size, shutil.disk_usage(place).free
    if free < need:
        raise OSError(
            f"{place} has {free / 1e6:,.0f} MB free and this run needs {need / 1e6:,.0f}: make "
            "room, or choose another place with --out"
        )


def _tell_start(job: Job, built: Built, run: Run) -> None:
    steps, batch = job.progress.steps, job.config.loop.batch_size
    logger.info(
        "%s, %s parameters, on %s: %s steps of %d images, %s images seen; %s",
        built.about["name"],
        f"{run.info['parameters']:,}",
        run.info["device"],
        f"{steps:,}",
        batch,
        f"{steps * batch:,}",
        run.folder,
    )
    for note in run.info["notes"]:
        logger.info("note: %s", note)


def _stem(config: RunConfig) -> str:
    return Path(config.data.source).name or "data"


def _short(config: RunConfig) -> str:
    return config.model.name or Path(config.model.pretrained or "model").stem


def _device_name(world: World) -> str:
    if world.device.type == "cuda":
        return torch.cuda.get_device_name(world.device)
    return world.device.type
