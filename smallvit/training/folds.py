"""Cross-validation: one training a fold, and what they say together."""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smallvit.evaluation import Evaluation, pooled
from smallvit.files import write_json
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import EVALUATION, Run, new_folder
from smallvit.training.finish import resume_command
from smallvit.training.train import check_writable, resume, train

logger = logging.getLogger(__name__)

FOLDS = "folds.json"


def train_folds(
    config: RunConfig,
    *,
    out: str | os.PathLike[str] | None = None,
    command: str | None = None,
    shown: bool = True,
) -> dict[str, Any]:
    """Trains one model a fold into fold-0, fold-1, …; every image is tested once.

    A folder in which some folds are finished is gone on with.

    Returns:
        The summary, as `folds.json` holds it; without "accuracy" if it was asked to stop.
    """
    count = config.data.folds
    folder = (
        Path(out)
        if out is not None
        else new_folder(Path(config.data.source).name, f"{config.model.name}-{count}-folds")
    )
    check_writable(folder)
    if config.schedule.minutes is not None:  # the time is that of all folds
        minutes = config.schedule.minutes / count
        config = replace(config, schedule=replace(config.schedule, minutes=minutes))
    for fold in range(count):
        own = replace(config, data=replace(config.data, fold=fold))
        if shown:
            logger.info("fold %d of %d", fold + 1, count)
        run = train(own, out=folder / f"fold-{fold}", command=command, shown=shown)
        if not run.finished:
            return {"folder": str(folder)}
    return summarise(folder)


def resume_folds(folder: Path, *, shown: bool = True) -> dict[str, Any]:
    """Goes on with a cross-validation: finishes a fold that was stopped, trains those missing."""
    first = Run.open(folder / "fold-0")
    for fold in range(first.config.data.folds):
        place = folder / f"fold-{fold}"
        if place.exists():
            run = Run.open(place)
            if not run.finished:
                run = resume(place, shown=shown)
        else:
            data = replace(first.config.data, fold=fold)
            command = first.info.get("command", "")
            run = train(replace(first.config, data=data), out=place, command=command, shown=shown)
        if not run.finished:
            logger.warning("go on with: %s", resume_command(folder))
            return {"folder": str(folder)}
    return summarise(folder)


def summarise(folder: Path) -> dict[str, Any]:
    """What the folds say together, also written to `folds.json`."""
    paths = sorted(folder.glob(f"fold-*/{EVALUATION}"), key=lambda p: int(p.parent.name[5:]))
    results = [Evaluation.from_json(path.read_text(encoding="utf-8")) for path in paths]
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
    write_json(folder / FOLDS, summary)
    return summary


def tell_summary(summary: Mapping[str, Any]) -> list[str]:
    """A summary in a few lines."""
    whole = summary["accuracy"]
    each = ", ".join(f"{100 * value:.1f}" for value in summary["accuracy_by_fold"])
    lines = [
        f"accuracy {100 * whole['value']:.1f} % (95 % interval {100 * whole['low']:.1f}–"
        f"{100 * whole['high']:.1f}) over all {summary['tested']:,} images, each tested once",
        f"folds: {each}; mean {100 * summary['accuracy_mean']:.1f} ± "
        f"{100 * summary['accuracy_std']:.1f} (standard deviation)",
    ]
    for name in ("precision", "recall", "f1"):
        mean, std = summary[f"{name}_mean"], summary[f"{name}_std"]
        lines.append(f"{name} {100 * mean:.1f} ± {100 * std:.1f} (mean over classes)")
    return lines
