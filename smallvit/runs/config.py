"""Everything that decides a run, as one tree of frozen dataclasses.

The lines below `Attributes:` are also the help texts of the command line. Importing this needs no
PyTorch, so that `--help` does not wait for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from smallvit.arguments import (
    AboveZero,
    Amount,
    Between,
    Natural,
    Positive,
    Rate,
    Seed,
    Share,
    Width,
    check_fields,
)
from smallvit.augment.config import AugmentConfig
from smallvit.config_io import differences, from_plain, overlaid, read_yaml, to_plain, write_yaml
from smallvit.devices import DeviceName
from smallvit.runs.changes import upgrade
from smallvit.sizes import Fit, Size

Decay = Literal["matrices", "axes", "drloc", "all"]

_TO_COMPILE = 2.0  # minutes from which waiting for a compiled step pays (docs/performance.md)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained on, and how it is read.

    Attributes:
        source: A folder of images, a table of paths, an .npz file or the name of a public dataset.
        image_size: Side of the images that the model sees, or height and width; by default the
            recipe chooses it.
        fit: How an image of another shape comes to that size: letterbox adds grey bars, stretch
            squeezes, crop takes the middle; imagenet, as ImageNet's tests do, resizes it to 8/7 of
            that size (bicubic) and takes the middle, while crops for training are cut out of the
            images as they are.
        mean: What is subtracted from each channel, on a scale of 0 to 1; by default the training
            images' mean, and in fine-tuning that of the weights, where they say it.
        std: What each channel is divided by, in the same way.
        channels: 1 for grey and 3 for coloured images; by default as the images are.
        val: Share of the training images held out for validation, 0 for none; by default a tenth
            if the data has no validation split.
        test: Share of the images held out for the test, 0 for none; by default a fifth if the data
            has no test split.
        seed: Seed of the splits that are held out.
        root: Folder of named datasets; by default SMALLVIT_DATA.
        download: Fetch a named dataset that is missing.
        allow: Errors of the audit that do not stop training, separated by commas: leaks,
            conflicts, unreadable, case.
        folds: Cross-validate: train this many models, so that every image is tested once, and
            then one on all images.
        fold: Which part of a cross-validation is tested, from 0.
        limit: Train on this share of the training images, or on this number of them; validation
            keeps the same share. A smaller choice lies in every larger one.
        limit_seed: Seed of that choice.
        unlabelled: Take a folder without class folders as images of one class, for objectives that
            need no labels.
    """

    source: str = ""
    image_size: int | Size | None = None
    fit: Fit = "letterbox"
    mean: tuple[Annotated[float, Between(-1_000, 1_000)], ...] | None = None
    std: tuple[AboveZero, ...] | None = None
    channels: Width | None = None
    val: Rate | None = None
    test: Rate | None = None
    seed: Seed = 0
    root: str | None = None
    download: bool = False
    allow: tuple[str, ...] = ()
    folds: Natural = 0
    fold: Natural = 0
    limit: AboveZero | None = None
    limit_seed: Seed = 0
    unlabelled: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.image_size, tuple) and len(set(self.image_size)) == 1:
            object.__setattr__(self, "image_size", self.image_size[0])  # one way to write it
        if (self.mean is None) != (self.std is None):
            raise ValueError(f"mean is {self.mean} and std {self.std}: give both or neither")
        if self.folds == 1:
            raise ValueError("folds is 1: allowed is 2 or more, or 0 for none")
        if self.folds and self.fold >= self.folds:
            raise ValueError(f"fold is {self.fold}: allowed is 0 to {self.folds - 1}")

    @property
    def trainings(self) -> int:
        """How many models a command trains: one, or one per fold and one on all images."""
        return self.folds + 1 if self.folds else 1


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model, and where its first weights come from.

    Attributes:
        name: A name that `smallvit models` lists, a convolutional baseline such as resnet18, or
            timm/NAME; auto lets the recipe choose. Add-ons such as `+spt+lsa` that a pretrained
            model does not have are added to it.
        options: Fields of that family's config, such as drop_path.
        pretrained: Start from the weights of a run folder, a checkpoint, or a model of timm
            (timm/NAME).
        frozen: Number of layers, counted from the input, that are not trained.
    """

    name: str = "cct_2_3x2"
    options: dict[str, Any] = field(default_factory=dict)
    pretrained: str | None = None
    frozen: Natural = 0

    __post_init__ = check_fields  # type: ignore[misc]  # mypy wants a `def`


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """What is minimised.

    Attributes:
        objective: classification, or another name of `smallvit.training.objective.OBJECTIVES`; the
            settings below belong to classification.
        balanced: Weight classes by one over the fifth root of their number of images.
        drloc: Weight λ of the dense relative localization loss; auto, or the option without a
            number, is the usual weight for the model, 0 is off.
        drloc_mode: How that loss predicts distances: by regression (l1), by classification (ce),
            or by regression on the classification's expectation (cbr).
        drloc_form: The loss as the paper writes it, at a constant λ (normalised), or as its code
            computes it (released): targets in tokens, two hidden layers, tokens of Swin before the
            final norm, overlapping pooling, and λ that rises in the warm-up and then falls linearly
            to the end of the learning rate's cosine.
        pairs: Pairs of tokens per image that it compares.
        teacher: A finished run whose model teaches this one: what it says of an image counts beside
            the label.
        teacher_share: How much it counts; the label counts for the rest.
        teacher_temperature: Divides the logits of both before they are compared: the higher, the
            more the classes count that the teacher thinks unlikely.
        teacher_hash: Of the teacher's weights; recorded as a run begins.
    """

    objective: str = "classification"
    balanced: bool = False
    drloc: Amount | Literal["auto"] = 0.0
    drloc_mode: Literal["l1", "ce", "cbr"] = "l1"  # losses.drloc.Mode, which needs torch
    drloc_form: Literal["normalised", "released"] = "normalised"
    pairs: Positive = 64
    teacher: str | None = None
    teacher_share: Share = 0.9
    teacher_temperature: Annotated[float, Between(0.1, 100)] = 2.0
    teacher_hash: str = ""

    __post_init__ = check_fields  # type: ignore[misc]  # mypy wants a `def`


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimiser and what surrounds it.

    Attributes:
        optimizer: adamw, or muon, which moves the matrices of blocks and convolutions by orthogonal
            matrices and leaves the rest to AdamW; it learns more in few steps.
        lr: Highest learning rate.
        weight_decay: AdamW's weight decay.
        muon_lr: Highest learning rate of the matrices that Muon moves; it rises and falls with lr.
        muon_decay: Weight decay of these matrices; without any they grow, and learning slows down.
        decay: Which parameters decay: "matrices" leaves out norms, biases, positions, class tokens
            and temperatures; "axes" leaves out only what has one axis, as timm does (positions and
            class tokens decay); "drloc" leaves out what the code of DRLoc does: the same and
            relative biases, while norms of CvT decay; "all" decays everything, as the SPT paper
            does.
        betas: AdamW's momentum coefficients.
        eps: AdamW's term against division by zero.
        layer_decay: Learning rate of a layer over that of the layer above it; below 1 for
            fine-tuning.
        clip: Largest norm of the gradient; 0 does not clip.
        ema: Decay of the exponential moving average of the weights, which is then what is
            validated and saved; 0 does without. It is lower in the first steps.
    """

    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: Amount = 1e-3
    weight_decay: Amount = 0.05
    muon_lr: Amount = 0.01
    muon_decay: Amount = 1.0
    decay: Decay = "matrices"
    betas: tuple[Rate, Rate] = (0.9, 0.999)
    eps: Amount = 1e-8
    layer_decay: Share = 1.0
    clip: Amount = 0.0
    ema: Rate = 0.0

    __post_init__ = check_fields  # type: ignore[misc]  # mypy wants a `def`


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How long, and the learning rate: it rises linearly, falls as a cosine, and stays low.

    Attributes:
        epochs: Passes over the training images; steps and minutes go before it.
        steps: Optimizer steps; goes before epochs and minutes. The config of a run always has it.
        minutes: Time for the whole command instead of epochs: as many steps as fit are planned.
        plans: What was planned in that time, for a run that repeats another: from which step on
            how many steps in all. The last are `steps`.
        warmup: Share of the steps in which the learning rate rises.
        cooldown: Share of the steps at the end with the lowest learning rate.
        start: Learning rate of the first step.
        end: Lowest learning rate at the end.
        whole: The cosine counts from the first step, and the warm-up replaces its beginning, as in
            timm; otherwise it begins at the end of the warm-up.
        stepped: The learning rate changes once per epoch instead of with every step.
        horizon: Length of the cosine over that of the run; above 1 the run ends before it.
        late: Each step has the learning rate of the step before it, as where the schedule moves on
            after a step is taken (the code of DRLoc).
        mixed: Share of the steps, from the beginning, in which images are mixed.
        patience: Validations without improvement after which training stops; 0 never stops.
    """

    epochs: AboveZero = 100.0
    steps: Positive | None = None
    minutes: AboveZero | None = None
    plans: tuple[tuple[Natural, Positive], ...] = ()
    warmup: Share = 0.05
    cooldown: Share = 0.0
    start: Amount = 1e-6
    end: Amount = 1e-6
    whole: bool = False
    stepped: bool = False
    horizon: Annotated[float, Between(1, 1_000_000)] = 1.0
    late: bool = False
    mixed: Share = 1.0
    patience: Natural = 0

    def __post_init__(self) -> None:
        check_fields(self)
        starts = [start for start, _ in self.plans]
        if self.plans and (
            starts != sorted(starts) or starts[0] or self.plans[-1][1] != self.steps
        ):
            raise ValueError(
                f"plans is {self.plans} and steps {self.steps}: plans begin with step 0 and end "
                "with `steps`"
            )
        if self.warmup + self.cooldown > 1:
            raise ValueError(
                f"warmup is {self.warmup} and cooldown {self.cooldown}: together at most 1"
            )


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How steps are computed.

    batch_size, balanced and repeats change what is learned, `every` which weights are selected;
    the others change speed, memory and rounding.

    Attributes:
        batch_size: Images per step, over all processes and passes.
        accumulation: Forward and backward passes per step.
        balanced: Show every class equally often.
        repeats: How often a batch shows each of its images, each time augmented differently.
        device: Device to train on; auto takes a GPU if there is one.
        precision: Number format of the model's arithmetic; auto is bf16 on a GPU and on a CPU with
            instructions for it (AVX512-BF16), else fp32.
        compiled: Use torch.compile; by default on a GPU, if there are two minutes or more.
        regional: Compile blocks one by one, all that are alike as one, instead of the whole step:
            it starts sooner and runs a little slower.
        captured: Run the step as a CUDA graph; by default on a single GPU, not in fp16.
        fused: Use the fused attention kernel on a GPU that can run it.
        recompute: Compute the widest activations again in the backward pass instead of keeping
            them: half the memory, a little slower.
        narrow: Keep the tokens between blocks in the number format of the products (bf16, fp16)
            instead of fp32: fewer bytes to move, one more rounding a branch.
        deterministic: Give the same numbers again on a GPU, more slowly.
        every: Steps between validations; by default an epoch, or a hundredth of a long run.
        checkpoint_seconds: Least time between two checkpoints.
        log_test: Log the accuracy on the test split at every validation, to stand beside papers
            that report the best of these; nothing is chosen by it.
    """

    batch_size: Positive = 128
    accumulation: Positive = 1
    balanced: bool = False
    repeats: Positive = 1
    device: DeviceName = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compiled: bool | None = None
    regional: bool = False
    captured: bool | None = None
    fused: bool = True
    recompute: bool = False
    narrow: bool = False
    deterministic: bool = False
    every: Positive | None = None
    checkpoint_seconds: Amount = 30.0
    log_test: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of accumulation "
                f"{self.accumulation}"
            )

    def compiles(self, device: str, minutes: float | None) -> bool:
        """Whether steps are compiled on a kind of device in the time there is."""
        if self.compiled is not None:
            return self.compiled
        return device == "cuda" and (minutes is None or minutes >= _TO_COMPILE)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. `from_yaml(config.to_yaml())` is the same config.

    Attributes:
        recipe: Where all other settings come from: auto chooses them from the data; spt-lsa,
            compact and drloc are those of papers.
        seed: Seed of weights, order and augmentation.
        tensorboard: Write TensorBoard event files into the run folder.
        wandb: Log to Weights & Biases.
    """

    recipe: str = ""
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0
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
        check_fields(self)  # a seed has 32 bits: each purpose draws with a key of its own above
        if self.loss.teacher and self.data.folds:
            raise ValueError("a teacher has seen images of every fold: leave it or the folds out")

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

    def changed(self, changes: Mapping[str, Any]) -> "RunConfig":
        """With the values of a partial tree."""
        return from_plain(type(self), overlaid(self.to_dict(), changes))

    def with_steps(self, steps: int, plans: Sequence[Size] = ()) -> "RunConfig":
        """With a fixed number of steps, and how it came about."""
        schedule = replace(self.schedule, steps=steps, plans=tuple(plans))
        return replace(self, schedule=schedule)

    def refuse_changes(self, changes: Mapping[str, Any]) -> None:
        """Refuses a partial tree that requests something else than this config of a run.

        Raises:
            ValueError: Values differ; all of them are named. None and "auto" differ from nothing:
                they leave a value to be decided, and here it is.
        """
        requested = self.changed(_decided(changes))
        if Path(requested.data.source) == Path(self.data.source):  # photos and photos/ are one
            requested = replace(requested, data=replace(requested.data, source=self.data.source))
        if different := differences(self.to_dict(), requested.to_dict()):
            raise ValueError(
                f"a run resumes with the config it began with, and {'; '.join(different)}: leave "
                "that out, or start a new run"
            )


def _decided(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A partial tree without values that leave the decision open."""
    return {
        key: _decided(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if value is not None and value != "auto"
    }
