"""Recipes: functions from facts about the data to a config. Each docstring is a claim."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from smallvit.augment.config import PRESETS, AugmentConfig, PresetName
from smallvit.config_io import leaf
from smallvit.data import Audit, Dataset
from smallvit.models.names import parse_name
from smallvit.runs.config import (
    BUDGET,
    DataConfig,
    LoopConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    ScheduleConfig,
)
from smallvit.sizes import Size
from smallvit.transfer.inputs import Inputs

_SMALL = 40  # pixels up to which images are thumbnails, such as digits and CIFAR's
_OWN_SIZE = 128  # pixels up to which images that share a size keep it
_SIZE = 64  # pixels of all others
_IMBALANCE = 10
_MANY = 100_000  # images from which a set is trained on as ImageNet is

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
        imbalance: Images of the largest class over those of the smallest.
        model: The model that the user requests; None leaves it to the recipe.
        inputs: What pretrained weights expect, if the user requests some that say it.
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
    model: str | None = None
    inputs: Inputs | None = None

    @classmethod
    def of(cls, dataset: Dataset, audit: Audit, device: str, **requested: Any) -> "Facts":
        """From the data, its audit, and what is requested: `model` and `inputs`."""
        counts = np.bincount(dataset.labels("train"), minlength=len(dataset.classes))
        return cls(
            source=_name(dataset),
            images=len(dataset.split("train")),
            classes=len(dataset.classes),
            requested_size=dataset.chosen_size,
            shared_size=dataset.shared_size,
            channels=dataset.channels,
            device=device,
            mirrored=not audit.flips_matter,
            imbalance=float(counts.max() / max(counts.min(), 1)),
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


class Recipe(NamedTuple):
    """How to choose what is not requested, and settings of `data` needed before it is read."""

    choose: Callable[[Facts], Choice]
    data: Mapping[str, Any] = MappingProxyType({})


class Addition(NamedTuple):
    """What one requested value changes in any recipe's choice and in its settings of `data`."""

    adjust: Callable[[Choice, Facts], Choice]
    data: Mapping[str, Any] = MappingProxyType({})


