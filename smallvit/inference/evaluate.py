"""`evaluate`: how good a trained model is."""

import os

import numpy as np

from smallvit.arguments import Positive, checked
from smallvit.data import Dataset, load_data
from smallvit.data.sources import SPLITS
from smallvit.devices import choose_device
from smallvit.evaluation import Evaluation, logits_of, measure
from smallvit.runs.folder import Run


@checked
def evaluate(
    run: str | os.PathLike[str] | Run,
    data: str | os.PathLike[str] | None = None,
    *,
    split: str = "test",
    flip: bool = False,
    device: str = "auto",
    batch_size: Positive = 256,
    progress: bool = False,
    save: bool = False,
) -> Evaluation:
    """How good a trained model is.

    Args:
        run: The run folder.
        data: Other images of the same classes, in any form that `load_data` takes. If they come
            with a split of that name, it is used; otherwise all of them are, and the evaluation's
            split is called "all". None means the run's own data.
        split: Which images: train, val or test.
        flip: Whether to average the probabilities with those of each mirror image.
        device: auto, cpu, cuda or mps; auto is a GPU if there is one.
        batch_size: Images per forward pass.
        progress: Whether to show a bar while images are decoded.
        save: Whether to keep the evaluation in the run folder, where `report` and `info` find it.
            Only the test split of the run's own data, without flip, is kept; otherwise the run
            folder stays as it is.

    Raises:
        ValueError: The run, the data or the split does not exist, the run's data has changed, or
            other data has classes that the model does not know.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}: allowed are {', '.join(SPLITS)}")
    run = Run.open(run)
    card = run.card
    name, parts = split, [split]
    if data is None:
        dataset = run.dataset()
    else:
        dataset = load_data(
            data,
            image_size=card.image_size,
            fit=card.fit,
            channels=card.channels,
            classes=card.classes,
            progress=progress,
        )
        name, parts = _matching_split(dataset, split)
    model, chosen = run.model(), choose_device(device)
    logits = [
        logits_of(
            model,
            dataset.pixels(part, progress=progress),
            mean=card.mean,
            std=card.std,
            batch_size=batch_size,
            device=chosen,
            flip=flip,
        )
        for part in parts
    ]
    evaluation = measure(
        np.concatenate(logits),
        np.concatenate([dataset.labels(part) for part in parts]),
        card.classes,
        split=name,
        temperature=card.temperature,
        names=[title for part in parts for title in dataset.split(part).names],
        flip=flip,
    )
    if save and data is None and split == "test" and not flip:
        run.save_evaluation(evaluation)
    return evaluation


def _matching_split(dataset: Dataset, split: str) -> tuple[str, list[str]]:
    """A split that the source itself has and its parts, or all parts if it has no such split."""
    present = [name for name in dataset.splits if name not in dataset.held_out]
    if split not in present or present == ["train"]:
        return "all", list(dataset.splits)
    # What was held out for splits that the source does not have came from training.
    return split, [split, *dataset.held_out] if split == "train" else [split]
