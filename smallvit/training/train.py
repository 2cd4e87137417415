"""`train`: one run from a config, and `resume`: the rest of one. Both read from top to bottom."""

import logging
import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import smallvit
from smallvit.arguments import checked
from smallvit.data import Audit, Dataset, audit
from smallvit.files import hash_bytes
from smallvit.models.build import describe
from smallvit.runs.checkpoint import Progress, load_checkpoint, remove_checkpoints
from smallvit.runs.config import RunConfig
from smallvit.runs.dataset import open_data, path_from
from smallvit.runs.folder import Run
from smallvit.runs.places import CHECKPOINTS, CONFIG, TakenError, check_writable, new_folder
from smallvit.text import counted
from smallvit.training.budget import decode, limit_batch, make_loader, plan_steps
from smallvit.training.compiling import load_compiler
from smallvit.training.distributed import World, join_world, set_determinism
from smallvit.training.log import Log, require_loggers
from smallvit.training.loop import Training, finish, interrupted, restore, run_loop, save
from smallvit.training.objective import find_objective, make_objective
from smallvit.training.pace import stopping
from smallvit.training.start import build_model, rebuilt, seen_before
from smallvit.training.step import NonFiniteError, Stepper

logger = logging.getLogger(__name__)

#: Findings of an audit that do not matter where labels do not.
_ABOUT_LABELS = ("one-class", "empty-class", "one-image", "conflicts", "case")


