"""What a recipe looks at, and what it returns."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smallvit.augment.config import AugmentConfig
from smallvit.config_io import leaf
from smallvit.data import Audit, Dataset
from smallvit.runs.changes import BUDGET
from smallvit.runs.config import RunConfig
from smallvit.sizes import Size
from smallvit.transfer.inputs import Inputs

SMALL = 40  # pixels up to which images are thumbnails, such as digits and CIFAR's
_OWN_SIZE = 128  # pixels up to which images that share a size keep it
_SIZE = 64  # pixels of all others

# Classes of Tiny-ImageNet by the first words of their names, as its reader calls them.
_TINY_IMAGENET = {"goldfish", "European fire salamander", "bullfrog", "tailed frog"}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a recipe looks at.

    Attributes:
        source: Name of the data.
        images: Number of training images.
        classes: Number of classes.
        requested_size: Height and width that the user requests; None leaves it to the recipe.
        shared_size: Height and width that all images have; None if there are several.
        channels: Channels of the images.
        device: cpu, cuda or mps.
        mirrored: Whether a mirrored image keeps its class.
        imbalance: Images of the largest class over those of the smallest that has any.
        typical_side: The median of the images' shorter sides.
        tested: Number of images to validate and test on.
        model: The model that the user requests; None leaves it to the recipe.
        inputs: What pretrained weights expect, if the user requests some that say it.
        unlabelled_start: Whether these were learned without labels.
        batch: The images of a step that the user requests; None leaves them to the recipe.
        epochs: The passes that the user requests; None leaves them to the recipe.
        steps: The steps that the user requests instead.
        minutes: The time that the user gives for a training.
        trainings: How many of them there are: with folds, several.
        speed: Of the device, as `measure_speed` returns it; None if time does not matter.
        beside: What a step costs beside the model's own work, in the unit of `cost`.
        preparing: Seconds until all images are decoded: imports, audit and trials included.
    """

    source: str
    images: int
    classes: int
    requested_size: Size | None
    shared_size: Size | None
    channels: int
    device: str
    mirrored: bool
    imbalance: float
    typical_side: int = 0
    tested: int = 0
    model: str | None = None
    inputs: Inputs | None = None
    unlabelled_start: bool = False
    batch: int | None = None
    epochs: float | None = None
    steps: int | None = None
    minutes: float | None = None
    trainings: int = 1
    speed: float | None = None
    beside: float = 0.0
    preparing: float = 0.0

    @classmethod
    def of(cls, dataset: Dataset, audit: Audit, device: str, **requested: Any) -> "Facts":
        """From the data and its audit; the others are given."""
        sizes = dataset.split("train").survey.sizes
        counts = np.bincount(dataset.labels("train"))
        present = counts[counts > 0]
        return cls(
            source=_name(dataset),
            images=len(dataset.split("train")),
            classes=len(dataset.classes),
            requested_size=dataset.chosen_size,
            shared_size=dataset.shared_size,
            channels=dataset.channels,
            device=device,
            mirrored=not audit.flips_matter,
            imbalance=float(present.max() / present.min()) if len(present) else 1.0,
            typical_side=int(np.median(sizes.min(1))) if len(sizes) else 0,
            tested=sum(len(samples) for name, samples in dataset.splits.items() if name != "train"),
            **requested,
        )

    @property
    def size(self) -> Size:
        """Height and width of the images that the model will see."""
        small = self.shared_size is not None and max(self.shared_size) <= _OWN_SIZE
        return self.requested_size or (self.shared_size if small else None) or (_SIZE, _SIZE)

    @property
    def side(self) -> int:
        """The longer side of these images."""
        return max(self.size)


def _name(dataset: Dataset) -> str:
    """The data's name; Tiny-ImageNet is known by what it holds, wherever it lies."""
    if dataset.shared_size == (64, 64) and len(dataset.classes) == 200:
        wordnet = all(re.fullmatch(r"n\d{8}", name) for name in dataset.classes)
        if wordnet or set(dataset.classes) >= _TINY_IMAGENET:
            return "tiny-imagenet"
    return Path(dataset.source).name.lower()


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why.

    Attributes:
        config: The config.
        reasons: A sentence for each of the config paths that need one; a key may hold several
            paths, separated by spaces.
    """

    config: RunConfig
    reasons: Mapping[str, str]

    def changed(self, config: RunConfig, reasons: Mapping[str, str]) -> "Choice":
        """A later choice; an older reason stays if all values that it explains do."""
        old, new = self.config.to_dict(), config.to_dict()
        kept = self._reasons(lambda path: leaf(old, path) == leaf(new, path))
        return Choice(config, {**kept, **reasons})

    def overruled(self, requested: Mapping[str, Any]) -> "Choice":
        """With the values of a partial tree, and the reasons of all others."""
        kept = self._reasons(lambda path: leaf(requested, path) is None)
        return Choice(self.config.changed(requested), kept)

    def _reasons(self, stands: Callable[[str], bool]) -> dict[str, str]:
        """The reasons all of whose paths stand; those of `BUDGET` stand or fall together."""
        budget = all(map(stands, BUDGET))
        return {
            paths: reason
            for paths, reason in self.reasons.items()
            if all(budget if path in BUDGET else stands(path) for path in paths.split())
        }


def size_reason(facts: Facts, size: Size | None = None, why: str = "") -> dict[str, str]:
    """Why images have the size of the facts, or another for a reason of its own."""
    if facts.requested_size:
        return {}
    height, width = size or facts.size
    if not why:
        why = "their sizes differ" if facts.shared_size is None else "they are larger than needed"
        if (height, width) != facts.size:
            why = "as in the paper"
        elif facts.size == facts.shared_size:
            why = "the size they have"
    return {"data.image_size": f"images of {height}×{width} pixels: {why}"}


def augment_reason(config: AugmentConfig, facts: Facts) -> str:
    """What is done to the images."""
    parts = []
    if config.padding or config.resized_crop:
        parts.append("crops")
    if config.flip:
        parts.append("mirroring")
    if config.policy != "none":
        parts.append("TrivialAugment")
    if config.mixed:
        parts.append("Mixup and CutMix")
    if config.erasing:
        parts.append("erasing")
    why = "" if facts.mirrored else "; no mirroring, the audit says it matters here"
    return f"augmentation: {', '.join(parts) or 'none'}{why}"
