"""Everything that decides a run, as one tree of frozen dataclasses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from smallvit.augment import AugmentConfig
from smallvit.config_io import (
    assignment,
    from_plain,
    merge,
    overlaid,
    read_yaml,
    to_plain,
    write_yaml,
)
from smallvit.data.fit import Fit
from smallvit.devices import DeviceName
from smallvit.losses.drloc import Mode
from smallvit.models.names import parse_name
from smallvit.sizes import Size

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Decay = Literal["matrices", "all"]


def _check(owner: Any, limits: dict[str, tuple[float, float]]) -> None:
    """Refuses numbers outside their limits, and infinite ones; None is no number."""
    for name, (least, most) in limits.items():
        value = getattr(owner, name)
        if value is not None and not (least <= value <= most and value < math.inf):
            allowed = (
                f"{least:.10g} or more" if math.isinf(most) else f"{least:.10g} to {most:.10g}"
            )
            raise ValueError(f"{name} is {value}: allowed is {allowed}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained on; the words are those of `load_data`.

    Attributes:
        source: Folder, table, .npz file or name.
        image_size: Height and width, or one number; None follows the images.
        seed: Of the splits that are made.
        allow: Audit findings that do not stop a run: leaks, conflicts, unreadable, case.
        folds: How many parts cross-validation makes; 0 for one training.
        fold: Which of them is tested, from 0.
    """

    source: str = ""
    image_size: int | Size | None = None
    fit: Fit = "letterbox"
    channels: int | None = None
    val: float | None = None
    test: float | None = None
    seed: int = 0
    root: str | None = None
    download: bool = False
    allow: tuple[str, ...] = ()
    folds: int = 0
    fold: int = 0

    def __post_init__(self) -> None:
        if self.folds == 1 or self.folds < 0:
            raise ValueError(f"folds is {self.folds}: allowed is 2 or more, or 0 for none")
        if self.folds and not 0 <= self.fold < self.folds:
            raise ValueError(f"fold is {self.fold}: allowed is 0 to {self.folds - 1}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What is trained.

    Attributes:
        name: A name of `list_models()`, of a convolutional baseline, or `timm/` and timm's name;
            add-ons such as `+spt+lsa` that a pretrained model does not have are added to it.
        options: Fields of that family's config, such as drop_path.
        pretrained: Where to start: a run folder, a checkpoint, a name of timm; None from scratch.
        frozen: How many layers, counted from the images, are not trained.
    """

    name: str = "cct_2_3x2"
    options: dict[str, Any] = field(default_factory=dict)
    pretrained: str | None = None
    frozen: int = 0

    def __post_init__(self) -> None:
        _check(self, {"frozen": (0, math.inf)})


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """What is minimised beside the cross-entropy with soft targets.

    Attributes:
        balanced: Weighs classes by one over their number of images.
        drloc: λ of dense relative localization; 0 leaves it out.
        drloc_mode: How it predicts distances.
        pairs: Its pairs an image.
    """

    balanced: bool = False
    drloc: float = 0.0
    drloc_mode: Mode = "l1"
    pairs: int = 64

    def __post_init__(self) -> None:
        _check(self, {"drloc": (0, math.inf), "pairs": (1, math.inf)})


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW and what surrounds it.

    Attributes:
        lr: Its highest learning rate.
        weight_decay: How much it decays.
        decay: What decays: "matrices" leaves out norms, biases, positions, class tokens and
            temperatures; "all" is the papers' way.
        betas: Its two memories.
        eps: Its small number.
        layer_decay: A layer's learning rate over that of the layer above it, for fine-tuning.
        clip: Largest norm of the gradient; 0 does not clip.
        ema: Decay of the moving average of the weights, which is what is then validated and
            saved; 0 does without. It is lower in the first steps.
    """

    lr: float = 1e-3
    weight_decay: float = 0.05
    decay: Decay = "matrices"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    layer_decay: float = 1.0
    clip: float = 0.0
    ema: float = 0.0

    def __post_init__(self) -> None:
        limits = dict.fromkeys(("lr", "weight_decay", "eps", "clip"), (0.0, math.inf))
        _check(self, {**limits, "layer_decay": (0, 1), "ema": (0, 1)})
        if self.ema == 1:
            raise ValueError("ema is 1: the average would never move; allowed is 0 up to below 1")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas}: allowed is two numbers from 0 up to below 1")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How long, and how the learning rate goes: up linearly, down a cosine, then flat.

    Attributes:
        epochs: Passes over the training images; counts where steps and minutes are None.
        steps: Optimiser steps; counts before the others. A run's own config always has it.
        minutes: Of the whole command; a measurement turns it into steps.
        warmup: Share of the steps in which the learning rate rises.
        cooldown: Share of the steps at the end at the lowest learning rate.
        start: Where the rise begins, as a learning rate.
        end: The lowest learning rate.
        mixed: Share of the steps in which images are mixed, from the beginning.
        patience: Validations without a better one after which training stops; 0 never.
    """

    epochs: float = 100.0
    steps: int | None = None
    minutes: float | None = None
    warmup: float = 0.05
    cooldown: float = 0.0
    start: float = 1e-6
    end: float = 1e-6
    mixed: float = 1.0
    patience: int = 0

    def __post_init__(self) -> None:
        shares = dict.fromkeys(("warmup", "cooldown", "mixed"), (0.0, 1.0))
        limits = dict.fromkeys(("epochs", "start", "end", "patience"), (0.0, math.inf))
        _check(self, {**shares, **limits, "steps": (1, math.inf)})
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes is {self.minutes}: give a number above 0")
        if self.warmup + self.cooldown > 1:
            raise ValueError(
                f"warmup is {self.warmup} and cooldown {self.cooldown}: together at most 1"
            )


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How the work is done; nothing here is meant to change what is learned.

    Attributes:
        batch_size: Images of a step, of all processes and passes together.
        accumulation: Passes a step is made of.
        balanced: Shows every class equally often.
        repeats: How often a batch shows each of its images, differently augmented.
        device: Where; "auto" takes a GPU if there is one.
        precision: "auto" is bf16 on a GPU and fp32 elsewhere.
        compiled: torch.compile; None decides: on a GPU.
        captured: The whole step as a CUDA graph; None decides: on a single GPU, not in fp16.
        deterministic: The same numbers again on a GPU, more slowly.
        every: Steps between validations; None for an epoch, or a hundredth of a long run.
        checkpoint_seconds: Least time between two checkpoints.
    """

    batch_size: int = 128
    accumulation: int = 1
    balanced: bool = False
    repeats: int = 1
    device: DeviceName = "auto"
    precision: Precision = "auto"
    compiled: bool | None = None
    captured: bool | None = None
    deterministic: bool = False
    every: int | None = None
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        whole = dict.fromkeys(("batch_size", "accumulation", "repeats", "every"), (1.0, math.inf))
        _check(self, {**whole, "checkpoint_seconds": (0, math.inf)})
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size {self.batch_size} is no multiple of accumulation {self.accumulation}"
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. `from_yaml(config.to_yaml())` is the same config.

    Attributes:
        recipe: Where the values came from; for the record.
        seed: Of weights, order and augmentation.
        tensorboard: Writes event files into the run folder.
        wandb: Logs to Weights & Biases.
    """

    recipe: str = ""
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    tensorboard: bool = False
    wandb: bool = False

    def __post_init__(self) -> None:
        # Each purpose of a run draws with the seed and a key of its own above these bits.
        _check(self, {"seed": (0, 2**32 - 1)})

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def to_yaml(self) -> str:
        """As YAML."""
        return write_yaml(self.to_dict())

    @classmethod
    def from_dict(cls, data: Any) -> "RunConfig":
        """From plain data; unknown keys are refused."""
        return from_plain(cls, upgrade(data))

    @classmethod
    def from_yaml(cls, text: str, source: str = "the config") -> "RunConfig":
        """From YAML."""
        return cls.from_dict(read_yaml(text, source) or {})

    def changed(self, changes: dict[str, Any]) -> "RunConfig":
        """With the values of a partial tree."""
        return RunConfig.from_dict(merge(self.to_dict(), changes))

    def with_steps(self, steps: int) -> "RunConfig":
        """With a fixed number of steps."""
        return replace(self, schedule=replace(self.schedule, steps=steps))


def upgrade(plain: Any) -> Any:
    """A config as older versions wrote it, in today's keys.

    `model.spt` and `model.lsa` are suffixes of the model's name now. Where `pretrained` is null
    they had no effect, and still have none.
    """
    if not isinstance(plain, Mapping) or not isinstance(plain.get("model"), Mapping):
        return plain
    model = dict(plain["model"])
    addons = [addon for addon in ("spt", "lsa") if model.pop(addon, False)]
    if addons and model.get("pretrained", "unknown"):
        model["name"] = str(parse_name(model.get("name") or "").plus(addons))
    return {**plain, "model": model}


def read_changes(path: str | Path) -> dict[str, Any]:
    """A config file, whole or in part, as plain data; keys are checked when it is applied."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from error
    data = read_yaml(text, str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds {data!r}: expected keys and values")
    changes: dict[str, Any] = upgrade(data)
    return changes


def changes_of(assignments: list[str]) -> dict[str, Any]:
    """`--set` options as one partial tree; of two for the same path the last counts."""
    whole: dict[str, Any] = {}
    for text in assignments:
        whole = overlaid(whole, assignment(text))
    return whole
