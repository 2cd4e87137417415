"""The dataset that a config names, and where a run finds it again."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smallvit.data import Dataset, load_data
from smallvit.data.named import is_named
from smallvit.files import at_home
from smallvit.runs.config import DataConfig
from smallvit.runs.places import CONFIG
from smallvit.text import shown


def open_data(config: DataConfig, *, progress: bool = False) -> Dataset:
    """Loads the data; with folds, with the fold to be tested as its test split.

    Raises:
        ValueError: It is not there, not laid out as expected, or has no classes.
    """
    val, test = (0.0, 0.0) if config.folds else (config.val, config.test)
    dataset = load_data(
        config.source,
        image_size=config.image_size,
        fit=config.fit,
        channels=config.channels,
        val=val,
        test=test,
        seed=config.seed,
        root=config.root,
        download=config.download,
        unlabelled=config.unlabelled,
        progress=progress,
    )
    if config.mean and config.std:
        dataset = dataset.normalised(config.mean, config.std)
    if "unreadable" in config.allow:
        dataset = dataset.readable()
    if config.folds:
        dataset = dataset.fold(config.fold, config.folds, val=config.val or 0.0)
    if config.limit is not None:
        dataset = dataset.subset(config.limit, seed=config.limit_seed)
    return dataset


def path_from(folder: Path, source: str) -> str | None:
    """The way from a run folder to data that was given as a relative path; None for other data."""
    if not source or is_named(source) or at_home(source).is_absolute():
        return None
    try:
        return os.path.relpath(source, folder)
    except ValueError:  # on another drive
        return None


def located(folder: Path, config: DataConfig, recorded: Mapping[str, Any]) -> DataConfig:
    """The `data` of a run's config, with the source where it lies now, and never fetched.

    A relative path counts from the folder in which the run began, which may have been moved
    together with the run.

    Args:
        folder: Of the run.
        config: Its `data`.
        recorded: What run.json says of its data.

    Raises:
        ValueError: The source is not there.
    """
    config, way = replace(config, download=False), recorded.get("path")
    if way is None or Path(config.source) != Path(recorded.get("source", "")):  # edited since
        return config
    beside = Path(os.path.normpath(folder / way))
    if beside.exists():
        return replace(config, source=str(beside))
    if not at_home(config.source).exists():
        raise ValueError(
            f"{folder} was trained on {shown(config.source)}, which is not at {shown(beside)}: "
            f"put it back, or write where it lies into {folder / CONFIG} (data.source)"
        )
    return config
