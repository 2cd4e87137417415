"""`Card`: what goes with a model's weights, for runs, predictors and exported files.

Importing this needs no PyTorch.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Float32, UInt8

from smallvit.arguments import Width, check
from smallvit.data.fit import fit_image
from smallvit.data.images import Decoded, to_channels
from smallvit.evaluation import Evaluation
from smallvit.evaluation.calibration import softmax
from smallvit.sizes import Fit, Size
from smallvit.text import counted

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
"""Of the cards that are written; older ones are read, newer ones refused."""

KEY = "smallvit"
"""The name under which exported files hold their card."""


#: Share of the folds' steps from which a model was trained about as long as they were.
_AS_LONG = 0.75


@dataclass(frozen=True, kw_only=True)
class Card:
    """All that is needed to use a model's weights, as plain data.

    Attributes:
        classes: Names of the classes, in the order of the logits.
        image_size: Height and width of the images the model takes.
        channels: Channels of these images.
        fit: How images of other shapes are brought to that size.
        mean: What is subtracted from each channel, on a scale of 0 to 1.
        std: What each channel is divided by, on the same scale.
        temperature: What logits are divided by to give calibrated probabilities.
        model: What builds the model again: name, options, sizes.
        config: The run's config.
        versions: Of smallvit and torch: those it was exported with, or for a run trained with.
        facts: What else the run recorded: parameters, steps, numbers of images.
        accuracy: On the test split, or where facts name folds, on all images, each tested by a
            model that had not seen it; with the ends of its interval. None if it is not known.
    """

    classes: tuple[str, ...]
    image_size: Size
    channels: int
    fit: Fit
    mean: tuple[float, ...]
    std: tuple[float, ...]
    temperature: float = 1.0
    model: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    accuracy: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        check("channels", self.channels, Width)
        check("temperature", self.temperature, float)
        for name in ("model", "config", "versions", "facts"):
            check(name, getattr(self, name), Mapping[str, Any])
        check("facts.counts", self.facts.get("counts", {}), Mapping[str, Any])
        lists = {"classes": str, "image_size": Width, "mean": float, "std": float}
        for name, hint in lists.items():
            check(name, getattr(self, name), Sequence[hint])  # type: ignore[valid-type]
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has no tuples
        if len(self.image_size) != 2:
            raise ValueError(f"image_size is {self.image_size}: expected are height and width")
        if (outputs := self.model.get("num_classes", len(self.classes))) != len(self.classes):
            raise ValueError(f"the model has {outputs} outputs, and {len(self.classes)} classes")
        if self.accuracy is not None:
            check("accuracy", self.accuracy, Sequence[float])
            if len(self.accuracy) != 3:
                raise ValueError(f"accuracy is {self.accuracy}: expected are three numbers")
            object.__setattr__(self, "accuracy", tuple(self.accuracy))
        check("fit", self.fit, Fit)
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(
                f"mean has {len(self.mean)} and std {len(self.std)} numbers: expected one per "
                f"channel, and there are {self.channels}"
            )
        if not all(0 < each < math.inf for each in (self.temperature, *self.std)):
            raise ValueError(
                f"temperature is {self.temperature} and std {self.std}: allowed are numbers above 0"
            )

    def prepare(self, image: Decoded) -> UInt8[np.ndarray, "h w c"]:
        """A decoded image in the size and channels of the model.

        Raises:
            UnreadableError: It has channels that cannot be converted to the model's.
        """
        return fit_image(to_channels(image, self.channels), self.image_size, self.fit)

    def normalise(self, images: 'UInt8[Tensor, "B C H W"]') -> 'Float[Tensor, "B C H W"]':
        """Prepared images as the model takes them, on the device they are on."""
        import torch

        from smallvit.augment import normalise

        mean, std = (torch.tensor(each, device=images.device) for each in (self.mean, self.std))
        return normalise(images, mean, std)

    def probabilities(self, logits: Float[np.ndarray, "N K"]) -> Float32[np.ndarray, "N K"]:
        """Calibrated probabilities of logits."""
        return softmax(logits, self.temperature).astype(np.float32)

    def measured(self, evaluation: Evaluation | None) -> "Card":
        """The card with the accuracy of an evaluation, if there is one."""
        if evaluation is None:
            return self
        accuracy = evaluation.accuracy
        return replace(self, accuracy=(accuracy.value, accuracy.low, accuracy.high))

    def to_json(self) -> str:
        """As JSON, in one line."""
        return json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | None, source: str) -> "Card":
        """From JSON.

        Args:
            text: What `to_json` gave; None where a file has none.
            source: The file, for messages.

        Raises:
            ValueError: There is none, it is damaged, or a newer version wrote it.
        """
        if not text:
            raise ValueError(
                f"{source} was not exported by smallvit: it names no classes and no image size"
            )
        try:
            plain = json.loads(text)
            version = plain.pop("format")
            if version > FORMAT:
                raise ValueError(
                    f"it has format {version}, and this smallvit reads up to {FORMAT}: upgrade "
                    "smallvit"
                )
            known = {item.name for item in fields(cls)}
            return cls(**{name: value for name, value in plain.items() if name in known})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"the description in {source} cannot be used: {error}") from error


def short_of_folds(facts: Mapping[str, Any]) -> str:
    """A sentence if the model of a cross-validation took clearly fewer steps than its folds.

    That happens where `--minutes` divide the time: the folds then promise more than it can hold.

    Args:
        facts: Those of a card, or of a summary of folds.
    """
    steps, usual = facts.get("steps") or 0, facts.get("steps_of_folds") or 0
    if steps >= _AS_LONG * usual:
        return ""
    return (
        f"it took {counted(steps, 'step')}, and the folds {usual:,} on average, as the time was "
        "over: expect less of it than of them, or give more --minutes"
    )
