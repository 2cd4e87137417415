"""What a step minimises: the seam between a model and the loop that trains it.

A new objective is one file with a subclass of `Objective`, and one line in `OBJECTIVES`.
"""

import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from torch import Tensor, nn

from smallvit.augment import Augmentation, AugmentConfig
from smallvit.augment.randomness import uniform
from smallvit.data import Dataset
from smallvit.data.cache import refuse_truncated
from smallvit.devices import prefers_bf16
from smallvit.evaluation.measure import Precision, logits_of
from smallvit.evaluation.results import Evaluation
from smallvit.layers import DropPath
from smallvit.models.features import evaluating
from smallvit.runs.config import RunConfig
from smallvit.text import nearest
from smallvit.training.distributed import World

#: The names of `loss.objective`, and the module and class of each.
OBJECTIVES = {
    "classification": "smallvit.training.classification:Classification",
    "distillation": "smallvit.training.distillation:Distillation",
    "masked": "smallvit.training.masked:MaskedImages",
}

# Augmentation draws with the seed itself; every other purpose, and every further view of an image,
# has a key of its own beside it.
_PATHS, _VIEW = 1 << 32, 1 << 40
BATCH = 256  # images of a pass without gradients


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

    def divides(self, images: int, passes: int) -> bool:
        """Whether a batch can be shown in so many equal passes; mixed images stay together."""
        return images % passes == 0 and images // passes % self.config.augment.group == 0

    def show(self, *batch: Tensor, mixed: bool) -> None:
        """Shows images to the model as `forward` does, for what it remembers of them."""
        self(*batch, mixed=mixed)

    @classmethod
    def settled(
        cls, config: RunConfig, model: nn.Module, dataset: Dataset
    ) -> tuple[RunConfig, list[str]]:
        """The config with what stays open until model and data are known, and notes for the run.

        Raises:
            ValueError: Something that the objective needs is not there, or does not fit.
        """
        if config.loss.teacher and config.loss.objective != "distillation":
            raise ValueError(
                f"loss.objective is {config.loss.objective!r}: a teacher needs 'distillation'"
            )
        return config, []

    def advance(self, step: int, steps: int) -> None:
        """Hears which of how many steps comes next, outside of a compiled graph."""

    def validate(self, dataset: Dataset, split: str, world: World) -> dict[str, float]:
        """Means over a split, of `forward` in evaluation mode with the draws of a fixed step."""
        pixels, labels = dataset.pixels(split), dataset.labels(split)
        step = torch.tensor(0, device=world.device)
        sums = torch.zeros(1 + len(self.numbers), device=world.device)
        with evaluating(self):
            for start in range(world.rank * BATCH, len(pixels), world.size * BATCH):
                batch = slice(start, start + BATCH)
                refuse_truncated(pixels)
                images = torch.from_numpy(np.array(pixels[batch])).to(world.device)
                truth = torch.from_numpy(labels[batch].copy()).to(world.device)
                positions = torch.arange(start, start + len(images), device=world.device)
                loss, numbers = self(images, truth, step, positions, mixed=False)
                sums += torch.cat([loss[None].float() * len(images), numbers.float()])
        means = (world.total(sums) / len(pixels)).tolist()
        return dict(zip(("loss", *self.numbers), means, strict=True))

    def try_inference(
        self, dataset: Dataset, world: World, precision: Precision, count: int
    ) -> int:
        """Shows each process `count` images as a test does; returns how many all of them saw."""
        split = next(name for name in ("test", "val", "train") if name in dataset.splits)
        pixels = dataset.pixels(split)[: count * world.size]
        self.logits(dataset, pixels, world, precision)
        return len(pixels)

    def logits(
        self,
        dataset: Dataset,
        pixels: UInt8[np.ndarray, "N C H W"],
        world: World,
        precision: Precision,
    ) -> Float32[np.ndarray, "N K"]:
        """The model's logits for images of a dataset, computed by all processes together."""
        mean, std = dataset.statistics
        own = pixels[world.rank :: world.size]
        share = np.empty((0, len(dataset.classes)), np.float32)
        if len(own):  # there may be fewer images than processes
            share = logits_of(
                self.model,
                own,
                mean=mean,
                std=std,
                device=world.device,
                precision=precision,
            )
        logits = np.empty((len(pixels), share.shape[1]), np.float32)
        for rank, part in enumerate(world.gather(share)):
            logits[rank :: world.size] = part
        return logits

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

    @property
    def helpers(self) -> list[nn.Module]:
        """Models that take part in a pass, and are neither trained nor saved."""
        return []

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


def unlabelled(config: RunConfig, folder: Path) -> str:
    """Why a run's classes mean nothing, where it has learned without labels; empty where not."""
    if find_objective(config.loss.objective).needs_labels:
        return ""
    return (
        f"{folder} has learned without labels, so that its classes mean nothing: train from it "
        f"with smallvit train DATA --pretrained {shlex.quote(str(folder))}"
    )


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
    for each in (model, *(helper.to(device) for helper in objective.helpers)):
        if _prefers_channels_last(each, device):
            each.to(memory_format=torch.channels_last)
    return objective.train()


def _prefers_channels_last(model: nn.Module, device: torch.device) -> bool:
    """Convolutional networks on a GPU; on a CPU whatever has a convolution that overlaps."""
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    if device.type == "cpu":
        return any(conv.kernel_size > conv.stride for conv in convs)
    share = sum(conv.weight.numel() for conv in convs)
    return device.type == "cuda" and share > 0.5 * sum(p.numel() for p in model.parameters())
