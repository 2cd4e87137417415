"""What a step minimises: the seam between a model and the loop that trains it.

A new objective is one file with a subclass of `Objective`, and one line in `OBJECTIVES`.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from torch import Tensor, nn

from smallvit.augment import Augmentation, AugmentConfig
from smallvit.augment.randomness import uniform, whole
from smallvit.data import Dataset
from smallvit.data.cache import refuse_truncated
from smallvit.devices import prefers_bf16
from smallvit.evaluation.calibration import safe_temperature, softmax
from smallvit.evaluation.measure import Precision, logits_of, measure
from smallvit.evaluation.metrics import log_loss
from smallvit.evaluation.results import Evaluation
from smallvit.layers import DropPath
from smallvit.losses import DRLoc, balanced_weights, soft_cross_entropy
from smallvit.losses.drloc import RELEASED
from smallvit.models.features import feature_shape, features_of
from smallvit.models.modes import evaluating
from smallvit.runs.config import RunConfig
from smallvit.text import nearest
from smallvit.training.distributed import World
from smallvit.training.optim import drloc_share

logger = logging.getLogger(__name__)

#: The names of `loss.objective`, and the module and class of each.
OBJECTIVES = {
    "classification": "smallvit.training.objective:Classification",
    "masked": "smallvit.training.masked:MaskedImages",
}

# Augmentation draws with the seed itself; every other purpose, and every further view of an image,
# has a key of its own beside it.
_PATHS, _PAIRS, _VIEW = 1 << 32, 2 << 32, 1 << 40
_BATCH = 256
_TRIED = 256  # images to measure the speed of a test
CALIBRATED = 2_000  # validation images that are enough to fit a temperature


class Objective(nn.Module):
    """From uint8 images to a loss; subclasses write `forward`.

    What it draws for augmentation, stochastic depth and pairs of tokens is a function of (seed,
    step, position in the batch of all processes): it does not depend on the number of processes or
    passes. Dropout does: its masks come from torch's generator, which `Stepper` seeds by (seed,
    step, rank).

    Child modules beside `model` are trained with it and thrown away afterwards.

    Args:
        model: What is trained, and in the end saved.
        config: The run's.
        dataset: Source of the image size, mean, standard deviation, classes and class counts.
        precision: Number format of the model's arithmetic.

    Attributes:
        numbers: Names of the sums over images that `forward` returns beside the loss; the log
            holds their means.
        decides: The validation number that chooses the best weights, where higher is better;
            the lower loss decides between equals.
        needs_labels: Whether the data must have two or more classes.
        views: How often `forward` shows each image to the model in a pass, all first views in
            front of all second ones along the batch axis.
    """

    numbers: ClassVar[tuple[str, ...]] = ()
    decides: ClassVar[str] = "loss"
    needs_labels: ClassVar[bool] = False
    views: ClassVar[int] = 1

    path_seed: Tensor
    path_rates: Tensor
    path_shares: Tensor

    def __init__(
        self, model: nn.Module, config: RunConfig, dataset: Dataset, precision: Precision
    ) -> None:
        super().__init__()
        self.model, self.config, self.precision = model, config, precision
        self.register_buffer("path_seed", torch.tensor(config.seed + _PATHS), persistent=False)
        self.paths = [m for m in model.modules() if isinstance(m, DropPath) and m.rate]
        rates = [path.rate for path in self.paths]
        self.register_buffer("path_rates", torch.tensor(rates), persistent=False)
        shares = torch.tensor([1 - rate for rate in rates])
        self.register_buffer("path_shares", shares, persistent=False)

    def forward(
        self,
        images: UInt8[Tensor, "B C H W"],
        labels: Int64[Tensor, " B"],
        step: Int64[Tensor, ""],
        positions: Int64[Tensor, " B"],
        *,
        mixed: bool,
    ) -> tuple[Float[Tensor, ""], Tensor]:
        """The mean loss, and a vector with the sum over the images of each of `numbers`.

        Args:
            step: Of the training; a tensor, so that it is not compiled in.
            positions: Of the images in the batch of all processes.
            mixed: Whether the schedule still mixes images.
        """
        raise NotImplementedError

    def advance(self, step: int, steps: int) -> None:
        """Hears which of how many steps comes next, outside of a compiled graph."""

    def validate(self, dataset: Dataset, split: str, world: World) -> dict[str, float]:
        """Means over a split, of `forward` in evaluation mode with the draws of a fixed step."""
        pixels, labels = dataset.pixels(split), dataset.labels(split)
        step = torch.tensor(0, device=world.device)
        sums = torch.zeros(1 + len(self.numbers), device=world.device)
        with evaluating(self):
            for start in range(world.rank * _BATCH, len(pixels), world.size * _BATCH):
                batch = slice(start, start + _BATCH)
                refuse_truncated(pixels)
                images = torch.from_numpy(np.array(pixels[batch])).to(world.device)
                truth = torch.from_numpy(labels[batch].copy()).to(world.device)
                positions = torch.arange(start, start + len(images), device=world.device)
                loss, numbers = self(images, truth, step, positions, mixed=False)
                sums += torch.cat([loss[None].float() * len(images), numbers.float()])
        means = (world.total(sums) / len(pixels)).tolist()
        return dict(zip(("loss", *self.numbers), means, strict=True))

    def try_inference(self, dataset: Dataset, world: World, precision: Precision) -> int:
        """Shows a few images to the model as a test does; returns how many all processes saw."""
        split = next(name for name in ("test", "val", "train") if name in dataset.splits)
        pixels = dataset.pixels(split)[:_TRIED]
        self.infer(dataset, pixels, world, precision)
        return len(pixels) * world.size

    def infer(
        self,
        dataset: Dataset,
        pixels: UInt8[np.ndarray, "N C H W"],
        world: World,
        precision: Precision,
    ) -> Float32[np.ndarray, "N K"]:
        """The model's logits for images of a dataset, in this process."""
        mean, std = dataset.statistics
        return logits_of(
            self.model,
            pixels,
            mean=mean,
            std=std,
            batch_size=_BATCH,
            device=world.device,
            precision=precision,
        )

    def evaluate(
        self, dataset: Dataset, world: World, late: Callable[[], bool] | None = None
    ) -> tuple[dict[str, Any], Evaluation | None]:
        """What run.json shall say of the trained model, and its evaluation on the test split.

        Args:
            late: Whether time is over, so that the images tested by now have to do.
        """
        return {}, None

    @property
    def extra(self) -> list[nn.Module]:
        """What is trained with the model and is not part of it."""
        return [child for name, child in self.named_children() if name != "model"]

    def path_draws(
        self, step: Int64[Tensor, ""], positions: Int64[Tensor, " B"]
    ) -> tuple[Bool[Tensor, " b"], ...]:
        """Which images and views keep each branch of stochastic depth."""
        seeds = (self.path_seed + view * _VIEW for view in range(self.views))
        numbers = [uniform(seed, step, positions, len(self.paths)) for seed in seeds]
        return (torch.cat(numbers) >= self.path_rates).unbind(1)

    def drop_paths(self, kept: tuple[Bool[Tensor, " b"], ...] | None) -> None:
        """Tells stochastic depth what to keep in the next pass; None lets it draw for itself."""
        for number, path in enumerate(self.paths):
            path.chosen = None if kept is None else (kept[number], self.path_shares[number])

    def augmentation(self, config: AugmentConfig, dataset: Dataset, view: int = 0) -> Augmentation:
        """A way to augment this data; different views of an image draw different numbers."""
        mean, std = dataset.statistics
        return Augmentation(
            config,
            image_size=dataset.image_size,
            mean=mean,
            std=std,
            num_classes=len(dataset.classes),
            seed=self.config.seed + view * _VIEW,
        )

    def autocast(self, device: torch.device) -> AbstractContextManager[None]:
        """The number format in which the model computes."""
        if self.precision == "fp32":
            return nullcontext()
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float16
        return torch.autocast(device.type, dtype, cache_enabled=False)


