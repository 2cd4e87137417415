"""What goes with a model's weights: all that is needed to use them, as plain data."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from smallvit.data.fit import Fit, check_fit
from smallvit.sizes import Size

if TYPE_CHECKING:
    from smallvit.runs.folder import Run

FORMAT = 1
"""Of the cards that are written; older ones are read, newer ones refused."""

KEY = "smallvit"
"""The name under which exported files hold their card."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A model's description, in its exported files.

    Attributes:
        classes: Names of the classes, in the order of the logits.
        image_size: Height and width of the images the model sees.
        channels: Of these images.
        fit: How images of other shapes come to that size.
        mean: What is subtracted from each channel, on a scale of 0 to 1.
        std: What each channel is divided by, on the same scale.
        temperature: What logits are divided by to give probabilities.
        model: What builds the model again: name, options, sizes.
        config: The run's config.
        versions: Of smallvit and torch, when it was exported.
        facts: What else the run recorded: parameters, steps, counts of images.
        accuracy: On the test split, with the ends of its interval; None if it is not known.
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
        # JSON has no tuples.
        for name in ("classes", "image_size", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_fit(self.fit)
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"mean and std are not of {self.channels} channels each")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}: allowed is any number above 0")

    @classmethod
    def of(cls, run: "Run", accuracy: tuple[float, float, float] | None = None) -> "Card":
        """The card of a run."""
        import torch

        import smallvit

        return cls(
            classes=run.classes,
            image_size=run.image_size,
            channels=run.channels,
            fit=run.fit,
            mean=run.mean,
            std=run.std,
            temperature=run.temperature,
            model=run.info["model"],
            config=run.config.to_dict(),
            versions={"smallvit": smallvit.__version__, "torch": torch.__version__},
            facts={
                "parameters": run.info.get("parameters"),
                "steps": run.info.get("steps"),
                "counts": run.info["data"].get("counts", {}),
            },
            accuracy=accuracy,
        )

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
                f"{source} was not exported by smallvit: it says nothing of classes and images"
            )
        try:
            plain = json.loads(text)
            version = plain.pop("format")
            if version > FORMAT:
                raise ValueError(f"it has format {version}, and this smallvit reads up to {FORMAT}")
            known = {item.name for item in fields(cls)}
            return cls(**{name: value for name, value in plain.items() if name in known})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the description in {source} cannot be used: {error}") from error


def accuracy_of(run: "Run") -> tuple[float, float, float] | None:
    """A run's accuracy on the test split, with the ends of its interval; None if none was kept."""
    from smallvit.evaluation import Evaluation
    from smallvit.runs.folder import EVALUATION

    path = run.folder / EVALUATION
    if not path.is_file():
        return None
    accuracy = Evaluation.from_json(path.read_text(encoding="utf-8"), str(path)).accuracy
    return accuracy.value, accuracy.low, accuracy.high