@checked
def train(
    config: RunConfig,
    *,
    out: str | os.PathLike[str] | None = None,
    dataset: Dataset | None = None,
    audited: Audit | None = None,
    command: str | None = None,
    started: float | None = None,
    shown: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Run:
    """Trains a model and evaluates it on the test split.

    Args:
        config: What to do; `smallvit.plan` makes one.
        out: The run folder; None takes the next free runs/<data>-<model>-<n>.
        dataset: The data that the config names, if it is loaded already.
        audited: Its audit, if there is one already.
        command: For the record: what was typed.
        started: When the time of `minutes` began, on the clock; None means now.
        shown: Whether to show progress to a person.
        clock: Seconds; only their differences count.

    Returns:
        The run. Its `info["status"]` is "finished", or "interrupted" if a stop was requested.

    Raises:
        ValueError: Something in the config or the data does not fit.
        OSError: The run folder cannot be written.
    """
    started = clock() if started is None else started
    world = join_world(config.loop.device)
    load_compiler(config.loop.compiles(world.device.type, config.schedule.minutes))
    try:
        require_loggers(config)
        set_determinism(config.loop.deterministic)
        folder = world.agree(Path(out) if out is not None else next_folder(config))
        check_writable(folder)
        dataset = _read_data(config, world, dataset, shown=shown, checked=True, audited=audited)
        config = limit_batch(config, dataset, world)
        config = replace(config, data=replace(config.data, image_size=dataset.image_size))
        model, notes = build_model(config, dataset)
        seen, warnings = seen_before(config, dataset)
        # Three checkpoints of up to five copies each, and two files of weights.
        check_writable(folder, need=17 * sum(p.nbytes for p in model.parameters()))
        config, more = find_objective(config.loss.objective).settled(config, model, dataset)
        loader = make_loader(config, dataset, world)
        objective = make_objective(config, model, dataset, world)
        stepper = Stepper(config, objective, world)
        steps, every, pace = plan_steps(
            config, dataset, loader, stepper, started=started, clock=clock
        )
        plans = config.schedule.plans
        config = config.with_steps(steps, plans)
        config = replace(config, loop=replace(config.loop, every=every))
        facts = _facts(dataset, model, [*notes, *warnings, *more], world, command)
        facts["data"]["path"] = path_from(folder, config.data.source)
        info = {**facts, "plans": [[0, steps]], "seen_before": seen}
        run = _create(folder, config, info, world, another=out is None)
        if shown and world.leads:
            _describe_start(run)
        log = Log(run, steps=steps, active=world.leads, shown=shown)
        progress = Progress(steps=steps, plans=list(plans))
        training = Training(run, dataset, loader, stepper, progress, log, clock, pace)
        with run.locked() if world.leads else nullcontext():
            return _run(training)
    except RuntimeError as error:
        raise world.explained(error) from error


def _read_data(
    config: RunConfig,
    world: World,
    dataset: Dataset | None,
    *,
    shown: bool,
    checked: bool,
    audited: Audit | None = None,
) -> Dataset:
    """The data, decoded, and if wanted checked.

    The first process does all of it; the others then find survey and pixels in the cache.
    """
    bar = shown and world.leads and sys.stderr.isatty()
    objective = find_objective(config.loss.objective)
    with world.first():
        dataset = open_data(config.data, progress=bar) if dataset is None else dataset
        if checked and world.leads:
            audited = audited or audit(dataset)
            if not objective.needs_labels:
                findings = tuple(f for f in audited.findings if f.code not in _ABOUT_LABELS)
                audited = replace(audited, findings=findings)
            audited.check(config.data.allow)
        decode(config, dataset, progress=bar)
    # Machines may keep the same data in different places.
    shared = replace(config, data=replace(config.data, source="", root=None))
    world.compare(data=dataset.fingerprint, config=hash_bytes(shared.to_yaml().encode()))
    return dataset


def _facts(
    dataset: Dataset, model: nn.Module, notes: list[str], world: World, command: str | None
) -> dict[str, Any]:
    """What run.json says before the first step."""
    mean, std = dataset.statistics
    return {
        **_machine(world),
        "processes": world.size,
        "threads": torch.get_num_threads(),
        "command": command or "",
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "status": "training",
        "model": describe(model),
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": dataset.record(),
        "mean": list(mean),
        "std": list(std),
        "notes": [*dataset.notes, *notes],
    }


def _machine(world: World) -> dict[str, str]:
    """What a run, or a part of it, is trained with."""
    device = world.device
    return {
        "smallvit": smallvit.__version__,
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def _create(
    folder: Path, config: RunConfig, info: dict[str, Any], world: World, *, another: bool
) -> Run:
    """The run's folder; `another` takes the next free one if it was taken meanwhile."""
    run = None
    with world.first():
        while world.leads and run is None:
            try:
                run = Run.create(folder, config, info)
            except TakenError:
                if not another:
                    raise
                folder = next_folder(config)
    folder = world.agree(folder)
    return run or Run(folder, config, info)


def next_folder(config: RunConfig) -> Path:
    """The next free runs/<data>-<model>-<n>, or runs/<data>-<model>-<k>-folds-<n>."""
    name, folds = config.model.name, config.data.folds
    if not name or name.startswith("+"):  # the start's, and what is added to it
        name = Path(config.model.pretrained or "model").stem + name
    if folds:
        name += f"-{folds}-folds"
    return new_folder(Path(config.data.source).name or "data", name)


def _describe_start(run: Run) -> None:
    info, steps, batch = run.info, run.config.schedule.steps or 0, run.config.loop.batch_size
    logger.info(
        f"{info['model']['name']}, {info['parameters']:,} parameters, on {info['device']}: "
        f"{counted(steps, 'step')} of {counted(batch, 'image')}, {steps * batch:,} in all; "
        f"{run.folder}"
    )
    for note in info["notes"]:
        logger.info("note: %s", note)


def _run(training: Training) -> Run:
    """The loop and the end, or advice if the loss is not finite."""
    run, world = training.run, training.stepper.world
    with stopping() as stop:  # until it is written where the run goes on: signals may come twice
        try:
            run_loop(training, stop)
        except NonFiniteError as error:
            if world.size == 1 and world.device.type == "cpu" and error.untouched:
                with suppress(NonFiniteError):  # weights that exploded before
                    save(training)  # nothing has changed since the step before
            if world.leads:
                run.note(status="not finite", step=training.progress.step)
            kept = "no weights were saved yet"
            if saved := sorted((run.folder / CHECKPOINTS).glob("*.json")):
                step = f"{int(saved[-1].stem):,}"
                kept = f"the last good weights, after step {step}, are in {saved[-1].parent}"
            raise ValueError(
                f"{error}; {kept}. Try a lower learning rate (--set "
                f"optim.lr={run.config.optim.lr / 3:.1g}), clipping (--set optim.clip=1) or --set "
                "loop.precision=fp32"
            ) from error
        finally:
            training.log.close()
            training.stepper.objective.drop_paths(None)
        if not training.progress.ended:
            return interrupted(training)
    return finish(training)


@checked
def resume(
    folder: str | os.PathLike[str],
    *,
    config: RunConfig | None = None,
    download: bool = False,
    shown: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Run:
    """Goes on with a run that was stopped or killed, as if it never had been.

    Args:
        folder: The run folder.
        config: What is wanted now, if anything is: refused if it is not the run's own.
        download: Whether to fetch a named dataset that is missing; the run's config does not decide
            that, as it may be a stranger's.
        shown: Whether to show progress to a person.
        clock: Seconds; only their differences count.

    Raises:
        ValueError: The run is finished, is in use by another process, its config or its data has
            changed, or it cannot be read.
    """
    run = Run.open(folder)
    if run.finished:
        tidy(run)
        raise ValueError(
            f"{run.folder} is finished; there is nothing to resume. To train it further: smallvit "
            f"train DATA --pretrained {shlex.quote(str(run.folder))}"
        )
    if config is not None:
        run.config.refuse_changes(config.to_dict())
    config = run.config
    if config.schedule.steps is None or config.loop.every is None:  # as the config of every run has
        raise ValueError(f"{run.folder / CONFIG} was edited: it has no steps or no `every`")
    world = join_world(config.loop.device)
    load_compiler(config.loop.compiles(world.device.type, config.schedule.minutes))
    lock = ExitStack()
    try:
        with world.first():
            if world.leads:
                lock.enter_context(run.locked())
                run = _note_machine(run, world)
        require_loggers(config)
        set_determinism(config.loop.deterministic)
        readable = replace(config, data=replace(run.located(), download=download))
        dataset = _read_data(readable, world, None, shown=shown, checked=False)
        run.check_data(dataset)
        checkpoint = load_checkpoint(run.folder / CHECKPOINTS)
        model = rebuilt(run) if checkpoint else build_model(config, dataset)[0]
        loader = make_loader(config, dataset, world)
        stepper = Stepper(config, make_objective(config, model, dataset, world), world)
        progress = Progress(steps=config.schedule.steps, plans=list(config.schedule.plans))
        if checkpoint:
            progress, tensors = checkpoint
            restore(progress, tensors, stepper)
        logger.info("going on with %s after %s steps", run.folder, f"{progress.step:,}")
        size, steps = progress.log_size, progress.steps
        log = Log(run, steps=steps, size=size, active=world.leads, shown=shown)
        return _run(Training(run, dataset, loader, stepper, progress, log, clock))
    except RuntimeError as error:
        raise world.explained(error) from error
    finally:
        lock.close()


def _note_machine(run: Run, world: World) -> Run:
    """Says and records that a run goes on with something else: the bits will differ."""
    now = {**_machine(world), "threads": torch.get_num_threads(), "processes": world.size}
    changes = {key: value for key, value in now.items() if run.info.get(key) != value}
    if not changes:
        return run
    for key, value in changes.items():
        before = run.info.get(key)
        which = f"{key} {before}" if key in _machine(world) else f"{before} {key}"
        logger.warning(
            "the run began with %s and goes on with %s: the last bits will differ", which, value
        )
    earlier = [*run.info.get("earlier", []), {key: run.info.get(key) for key in changes}]
    return run.note(**changes, earlier=earlier)


def tidy(run: Run) -> None:
    """Removes checkpoints that a process left which was killed after its run was finished."""
    if run.finished and (run.folder / CHECKPOINTS).exists():
        with run.locked():
            remove_checkpoints(run.folder / CHECKPOINTS)
