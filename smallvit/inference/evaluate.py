"""`evaluate`: how good a trained model is."""

import os

import numpy as np

from smallvit.data import Dataset, load_data
from smallvit.devices import choose_device
from smallvit.evaluation import Evaluation, logits_of, measure
from smallvit.runs.folder import Run


def evaluate(
    run: str | os.PathLike[str] | Run,
    data: str | os.PathLike[str] | None = None,
    *,
    split: str = "test",
    flip: bool = False,
    device: str = "auto",
    batch_size: int = 256,
    progress: bool = False,
) -> Evaluation:
    """How good a trained model is.

    Args:
        run: The run folder.
        data: Other images of the same classes, in any form that `load_data` takes. If they come
            with a split of the name asked for, that is used; otherwise all of them are, and the
            evaluation's split is called "all". None means the run's own data.
        split: Which images: train, val or test.
        flip: Asks for the mirror image of each image too.
        device: auto, cpu, cuda or mps; auto is a GPU if there is one.
        batch_size: Images at a time.
        progress: Whether to show a bar while images are decoded.

    Raises:
        ValueError: The run, the data or the split is not there, the run's data has changed, or
            other data has classes that the model does not know.
    """
    run = Run.open(run)
    name, parts = split, [split]
    if data is None:
        dataset = run.dataset()
    else:
        dataset = load_data(
            data,
            image_size=run.image_size,
            fit=run.fit,
            channels=run.channels,
            classes=run.classes,
            progress=progress,
        )
        name, parts = _given(dataset, split)
    model, place = run.model(), choose_device(device)
    logits = [
        logits_of(
            model,
            dataset.pixels(part, progress=progress),
            mean=run.mean,
            std=run.std,
            batch_size=batch_size,
            device=place,
            flip=flip,
        )
        for part in parts
    ]
    return measure(
        np.concatenate(logits),
        np.concatenate([dataset.labels(part) for part in parts]),
        run.classes,
        split=name,
        temperature=run.temperature,
        names=[title for part in parts for title in dataset.split(part).names],
        flip=flip,
    )


def _given(dataset: Dataset, split: str) -> tuple[str, list[str]]:
    """A split that the source itself has and its parts, or all parts if it has no such split."""
    given = [name for name in dataset.splits if name not in dataset.held_out]
    if split not in given or given == ["train"]:
        return "all", list(dataset.splits)
    # What was held out for splits that the source does not have came from training.
    return split, [split, *dataset.held_out] if split == "train" else [split]
