"""Cross-validation: one training per fold, and a summary of all."""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smallvit.evaluation import pooled
from smallvit.files import write_json
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import EVALUATION, Run, new_folder
from smallvit.training.distributed import join_world
from smallvit.training.loop import resume_command
from smallvit.training.train import check_writable, resume, tidy, train

logger = logging.getLogger(__name__)

FOLDS = "folds.json"


def train_folds(
    config: RunConfig,
    *,
    out: str | os.PathLike[str] | None = None,
    command: str | None = None,
    shown: bool = True,
) -> dict[str, Any]:
    """Trains one model per fold into fold-0, fold-1, …; every image is tested once.

    Returns:
        The summary, as `folds.json` holds it; without "accuracy" if a stop was requested.
    """
    count, name = config.data.folds, config.model.name
    if out:
        folder = Path(out)
    else:
        source = Path(config.data.source).name
        world = join_world(config.loop.device)
        folder = new_folder(source, f"{name}-{count}-folds")
        # Created at once: another command may take the next number.
        while world.leads and not _created(folder):
            folder = new_folder(source, f"{name}-{count}-folds")
        folder = world.agree(folder)
    check_writable(folder)
    if config.schedule.minutes is not None:  # the time is that of all folds
        minutes = config.schedule.minutes / count
        config = replace(config, schedule=replace(config.schedule, minutes=minutes))
    return _train_missing(folder, config, command, shown)


def _created(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def resume_folds(folder: Path, *, download: bool = False, shown: bool = True) -> dict[str, Any]:
    """Goes on with a cross-validation: finishes a fold that was stopped, trains those missing."""
    first = Run.open(folder / "fold-0")
    config = replace(first.config, data=replace(first.config.data, download=download))
    return _train_missing(folder, config, first.info.get("command", ""), shown, download)


def _train_missing(
    folder: Path, config: RunConfig, command: str | None, shown: bool, download: bool = False
) -> dict[str, Any]:
    for fold in range(config.data.folds):
        target = folder / f"fold-{fold}"
        if shown:
            logger.info("fold %d of %d", fold + 1, config.data.folds)
        if not target.exists():
            data = replace(config.data, fold=fold)
            run = train(replace(config, data=data), out=target, command=command, shown=shown)
        elif not (run := Run.open(target)).finished:
            run = resume(target, download=download, shown=shown)
        else:
            tidy(run)
        if not run.finished:
            logger.warning("go on with: %s", resume_command(folder))
            return {"folder": str(folder)}
    return summarise(folder)


def summarise(folder: Path) -> dict[str, Any]:
    """The summary of all folds, also written to `folds.json`."""
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
    write_json(folder / FOLDS, summary)
    return summary


def tell_summary(summary: Mapping[str, Any]) -> list[str]:
    """A summary in a few lines."""
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
    return lines
