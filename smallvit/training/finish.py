"""What is left of a training: checkpoints, weights, and how good the model is."""

import logging
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smallvit.data import Dataset
from smallvit.evaluation.calibration import fit_temperature, softmax
from smallvit.evaluation.measure import Precision, logits_of, measure
from smallvit.evaluation.metrics import log_loss
from smallvit.files import write_bytes, write_tensors
from smallvit.runs.checkpoint import save_checkpoint
from smallvit.runs.folder import CHECKPOINTS, EVALUATION, LAST, WEIGHTS, Run
from smallvit.training.loop import Job, Score
from smallvit.training.state import gather_state
from smallvit.training.step import NonFiniteError

logger = logging.getLogger(__name__)


def resume_command(folder: Path) -> str:
    """What to type to go on."""
    return f"smallvit train --resume --out {shlex.quote(str(folder))}"


def finish(run: Run, job: Job, dataset: Dataset) -> Run:
    """Weights, evaluation and the last lines of the record."""
    progress = job.progress
    if not progress.ended:
        if job.world.leads:
            run = run.note(status="interrupted", step=progress.step)
            logger.warning(
                "stopped after %s of %s steps; go on with: %s",
                f"{progress.step:,}",
                f"{progress.steps:,}",
                resume_command(run.folder),
            )
        return run
    last = {name: tensor.cpu() for name, tensor in job.chosen.state_dict().items()}
    best = job.best or last
    _write_weights(run, best, last, job)
    job.chosen.load_state_dict(best)
    ended: dict[str, Any] = {
        "status": "finished",
        "ended": progress.ended,
        "steps": progress.step,
        "best_step": progress.best_step or progress.step,
        "accumulation": progress.accumulation,
    }
    if "val" in dataset.splits:
        logits = _logits(job, dataset, "val", "fp32")
        ended["temperature"] = fit_temperature(logits, dataset.labels("val"))
    if "test" in dataset.splits:
        evaluation = measure(
            _logits(job, dataset, "test", "fp32"),  # as `evaluate` does
            dataset.labels("test"),
            dataset.classes,
            split="test",
            temperature=ended.get("temperature", 1.0),
            names=dataset.split("test").names,
        )
        if job.world.leads:
            write_bytes(run.folder / EVALUATION, evaluation.to_json().encode())
    if job.world.leads:
        run = run.note(**ended)
        shutil.rmtree(run.folder / CHECKPOINTS, ignore_errors=True)
    job.world.wait()
    # What the first process wrote is what the others return.
    return run if job.world.leads else replace(run, info={**run.info, **ended})


def _write_weights(run: Run, best: Any, last: Any, job: Job) -> None:
    """Both sets of weights; where the disk is full, checkpoints make room for them."""
    if not job.world.leads:
        return
    for name, tensors in ((WEIGHTS, best), (LAST, last)):
        try:
            write_tensors(run.folder / name, tensors)
        except OSError as error:
            logger.warning(
                "could not write %s (%s): removing checkpoints to make room", name, error
            )
            shutil.rmtree(run.folder / CHECKPOINTS, ignore_errors=True)
            write_tensors(run.folder / name, tensors)


def save(job: Job, run: Run) -> None:
    """A checkpoint; one that cannot be written does not end the training."""
    checkpoint = gather_state(job)
    if not job.world.leads:
        return
    try:
        save_checkpoint(run.folder / CHECKPOINTS, checkpoint)
        if job.best:
            write_tensors(run.folder / WEIGHTS, job.best)
    except OSError as error:
        logger.warning("could not write a checkpoint: %s; training goes on", error)


def _logits(
    job: Job, dataset: Dataset, split: str, precision: Precision | None = None
) -> np.ndarray:
    """The logits of a whole split, by all processes together."""
    world, pixels = job.world, dataset.pixels(split)
    mean, std = dataset.statistics
    own = logits_of(
        job.chosen,
        pixels[world.rank :: world.size],
        mean=mean,
        std=std,
        batch_size=256,
        device=world.device,
        precision=precision or job.stepper.learner.precision,
    )
    parts = world.gather(own)
    logits = np.empty((len(pixels), own.shape[1]), np.float32)
    for rank, part in enumerate(parts):
        logits[rank :: world.size] = part
    job.stepper.learner.train()
    return logits


def score(job: Job, dataset: Dataset, split: str) -> Score:
    """Accuracy and loss on a split."""
    try:
        logits = _logits(job, dataset, split)
    except ValueError as error:  # the last step left weights that give nothing finite
        raise NonFiniteError(job.progress.step) from error
    labels = dataset.labels(split)
    loss = log_loss(softmax(logits), labels)
    return Score(float((logits.argmax(1) == labels).mean()), loss)


def explain_stop(error: NonFiniteError, job: Job, run: Run) -> str:
    """What to do about a loss that is not finite."""
    saved = sorted((run.folder / CHECKPOINTS).glob("*.json"))
    kept = "no weights were saved yet"
    if saved:
        place = run.folder / CHECKPOINTS
        kept = f"the last good weights, after step {int(saved[-1].stem):,}, are in {place}"
    lower = job.config.optim.lr / 3
    return (
        f"{error}; {kept}. Try a lower learning rate (--set optim.lr={lower:.1g}), clipping "
        "(--set optim.clip=1) or --set loop.precision=fp32"
    )