def auto(facts: Facts) -> Choice:
    """Compact transformers with a budget that the device can pay.

    Claim: 750 photos of ten classes from scratch on two CPU cores, 8.5 minutes per fold, 81.6 %
    over five folds, one seed (docs/results.md). What it chooses on a GPU has not been measured yet.
    """
    on_gpu = facts.device != "cpu"
    small = facts.side <= _SMALL
    if on_gpu:
        name = "cct_7_3x1" if small else "cct_7_7x2"
    else:
        name = "cct_2_3x2" if small else "cct_4_7x2"
    budget = 6e6 if on_gpu else (1.8e5 if small else 1.8e5 * min(1.0, (64 / facts.side) ** 2))
    least, most = (60, 600) if on_gpu else (20, 300)
    epochs = float(round(min(max(budget / facts.images, least), most)))
    batch = 32 if facts.images < 8_000 else 64 if facts.images < 20_000 else 128
    batch = min(batch, max(facts.images // 8 * 8, 1))
    steps = epochs * (facts.images // batch)
    config = RunConfig(
        data=DataConfig(image_size=facts.size),
        model=ModelConfig(name=name),
        augment=_augment(facts, batch),
        loss=LossConfig(balanced=facts.imbalance >= _IMBALANCE),
        optim=OptimConfig(
            lr=1e-3, weight_decay=0.05, clip=1.0, ema=0.999 if steps > 20_000 else 0.99
        ),
        schedule=ScheduleConfig(epochs=epochs, warmup=0.1),
        loop=LoopConfig(batch_size=batch),
    )
    reasons = {
        **_size_reason(facts),
        "model.name": f"model {name}: the convolutional tokenizer learns most from few images; "
        f"this size for images of {facts.side} pixels on a {'GPU' if on_gpu else 'CPU'}",
        "schedule.epochs loop.batch_size": f"{epochs:g} epochs of {facts.images:,} images in "
        f"batches of {batch}: small sets need many passes and small batches",
        "augment": _augment_reason(config.augment, facts),
    }
    if config.loss.balanced:
        reasons["loss.balanced"] = (
            f"balanced loss: the largest class has {facts.imbalance:.0f} times the images of the "
            "smallest"
        )
    return Choice(config, reasons)


def _size_reason(facts: Facts, size: Size | None = None) -> dict[str, str]:
    """Why images have the size of the facts, or another that a paper has."""
    if facts.requested_size:
        return {}
    height, width = size or facts.size
    why = "their sizes differ" if facts.shared_size is None else "they are larger than needed"
    if (height, width) != facts.size:
        why = "as in the paper"
    elif facts.size == facts.shared_size:
        why = "the size they have"
    return {"data.image_size": f"images of {height}×{width} pixels: {why}"}


def _augment(facts: Facts, batch: int) -> AugmentConfig:
    """Strong for photos, gentle for grey thumbnails."""
    flip = 0.5 if facts.mirrored else 0.0
    mixes = batch % 8 == 0
    if facts.side <= _SMALL and facts.channels == 1:
        return AugmentConfig(flip=flip, padding=max(1, facts.side // 14), smoothing=0.1)
    return AugmentConfig(
        resized_crop=(0.4, 1.0),
        flip=flip,
        policy="trivial",
        interpolation="bilinear",
        erasing=0.25,
        mixup=0.8 if mixes else 0.0,
        cutmix=1.0 if mixes else 0.0,
        mix_probability=0.5,
        smoothing=0.1,
    )


def _augment_reason(config: AugmentConfig, facts: Facts) -> str:
    parts = ["crops"]
    if config.flip:
        parts.append("mirroring")
    if config.policy != "none":
        parts.append("TrivialAugment")
    if config.mixed:
        parts.append("Mixup and CutMix")
    if config.erasing:
        parts.append("erasing")
    why = "" if facts.mirrored else "; no mirroring, the audit says it matters here"
    return f"augmentation: {', '.join(parts)}{why}"


def spt_lsa(facts: Facts) -> Choice:
    """The recipe of "Vision Transformer for Small-Size Datasets" (2112.13492), as its code runs.

    Its "100 epochs" are 300 passes: three per epoch of its sampler. Claim: vit_9_p4+spt+lsa on
    CIFAR-100, 76.2 % in 9 minutes on one H200, one seed, before the augmentation was as released;
    76.92 % in the paper (docs/results.md).
    """
    name = "vit_9_p4+spt+lsa" if facts.side <= _SMALL else "vit_9_p8+spt+lsa"
    vit = parse_name(facts.model or name).base.removeprefix("timm/").startswith("vit_")
    policies: dict[str, PresetName] = {"svhn": "spt_svhn", "tiny-imagenet": "spt_imagenet"}
    batch = _batch(facts, 128)
    steps = 100 * (3 * facts.images // batch)
    config = RunConfig(
        data=DataConfig(image_size=facts.size),
        model=ModelConfig(name=name),
        augment=PRESETS[policies.get(facts.source, "spt_cifar")],
        optim=OptimConfig(lr=3e-3 if vit else 1e-3, weight_decay=0.05, decay="all"),
        schedule=ScheduleConfig(epochs=300.0, steps=steps, warmup=0.1),
        loop=LoopConfig(batch_size=batch),
    )
    reasons = {
        **_size_reason(facts),
        "schedule.steps loop.batch_size": f"{steps:,} steps of {batch}, {steps * batch:,} images "
        "seen: the paper's 100 epochs are 300 passes",
        "optim.lr": "learning rate 3e-3: the released default of 1e-3 does not reproduce its ViT"
        if vit
        else "learning rate 1e-3, as released; 3e-3 is for ViT alone",
        "optim.decay augment": "weight decay on everything, AutoAugment and erasing as released",
    }
    return Choice(config, _flip_reason(config, facts, reasons))


def _flip_reason(config: RunConfig, facts: Facts, reasons: dict[str, str]) -> dict[str, str]:
    """With a warning where a paper mirrors images that should not be."""
    if config.augment.flip and not facts.mirrored:
        reasons["augment.flip"] = (
            "mirroring as in the paper's code, though the audit says it matters here: "
            "--set augment.flip=0 does without"
        )
    return reasons


class _Compact(NamedTuple):
    """What differs between the published configs of Compact Transformers."""

    model: str
    preset: PresetName
    lr: float
    decay: float = 0.06
    batch: int = 128
    start: float = 1e-6
    warmup: int = 10
    mixed: int = 310


_COMPACT = {
    "CIFAR-10": _Compact("cct_7_3x1", "compact_cifar10", 5.5e-4, start=1e-5, mixed=175),
    "CIFAR-100": _Compact("cct_7_3x1", "compact_cifar100", 6e-4),
    "Flowers-102": _Compact("cct_7_7x2", "compact_flowers", 5e-4, batch=96),
    "ImageNet": _Compact("cct_14_7x2", "compact_imagenet", 5e-4, decay=0.05),
}


def compact(facts: Facts) -> Choice:
    """The recipes of "Escaping the Big Data Paradigm with Compact Transformers" (2104.05704).

    300 epochs and 10 at the lowest rate, as the published configs have them: that of CIFAR for
    thumbnails, of Flowers-102 for larger images, of ImageNet from 100,000 of them. Claim: cct_7_3x1
    on CIFAR-100, 80.92 % in the paper; a 30-epoch run of ours in docs/results.md.
    """
    if facts.side <= _SMALL:
        like = "CIFAR-100" if facts.classes > 10 else "CIFAR-10"
    else:
        like = "ImageNet" if facts.images >= _MANY else "Flowers-102"
    published = _COMPACT[like]
    benchmark = like == "ImageNet" or facts.source.startswith("flowers102")
    size = facts.requested_size or ((224, 224) if benchmark else facts.size)
    if facts.source == "tiny-imagenet":
        size = facts.size
    batch = _batch(facts, published.batch)
    config = RunConfig(
        data=DataConfig(image_size=size),
        model=ModelConfig(name=published.model),
        augment=PRESETS[published.preset],
        optim=OptimConfig(lr=published.lr, weight_decay=published.decay, decay="axes"),
        schedule=ScheduleConfig(
            epochs=310.0,
            warmup=published.warmup / 310,
            cooldown=10 / 310,
            start=published.start,
            end=1e-5,
            whole=True,
            stepped=True,
            mixed=published.mixed / 310,
        ),
        loop=LoopConfig(batch_size=batch),
    )
    images = facts.images // batch * batch * 310
    reasons = {
        **_size_reason(facts, size),
        "schedule.epochs loop.batch_size": f"the paper's {like} recipe: 310 passes, {images:,} "
        "images seen",
    }
    return Choice(config, _flip_reason(config, facts, reasons))


def drloc(facts: Facts) -> Choice:
    """Dense relative localization (2106.03746) as released: for swin_t, t2t_14 and cvt_13.

    224 pixels, batches of 1,024, 101 epochs of a 300-epoch cosine, the loss in its released form
    with λ = 0.5 for Swin and 0.1 for all others. `--drloc` adds our normalised form to any recipe.
    Claim: none of ours yet; swin_t on CIFAR-100 53.3 to 66.2 % in the paper.
    """
    size, batch = facts.requested_size or (224, 224), _batch(facts, 1024)
    scale = batch / 512
    config = RunConfig(
        data=DataConfig(image_size=size),
        model=ModelConfig(name="swin_t"),
        augment=PRESETS["drloc"],
        loss=LossConfig(drloc="auto", drloc_form="released"),
        optim=OptimConfig(lr=5e-4 * scale, weight_decay=0.05, clip=5.0),
        schedule=ScheduleConfig(
            epochs=101.0,
            warmup=20 / 101,
            start=5e-7 * scale,
            end=5e-6 * scale,
            whole=True,
            horizon=300 / 101,
        ),
        loop=LoopConfig(batch_size=batch),
    )
    reasons = {
        **_size_reason(facts, size),
        "loss.drloc loss.drloc_form loss.pairs": "dense relative localization as released: 64 "
        "pairs of tokens per image tell how many tokens apart they are",
        "schedule.epochs schedule.horizon": "the released code ends after 101 of its 300 epochs",
        "optim.lr loop.batch_size": f"learning rate {config.optim.lr:g}: 5e-4 for 512 images, and "
        f"a batch has {batch}",
    }
    return Choice(config, _flip_reason(config, facts, reasons))


def demo(facts: Facts) -> Choice:
    """Fashion-mini, 28 pixels: 85.8 % in 2:11 minutes on two idle CPU cores (docs/results.md)."""
    config = RunConfig(
        data=DataConfig(image_size=facts.size),
        model=ModelConfig(name="cct_2_3x2", options={"dim": 96, "num_heads": 3}),
        augment=AugmentConfig(padding=2, smoothing=0.1),
        optim=OptimConfig(lr=3e-3, weight_decay=0.1, clip=1.0, ema=0.99),
        schedule=ScheduleConfig(epochs=20.0, warmup=0.1),
        loop=LoopConfig(batch_size=32, device="cpu"),
    )
    return Choice(config, {})


def fine_tuned(choice: Choice, facts: Facts) -> Choice:
    """Fewer passes, a lower rate that falls towards the first layers, gentler augmentation."""
    config = choice.config
    epochs = float(round(min(max(2e5 / facts.images, 10), 60)))
    data, why = config.data, dict[str, str]()
    if inputs := facts.inputs:
        size = facts.requested_size or inputs.image_size
        data = replace(data, image_size=size)
        if not facts.requested_size:
            why["data.image_size"] = f"images of {size[0]}×{size[1]} pixels: those of the weights"
        if len(inputs.mean) == facts.channels:
            data = replace(data, mean=inputs.mean, std=inputs.std)
            why["data.mean data.std"] = "normalised as the weights expect it"
    augment = replace(
        config.augment, erasing=0.0, mixup=0.0, cutmix=0.0, policy="none", smoothing=0.1
    )
    tuned = replace(
        config,
        data=data,
        model=ModelConfig(name=""),  # that of the weights
        augment=augment,
        optim=replace(config.optim, lr=3e-4, layer_decay=0.75, ema=0.0),
        schedule=ScheduleConfig(epochs=epochs, warmup=0.1),
    )
    return choice.changed(
        tuned,
        {
            "schedule.epochs": f"{epochs:g} epochs: pretrained weights need fewer passes",
            "optim.lr optim.layer_decay": "learning rate 3e-4, lower by a quarter with every layer "
            "towards the images: pretrained weights change little",
            "augment": _augment_reason(augment, facts),
            **why,
        },
    )


RECIPES: dict[str, Recipe] = {
    "auto": Recipe(auto),
    "spt-lsa": Recipe(spt_lsa, data={"val": 0.0}),  # the papers train on all images
    "compact": Recipe(compact, data={"val": 0.0}),
    "drloc": Recipe(drloc, data={"val": 0.0}),
    "demo": Recipe(demo),
}

ADDITIONS: dict[str, Addition] = {"model.pretrained": Addition(fine_tuned, data={"val": None})}
"""By the config path that is set."""


def _batch(facts: Facts, wanted: int) -> int:
    """The paper's batch, or the largest that a smaller set fills in whole mixing groups."""
    return wanted if facts.images >= wanted else max(8, 8 * math.floor(facts.images / 8))
