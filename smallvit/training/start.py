"""What a run starts from: its model with the first weights, and the images that these know."""

import torch
from torch import nn

from smallvit.data import Dataset
from smallvit.models.build import make_model
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run
from smallvit.text import counted
from smallvit.training.objective import find_objective
from smallvit.training.optim import freeze
from smallvit.transfer.inputs import run_of
from smallvit.transfer.start import start_from


def build_model(config: RunConfig, dataset: Dataset) -> tuple[nn.Module, list[str]]:
    """The config's model with its first weights, and notes on how it came by them."""
    torch.manual_seed(config.seed)
    shape = {
        "num_classes": len(dataset.classes),
        "image_size": dataset.image_size,
        "in_channels": dataset.channels,
    }
    options = dict(config.model.options)
    notes: list[str] = []
    if config.model.pretrained:
        model, _, notes = start_from(
            config.model.pretrained,
            name=config.model.name or None,
            options=options or None,
            **shape,  # type: ignore[arg-type]
        )
    else:
        model = make_model(config.model.name, options=options, **shape)  # type: ignore[arg-type]
    left, frozen = freeze(model, config.model.frozen), config.model.frozen
    if frozen:
        notes.append(f"{left:,} parameters are trained, the first {frozen} layers are not")
    return model, notes


def rebuilt(run: Run) -> nn.Module:
    """The run's model for the weights of a checkpoint: what it started from may be gone."""
    torch.manual_seed(run.config.seed)
    model = run.untrained()
    freeze(model, run.config.model.frozen)
    return model


def seen_before(config: RunConfig, dataset: Dataset) -> tuple[int, list[str]]:
    """How many of the test images the run that this one starts from has learned from, and notes.

    Raises:
        ValueError: It is a cross-validation, and its start learned from the labels of images that
            are tested.
    """
    source = config.model.pretrained
    if not source or "test" not in dataset.splits or not (run := run_of(source)):
        return 0, []
    tested = dataset.split("test")
    earlier = run.info.get("seen_before", 0)
    if dataset.tested == run.info.get("data", {}).get("tested"):
        count: int | None = earlier  # it was tested on the same images, so it has not seen others
    elif (count := run.count_seen(tested)) is not None:
        count = max(count, min(earlier, len(tested)))
    images = counted(len(tested), "test image")
    if count is None:
        return 0, [
            f"the images that {run.folder} learned from are not here any more: if some of the "
            f"{images} are among them, the accuracy is too high"
        ]
    if not count:
        return 0, []
    if config.data.folds and find_objective(run.config.loss.objective).needs_labels:
        raise ValueError(
            f"with --folds every image is tested, and {run.folder} was trained on {count:,} of the "
            f"{images} of this fold: leave out --pretrained or --folds"
        )
    return count, [
        f"{run.folder} has learned from {count:,} of the {images}, so the accuracy is too high: "
        "start from a run with the same --seed and --test, or from scratch"
    ]
