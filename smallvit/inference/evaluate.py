"""`evaluate`: how good a trained model is."""

import logging
import os
import shlex
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from smallvit.arguments import Positive, checked
from smallvit.data import Dataset, load_data
from smallvit.data.sources import SPLITS
from smallvit.devices import choose_device
from smallvit.evaluation import Evaluation, logits_of, measure
from smallvit.runs.folder import Run, folds_of
from smallvit.text import counted
from smallvit.training.objective import unlabelled

logger = logging.getLogger(__name__)


@checked
def evaluate(
    run: str | os.PathLike[str] | Run,
    data: str | os.PathLike[str] | None = None,
    *,
    split: str = "test",
    flip: bool = False,
    device: str = "auto",
    batch_size: Positive | None = None,
    progress: bool = False,
    save: bool = False,
) -> Evaluation:
    """How good a trained model is.

    The model of a cross-validation was trained on all images: its test is that of the folds, where
    each image is tested by the model that had not seen it, and the evaluation's split says so.

    Args:
        run: The run folder, or that of a cross-validation.
        data: Other images of the same classes, in any form that `load_data` takes. If they come
            with a split of that name, it is used; otherwise all of them are, and the evaluation's
            split is called "all". None means the run's own data.
        split: Which images: train, val or test.
        flip: Whether to average the probabilities with those of each mirror image.
        device: auto, cpu, cuda or mps; auto is a GPU if there is one.
        batch_size: Images per forward pass; None means as many as suit the device.
        progress: Whether to show a bar while images are decoded.
        save: Whether to keep the evaluation in the run folder, where `report` and `info` find it.
            Only the test split of the run's own data, without flip, is kept; otherwise the run
            folder stays as it is.

    Raises:
        ValueError: The run, the data or the split does not exist, the run's data has changed, it
            has learned without labels, or other data has classes that the model does not know.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}: allowed are {', '.join(SPLITS)}")
    run = Run.open(run)
    if data is None and split == "test" and "cross_validation" in run.info:
        return _evaluate_folds(run, flip, device, batch_size, progress)
    if reason := unlabelled(run.config, run.folder):
        raise ValueError(reason)
    run.warn_of_rest()
    card = run.card
    name, parts = split, [split]
    if data is None:
        dataset = run.dataset()
        if split == "test" and (seen := run.info.get("seen_before")):
            logger.warning(
                "the weights that %s started from had learned from %s of these images, so that the "
                "accuracy is too high",
                run.folder,
                f"{seen:,}",
            )
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
        _warn_of_seen(run, dataset, parts)
    evaluation = measure(
        _logits(run, dataset, parts, flip, device, batch_size, progress),
        np.concatenate([dataset.labels(part) for part in parts]),
        card.classes,
        split=name,
        temperature=card.temperature,
        names=[title for part in parts for title in dataset.split(part).names],
        flip=flip,
    )
    if save and data is None and split == "test" and not flip:
        try:
            run.save_evaluation(evaluation)
        except (OSError, ValueError) as error:  # read-only, or in use
            logger.warning("the evaluation was not kept in %s: %s", run.folder, error)
    return evaluation


def _warn_of_seen(run: Run, dataset: Dataset, parts: Sequence[str]) -> None:
    """Says so if the model was trained on some of these images."""
    samples = [dataset.split(part) for part in parts]
    if seen := run.count_seen(*samples):
        logger.warning(
            "the run was trained on, or chosen by, %s of these %s: on new images it is less good; "
            "`smallvit evaluate %s` tests it on images that it has not seen",
            f"{seen:,}",
            counted(sum(map(len, samples)), "image"),
            shlex.quote(str(run.folder.parent if "cross_validation" in run.info else run.folder)),
        )


def _logits(
    run: Run,
    dataset: Dataset,
    parts: Sequence[str],
    flip: bool,
    device: str,
    batch_size: int | None,
    progress: bool,
) -> Float32[np.ndarray, "N K"]:
    """The logits of a run's model for some splits, one after the other."""
    card, model, chosen = run.card, run.model(), choose_device(device)
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
    return np.concatenate(logits)


def _evaluate_folds(
    run: Run, flip: bool, device: str, batch_size: int | None, progress: bool
) -> Evaluation:
    """All images of a cross-validation, each tested by the fold that had not seen it.

    Raises:
        ValueError: The folds are not beside the model any more.
    """
    folds = folds_of(run.folder.parent)
    if not folds:
        raise ValueError(
            f"{run.folder} was trained on all images of a cross-validation, so none is left to "
            "test it on, and the folds are not beside it: give other images of these classes, or "
            "the folder of the cross-validation"
        )
    datasets = [fold.dataset() for fold in folds]
    # Each fold has its own temperature, so logits are divided by it before they come together.
    logits = [
        _logits(fold, dataset, ["test"], flip, device, batch_size, progress) / fold.card.temperature
        for fold, dataset in zip(folds, datasets, strict=True)
    ]
    return measure(
        np.concatenate(logits),
        np.concatenate([dataset.labels("test") for dataset in datasets]),
        run.card.classes,
        split=f"{len(folds)} folds",
        names=[title for dataset in datasets for title in dataset.split("test").names],
        flip=flip,
    )


def _matching_split(dataset: Dataset, split: str) -> tuple[str, list[str]]:
    """A split that the source itself has and its parts, or all parts if it has no such split."""
    present = [name for name in dataset.splits if name not in dataset.held_out]
    if split not in present or present == ["train"]:
        return "all", list(dataset.splits)
    # What was held out for splits that the source does not have came from training.
    return split, [split, *dataset.held_out] if split == "train" else [split]
