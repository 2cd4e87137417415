"""From a config and its data to everything the loop needs."""

import copy
import logging
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.data import Dataset, Loader
from smallvit.evaluation.measure import Precision
from smallvit.models.build import describe, make_model
from smallvit.runs.config import RunConfig
from smallvit.training.distributed import World
from smallvit.training.learner import Learner
from smallvit.training.optim import freeze, make_optimiser, parameter_groups
from smallvit.training.step import Stepper
from smallvit.transfer.start import start_from

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Built:
    """A model, how it is described in a run folder, and what happened on the way.

    Attributes:
        about: Name, options and shape: what builds it again.
        notes: A sentence each.
    """

    model: nn.Module
    about: dict[str, object]
    notes: list[str]


def build_model(config: RunConfig, dataset: Dataset) -> Built:
    """The model a config asks for, with its first weights."""
    torch.manual_seed(config.seed)
    shape = {
        "num_classes": len(dataset.classes),
        "image_size": dataset.image_size,
        "in_channels": dataset.channels,
    }
    wanted = config.model
    notes: list[str] = []
    options = dict(wanted.options)
    if wanted.pretrained:
        model, _, notes = start_from(
            wanted.pretrained,
            name=wanted.name or None,
            options=options or None,
            **shape,  # type: ignore[arg-type]
        )
    else:
        model = make_model(wanted.name, options=options, **shape)  # type: ignore[arg-type]
    left = freeze(model, wanted.frozen)
    if wanted.frozen:
        notes.append(f"{left:,} parameters are trained, the first {wanted.frozen} layers are not")
    return Built(model, describe(model), notes)


def drloc_weight(weight: float | Literal["auto"], model: nn.Module) -> float:
    """λ of dense relative localization; "auto" is what its paper has for this kind of model."""
    if weight != "auto":
        return weight
    return 0.5 if any("Swin" in kind.__name__ for kind in type(model).__mro__) else 0.1


def choose_precision(config: RunConfig, device: torch.device) -> Precision:
    """The number format of the model's arithmetic."""
    wanted = config.loop.precision
    if wanted == "auto":
        wanted = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    if wanted == "fp16" and device.type == "cpu":
        raise ValueError("precision is 'fp16': a CPU has fp32 and bf16")
    return wanted


def make_loader(config: RunConfig, dataset: Dataset, world: World) -> Loader:
    """Batches of the training split."""
    loop, group = config.loop, config.augment.mix_group
    passes = world.size * loop.accumulation
    if loop.batch_size % passes or (config.augment.mixed and loop.batch_size // passes % group):
        unit = passes * group if config.augment.mixed else passes
        raise ValueError(
            f"batch_size is {loop.batch_size}: {world.size} processes with {loop.accumulation} "
            f"passes each{f' and mixing groups of {group}' if config.augment.mixed else ''} need a "
            f"multiple of {unit}"
        )
    return Loader(
        dataset.pixels("train", progress=world.leads),
        dataset.labels("train"),
        batch_size=loop.batch_size,
        seed=config.seed,
        rank=world.rank,
        world_size=world.size,
        device=world.device,
        balanced=loop.balanced,
        repeats=loop.repeats,
    )


def make_stepper(config: RunConfig, dataset: Dataset, model: nn.Module, world: World) -> Stepper:
    """The step, on its device."""
    device, loop = world.device, config.loop
    mean, std = dataset.statistics
    precision = choose_precision(config, device)
    if world.size > 1 and device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    learner = Learner(
        model,
        augment=config.augment,
        loss=config.loss,
        image_size=dataset.image_size,
        mean=mean,
        std=std,
        num_classes=len(dataset.classes),
        class_weights=_class_weights(dataset) if config.loss.balanced else None,
        seed=config.seed,
        precision=precision,
    ).to(device)
    if _likes_channels_last(model, device):
        model.to(memory_format=torch.channels_last)
    average = copy.deepcopy(model).requires_grad_(False).eval() if config.optim.ema else None
    on_gpu = device.type == "cuda"
    compiled = on_gpu if loop.compiled is None else loop.compiled
    captured = on_gpu and world.size == 1 and precision != "fp16"
    if loop.captured is not None:
        captured = captured and loop.captured
    return Stepper(
        learner.train(),
        make_optimiser(parameter_groups(model, config.optim, *learner.extra), config.optim),
        average=average,
        optim=config.optim,
        accumulation=loop.accumulation,
        world=world,
        compiled=compiled,
        captured=captured,
        seed=config.seed,
    )


def be_deterministic(config: RunConfig) -> None:
    """The same numbers again, also on a GPU."""
    if config.loop.deterministic:
        import os

        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    else:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True


def fitted(config: RunConfig, dataset: Dataset) -> RunConfig:
    """The config with a batch that is no larger than the training split."""
    count = len(dataset.split("train"))
    batch = config.loop.batch_size
    if batch <= count:
        return config
    group = config.augment.mix_group if config.augment.mixed else 1
    smaller = count // group * group
    if not smaller:
        raise ValueError(
            f"{count} training images are fewer than a mixing group of {group}: switch mixing "
            "off with --set augment.mixup=0 --set augment.cutmix=0"
        )
    logger.warning("batch_size %d is larger than the training split: %d now", batch, smaller)
    return replace(config, loop=replace(config.loop, batch_size=smaller, accumulation=1))


def _class_weights(dataset: Dataset) -> Float[Tensor, " K"]:
    """One over each class's number of images; their mean over all images is 1."""
    counts = np.bincount(dataset.labels("train"), minlength=len(dataset.classes))
    present = np.maximum(counts, 1)
    weights = np.where(counts > 0, counts.sum() / (present * (counts > 0).sum()), 1.0)
    return torch.tensor(weights, dtype=torch.float32)


def _likes_channels_last(model: nn.Module, device: torch.device) -> bool:
    """Convolutional networks on a GPU; on a CPU whatever has a convolution that overlaps."""
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    if device.type == "cpu":
        return any(conv.kernel_size > conv.stride for conv in convs)
    own = sum(conv.weight.numel() for conv in convs)
    return device.type == "cuda" and own > 0.5 * sum(p.numel() for p in model.parameters())
