"""Cross-validation: one training per fold, a summary of all, and a model on all images.

The model to use is trained on all images with the settings of the folds, so it is one file and
costs as much as any run to predict with; an ensemble of the folds would cost as much as all of
them. No image is left to test it on: the folds, trained on fewer images, estimate its accuracy.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smallvit.evaluation import logits_of, pooled
from smallvit.evaluation.calibration import safe_temperature
from smallvit.files import write_bytes, write_json
from smallvit.runs.card import short_of_folds
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run, folds_of
from smallvit.runs.places import (
    CONFIG,
    EVALUATION,
    FINAL,
    INFO,
    check_writable,
    resume_command,
)
from smallvit.training.classification import CALIBRATED
from smallvit.training.distributed import join_world
from smallvit.training.train import next_folder, resume, tidy, train

logger = logging.getLogger(__name__)

FOLDS = "folds.json"


def train_folds(
    config: RunConfig,
    *,
    out: str | os.PathLike[str] | None = None,
    command: str | None = None,
    started: float | None = None,
    shown: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Trains one model per fold, then one on all images; every image is tested once.

    They are the runs fold-0, fold-1, … and model in one folder, and `Run.open` of that folder opens
    the last. `config.yaml` there is the config of all.

    Args:
        config: What to do; its minutes are those of all trainings together.
        out: The folder; None takes the next free runs/<data>-<model>-<folds>-folds-<n>.
        command: For the record: what was typed.
        started: When the time of `minutes` began, on the clock; None means now.
        shown: Whether to show progress to a person.
        clock: Seconds; only their differences count.

    Returns:
        The summary, as `folds.json` holds it; without "accuracy" if a stop was requested.
    """
    started = clock() if started is None else started
    world = join_world(config.loop.device)
    folder = Path(out) if out else next_folder(config)
    existed = bool(out) and folder.exists()
    parents = [path for path in folder.parents if not path.exists()]
    if not out:
        # Created at once: another command may take the next number.
        while world.leads and not _created(folder):
            folder = next_folder(config)
        folder = world.agree(folder)
    with world.first():
        if world.leads:
            check_writable(folder)
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / CONFIG, config.to_yaml().encode())
    try:
        return _train_missing(folder, config, command, shown=shown, started=started, clock=clock)
    except Exception:
        if world.leads and not any(folder.glob(f"*/{INFO}")):
            _remove(folder, parents if existed else [folder, *parents])
        raise