class Classification(Objective):
    """Cross-entropy with soft targets, and dense relative localization if the config wants it."""

    numbers = ("accuracy",)
    decides = "accuracy"
    needs_labels = True

    class_weights: Tensor | None
    pair_seed: Tensor
    drloc_share: Tensor

    def __init__(
        self, model: nn.Module, config: RunConfig, dataset: Dataset, precision: Precision
    ) -> None:
        super().__init__(model, config, dataset, precision)
        loss, labels = config.loss, dataset.labels("train")
        self.mixing = self.augmentation(config.augment, dataset)
        self.plain = self.augmentation(replace(config.augment, mixup=0.0, cutmix=0.0), dataset)
        self.drloc_weight = drloc_weight(loss.drloc, model)
        self.drloc: DRLoc | None = None
        if self.drloc_weight:
            backbone: Any = model
            if loss.drloc_form == "released" and hasattr(backbone, "shows_raw"):
                backbone.shows_raw = True
            dim, grid = feature_shape(model, dataset.image_size, dataset.channels)
            form: dict[str, Any] = RELEASED if loss.drloc_form == "released" else {}
            self.drloc = DRLoc(dim, grid, mode=loss.drloc_mode, pairs=loss.pairs, **form)
        self.register_buffer("drloc_share", torch.tensor(1.0), persistent=False)
        weights = balanced_weights(labels, len(dataset.classes)) if loss.balanced else None
        self.register_buffer("class_weights", weights, persistent=False)
        self.register_buffer("pair_seed", torch.tensor(config.seed + _PAIRS), persistent=False)

    def forward(
        self,
        images: UInt8[Tensor, "B C H W"],
        labels: Int64[Tensor, " B"],
        step: Int64[Tensor, ""],
        positions: Int64[Tensor, " B"],
        *,
        mixed: bool,
    ) -> tuple[Float[Tensor, ""], Int64[Tensor, " 1"]]:
        """The mean loss, and how many images are right (mixed ones: in their larger part)."""
        x, targets = (self.mixing if mixed else self.plain)(images, labels, step, positions)
        with self.autocast(x.device):
            if self.drloc is None:
                logits, distances = self.model(x), None
            else:
                features, logits = features_of(self.model, x)
                distances = self.drloc(features, pairs=self._pairs(step, positions))
        logits = logits.float()
        loss = soft_cross_entropy(logits, targets, self.class_weights)
        if distances is not None:
            loss = loss + self.drloc_share * (self.drloc_weight * distances.float())
        return loss, (logits.argmax(1) == targets.argmax(1)).sum(0, keepdim=True)

    def advance(self, step: int, steps: int) -> None:
        """Sets the share of λ, where it changes; a captured graph reads it anew."""
        if self.drloc is not None and self.config.loss.drloc_form == "released":
            self.drloc_share.fill_(drloc_share(step, steps, self.config.schedule))

    def _pairs(self, step: Tensor, positions: Tensor) -> Int64[Tensor, "2 B m"]:
        """The pairs of tokens whose distances are predicted, drawn per image."""
        assert self.drloc is not None
        numbers = uniform(self.pair_seed, step, positions, 2 * self.drloc.pairs)
        tokens = whole(numbers, self.drloc.grid[0] * self.drloc.grid[1])
        return torch.stack(tokens.chunk(2, 1))

    def validate(self, dataset: Dataset, split: str, world: World) -> dict[str, float]:
        """Log loss and accuracy of the model's logits."""
        logits = self.logits(dataset, dataset.pixels(split), world, self.precision)
        labels = dataset.labels(split)
        accuracy = float((logits.argmax(1) == labels).mean())
        return {"loss": log_loss(softmax(logits), labels), "accuracy": accuracy}

    def evaluate(
        self, dataset: Dataset, world: World, late: Callable[[], bool] | None = None
    ) -> tuple[dict[str, Any], Evaluation | None]:
        """The temperature that fits the validation split, and all numbers of the test split."""
        facts: dict[str, Any] = {}
        if "val" in dataset.splits:
            logits, chosen = self._in_time(dataset, "val", world, late, most=CALIBRATED)
            facts["temperature"] = safe_temperature(logits, dataset.labels("val")[chosen])
        if "test" not in dataset.splits:
            return facts, None
        logits, tested = self._in_time(dataset, "test", world, late)
        count, names = len(dataset.split("test")), dataset.split("test").names
        if len(tested) < count and world.leads:
            logger.warning(
                "time is over: tested on %s of %s images, chosen at random; `smallvit evaluate` "
                "tests on all",
                f"{len(tested):,}",
                f"{count:,}",
            )
        return facts, measure(
            logits,
            dataset.labels("test")[tested],
            dataset.classes,
            split="test",
            temperature=facts.get("temperature", 1.0),
            names=[names[index] for index in tested] if names else names,
        )

    def _in_time(
        self,
        dataset: Dataset,
        split: str,
        world: World,
        late: Callable[[], bool] | None,
        most: int | None = None,
    ) -> tuple[Float32[np.ndarray, "N K"], Int64[np.ndarray, " N"]]:
        """Logits as `evaluate` gives them, of as many images as wanted and in time, and which."""
        pixels = dataset.pixels(split)
        count = len(pixels)
        if late is None and (most is None or count <= most):
            return self.logits(dataset, pixels, world, "fp32"), np.arange(count)
        order = np.random.default_rng(0).permutation(count)[:most]
        parts: list[Float32[np.ndarray, "N K"]] = []
        for start in range(0, len(order), _BATCH * world.size):
            if parts and late is not None and late():
                break
            part = np.array(pixels[order[start : start + _BATCH * world.size]])
            parts.append(self.logits(dataset, part, world, "fp32"))
        logits = np.concatenate(parts)
        chosen = order[: len(logits)]
        by_number = chosen.argsort()
        return logits[by_number], chosen[by_number]

    def logits(
        self,
        dataset: Dataset,
        pixels: UInt8[np.ndarray, "N C H W"],
        world: World,
        precision: Precision,
    ) -> Float32[np.ndarray, "N K"]:
        """The model's logits for images of a dataset, computed by all processes together."""
        own = pixels[world.rank :: world.size]
        share = np.empty((0, len(dataset.classes)), np.float32)
        if len(own):  # there may be fewer images than processes
            share = self.infer(dataset, own, world, precision)
        logits = np.empty((len(pixels), share.shape[1]), np.float32)
        for rank, part in enumerate(world.gather(share)):
            logits[rank :: world.size] = part
        return logits