def _created(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _remove(folder: Path, made: list[Path]) -> None:
    """Removes what a command made that was refused before any training: the name stays free."""
    with suppress(OSError):  # the refusal matters more, and others may use the parents by now
        (folder / CONFIG).unlink()
        for path in made:
            path.rmdir()


def config_of_folds(folder: str | os.PathLike[str]) -> RunConfig | None:
    """What a cross-validation began with; None where the folder is something else."""
    path = Path(folder)
    if (path / INFO).is_file():
        return None
    if (path / CONFIG).is_file():
        config = RunConfig.from_yaml((path / CONFIG).read_text(encoding="utf-8"), str(path))
        return config if config.data.folds else None
    # Older versions wrote no config beside the folds.
    return Run.open(path / "fold-0").config if (path / "fold-0" / INFO).is_file() else None


def resume_folds(
    folder: Path,
    *,
    download: bool = False,
    shown: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Goes on with a cross-validation: finishes a training that was stopped, and does the others.

    Raises:
        ValueError: The folder is something else.
    """
    config = config_of_folds(folder)
    if config is None:
        raise ValueError(f"{folder} is not the folder of a cross-validation")
    config = replace(config, data=replace(config.data, download=download))
    first = folder / "fold-0"
    command = Run.open(first).info.get("command", "") if (first / INFO).is_file() else ""
    return _train_missing(folder, config, command, shown=shown, download=download, clock=clock)


def _train_missing(
    folder: Path,
    config: RunConfig,
    command: str | None,
    *,
    shown: bool,
    download: bool = False,
    started: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    count, minutes = config.data.folds, config.schedule.minutes
    started = clock() if started is None else started
    if minutes is not None:  # the time is that of all trainings
        minutes /= config.data.trainings
        config = replace(config, schedule=replace(config.schedule, minutes=minutes))
    world, trained = join_world(config.loop.device), 0
    known: dict[str, Any] = {}  # of the model on all images
    for number in range(config.data.trainings):
        final = number == count
        if final and world.leads:
            # Before the last training: the time it takes is then part of that training's share.
            known = _from_folds(folder, world.device, calibrated=not config.data.val)
        target = folder / (FINAL if final else f"fold-{number}")
        if shown and world.leads:
            logger.info("a model on all images" if final else f"fold {number + 1} of {count}")
        if not (target / INFO).is_file():
            data = config.data
            if final:  # no test split, and no validation either unless it was requested
                data = replace(data, folds=0, fold=0, val=data.val or 0.0, test=0.0)
            else:
                data = replace(data, fold=number)
            each = replace(config, data=data)
            # Every training has its own share of the time, whatever those before it took.
            since = started + trained * 60 * (minutes or 0)
            run = train(each, out=target, command=command, started=since, shown=shown, clock=clock)
            trained += 1
        elif not (run := Run.open(target)).finished:
            run = resume(target, download=download, shown=shown, clock=clock)
            started, trained = clock(), 0  # the time that it took is not that of the others
        else:
            tidy(run)
        if not run.finished:
            logger.warning("go on with: %s", resume_command(folder))
            return {"folder": str(folder)}
    summary = summarise(folder, kept=world.leads)
    if known:
        run = run.note(**known)
    steps = {key: run.info.get(key) for key in ("steps", "steps_of_folds")}
    images = run.info["data"]["counts"]["train"]
    return {**summary, **steps, "model": str(run.folder), "images": images}


def _from_folds(folder: Path, device: torch.device, *, calibrated: bool) -> dict[str, Any]:
    """What the folds tell of the model on all images: its accuracy and its temperature.

    No image is left to fit a temperature on, so it is fitted to the predictions of the folds for
    images that they had not seen; a model with validation images has its own.
    """
    summary, folds = summarise(folder), folds_of(folder)
    known = {
        "cross_validation": {key: summary[key] for key in ("folds", "tested", "accuracy")},
        "steps_of_folds": round(sum(fold.info.get("steps", 0) for fold in folds) / len(folds)),
    }
    if not calibrated:
        return known
    logits, labels = [], []
    for fold in folds:
        dataset, (mean, std) = fold.dataset(), (fold.card.mean, fold.card.std)
        pixels, truth = dataset.pixels("test"), dataset.labels("test")
        count = min(len(truth), -(-CALIBRATED // len(folds)))
        chosen = np.linspace(0, len(truth) - 1, count).round().astype(int)
        logits.append(logits_of(fold.model(), pixels[chosen], mean=mean, std=std, device=device))
        labels.append(truth[chosen])
    temperature = safe_temperature(np.concatenate(logits), np.concatenate(labels))
    return {**known, "temperature": temperature}


def summarise(folder: Path, *, kept: bool = True) -> dict[str, Any]:
    """The summary of all folds, also written to `folds.json` if it shall be kept."""
    paths = sorted(folder.glob(f"fold-*/{EVALUATION}"), key=lambda p: int(p.parent.name[5:]))
    results = [each for path in paths if (each := Run.open(path.parent).evaluation())]
    if not results:
        raise ValueError(f"{folder} holds no finished fold")
    together = pooled(results)
    summary: dict[str, Any] = {
        "folder": str(folder),
        "folds": len(results),
        "tested": together.images,
        "accuracy": vars(together.accuracy),
    }
    for name, folds in together.metrics.items():
        summary[f"{name}_by_fold"] = list(folds.values)
        summary[f"{name}_mean"], summary[f"{name}_std"] = folds.mean, folds.std
    if kept:
        write_json(folder / FOLDS, summary)
    return summary


def tell_summary(summary: Mapping[str, Any]) -> list[str]:
    """A summary in a few lines, and which model to use."""
    pooled = summary["accuracy"]
    each = ", ".join(f"{100 * value:.1f}" for value in summary["accuracy_by_fold"])
    lines = [
        f"accuracy {100 * pooled['value']:.1f} % (95 % interval {100 * pooled['low']:.1f}–"
        f"{100 * pooled['high']:.1f}) over all {summary['tested']:,} images, each tested once",
        f"folds: {each}; mean {100 * summary['accuracy_mean']:.1f} ± "
        f"{100 * summary['accuracy_std']:.1f} (standard deviation)",
    ]
    for name in ("precision", "recall", "f1"):
        mean, std = summary[f"{name}_mean"], summary[f"{name}_std"]
        lines.append(f"{name} {100 * mean:.1f} ± {100 * std:.1f} (mean over classes)")
    if "model" in summary:
        lines.append(
            f"the model to use was trained on all {summary['images']:,} images with the same "
            "settings; no image is left to test it on, so the folds estimate its accuracy"
        )
        if short := short_of_folds(summary):
            lines.append(f"but {short}")
    return lines