def find_objective(name: str) -> type[Objective]:
    """The class of an objective.

    Raises:
        ValueError: There is none of that name.
    """
    if name not in OBJECTIVES:
        allowed = f"{', '.join(OBJECTIVES)}{nearest(name, OBJECTIVES)}"
        raise ValueError(f"loss.objective is {name!r}: allowed are {allowed}")
    module, _, kind = OBJECTIVES[name].partition(":")
    objective: type[Objective] = getattr(import_module(module), kind)
    return objective


def make_objective(
    config: RunConfig, model: nn.Module, dataset: Dataset, world: World
) -> Objective:
    """The config's objective for a model, on its device and ready to train.

    Raises:
        ValueError: The device does not have the number format that is wanted.
    """
    device, precision = world.device, config.loop.precision
    if precision == "auto":
        precision = "bf16" if prefers_bf16(device) else "fp32"
    if precision == "fp16" and device.type == "cpu":
        raise ValueError("precision is 'fp16': a CPU has fp32 and bf16")
    if world.size > 1 and device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    objective = find_objective(config.loss.objective)(model, config, dataset, precision).to(device)
    if _prefers_channels_last(model, device):
        model.to(memory_format=torch.channels_last)
    return objective.train()


def drloc_weight(weight: float | Literal["auto"], model: nn.Module) -> float:
    """λ of dense relative localization; "auto" is what its paper has for this kind of model."""
    if weight != "auto":
        return weight
    timms_swin = any("Swin" in kind.__name__ for kind in type(model).__mro__)
    stated: float = getattr(model, "drloc_weight", 0.5 if timms_swin else 0.1)
    return stated


def _prefers_channels_last(model: nn.Module, device: torch.device) -> bool:
    """Convolutional networks on a GPU; on a CPU whatever has a convolution that overlaps."""
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    if device.type == "cpu":
        return any(conv.kernel_size > conv.stride for conv in convs)
    share = sum(conv.weight.numel() for conv in convs)
    return device.type == "cuda" and share > 0.5 * sum(p.numel() for p in model.parameters())
