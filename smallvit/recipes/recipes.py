"""Recipes: functions from facts about the data to a config. Each docstring is a claim."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from smallvit.augment.config import PRESETS, AugmentConfig, PresetName
from smallvit.config_io import leaf
from smallvit.data import Audit, Dataset
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
from smallvit.text import counted

_SMALL = 40  # pixels up to which images are thumbnails, such as digits and CIFAR's
_OWN_SIZE = 128  # pixels up to which images that share a size keep it
_SIZE = 64  # pixels of all others
_IMBALANCE = 10


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

    @classmethod
    def of(cls, dataset: Dataset, audit: Audit, device: str) -> "Facts":
        """From the data and its audit."""
        counts = np.bincount(dataset.labels("train"), minlength=len(dataset.classes))
        return cls(
            source=Path(dataset.source).name.lower(),
            images=len(dataset.split("train")),
            classes=len(dataset.classes),
            requested_size=dataset.chosen_size,
            shared_size=dataset.shared_size,
            channels=dataset.channels,
            device=device,
            mirrored=not audit.flips_matter,
            imbalance=float(counts.max() / max(counts.min(), 1)),
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
        """The reasons all of whose paths stand; each of `BUDGET` needs all of them to."""
        kept = {}
        for paths, reason in self.reasons.items():
            listed = set(paths.split())
            if all(map(stands, listed | set(BUDGET) if listed & set(BUDGET) else listed)):
                kept[paths] = reason
        return kept


@dataclass(frozen=True)
class Recipe:
    """A way to choose everything that is not given.

    Attributes:
        choose: From facts to a choice.
        data: Settings of `data` that must be known before the data is read.
    """

    choose: Callable[[Facts], Choice]
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Addition:
    """What setting one value changes in the choice of any recipe.

    Attributes:
        adjust: From a recipe's choice to another.
        data: Settings of `data` that go before the recipe's.
    """

    adjust: Callable[[Choice, Facts], Choice]
    data: Mapping[str, Any] = field(default_factory=dict)


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
        "schedule.epochs loop.batch_size": f"{counted(epochs, 'epoch')} of {facts.images:,} images "
        f"in batches of {batch}: small sets need many passes and small batches",
        "augment": _augment_reason(config.augment, facts),
    }
    if config.loss.balanced:
        reasons["loss.balanced"] = (
            f"balanced loss: the largest class has {facts.imbalance:.0f} times the images of the "
            "smallest"
        )
    return Choice(config, reasons)


def _size_reason(facts: Facts) -> dict[str, str]:
    if facts.requested_size:
        return {}
    height, width = facts.size
    why = "their sizes differ" if facts.shared_size is None else "they are larger than needed"
    if facts.size == facts.shared_size:
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
    """The recipe of "Vision Transformer for Small-Size Datasets" (2112.13492), as it really ran.

    Its "100 epochs" are 300 passes: three per epoch of its sampler. Claim: vit_9_p4+spt+lsa on
    CIFAR-100, 76.2 % in 9 minutes on one H200, one seed; 76.92 % in the paper (docs/results.md).
    """
    name = "vit_9_p4+spt+lsa" if facts.side <= _SMALL else "vit_9_p8+spt+lsa"
    policies: dict[str, PresetName] = {"svhn": "spt_svhn", "tiny-imagenet": "spt_imagenet"}
    batch = _batch(facts, 128)
    steps = 100 * (3 * facts.images // batch)
    config = RunConfig(
        data=DataConfig(image_size=facts.size),
        model=ModelConfig(name=name),
        augment=PRESETS[policies.get(facts.source, "spt_cifar")],
        optim=OptimConfig(lr=3e-3, weight_decay=0.05, decay="all"),
        schedule=ScheduleConfig(epochs=300.0, steps=steps, warmup=0.1),
        loop=LoopConfig(batch_size=batch),
    )
    reasons = {
        **_size_reason(facts),
        "schedule.steps loop.batch_size": f"{counted(steps, 'step')} of {batch}, {steps * batch:,} "
        "images seen: the paper's 100 epochs are 300 passes",
        "optim.lr": "learning rate 3e-3: the released default of 1e-3 does not reproduce its ViT",
        "optim.decay model.name augment": "weight decay on everything, constant stochastic depth, "
        "AutoAugment, as released",
    }
    if config.augment.flip and not facts.mirrored:
        reasons["augment.flip"] = "mirroring as in the paper, though the audit says it matters here"
    return Choice(config, reasons)


def compact(facts: Facts) -> Choice:
    """The CIFAR recipe of "Escaping the Big Data Paradigm with Compact Transformers" (2104.05704).

    300 epochs and 10 at the lowest rate. Claim: cct_7_3x1 on CIFAR-100, 80.92 % in the paper; a
    30-epoch run of ours in docs/results.md.
    """
    hundred = facts.classes > 10
    small = facts.side <= _SMALL
    batch = _batch(facts, 128)
    config = RunConfig(
        data=DataConfig(image_size=facts.size),
        model=ModelConfig(name="cct_7_3x1" if small else "cct_7_7x2"),
        augment=PRESETS["compact_cifar100" if hundred else "compact_cifar10"],
        optim=OptimConfig(lr=6e-4 if hundred else 5.5e-4, weight_decay=0.06),
        schedule=ScheduleConfig(
            epochs=310.0,
            warmup=10 / 310,
            cooldown=10 / 310,
            start=1e-6 if hundred else 1e-5,
            end=1e-5,
            mixed=1.0 if hundred else 175 / 310,
        ),
        loop=LoopConfig(batch_size=batch),
    )
    images = facts.images // batch * batch * 310
    reasons = {
        **_size_reason(facts),
        "schedule.epochs loop.batch_size": f"the paper's CIFAR-{100 if hundred else 10} recipe: "
        f"310 passes, {images:,} images seen",
    }
    return Choice(config, reasons)


def drloc(facts: Facts) -> Choice:
    """Dense relative localization (2106.03746): its loss beside the `auto` recipe's.

    λ is 0.5 for Swin and 0.1 for all others, on targets divided by the grid's side.
    """
    choice = auto(facts)
    loss = replace(choice.config.loss, drloc="auto")
    reason = "dense relative localization: 64 pairs of tokens per image tell how far apart they are"
    return choice.changed(replace(choice.config, loss=loss), {"loss.drloc loss.pairs": reason})


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
    augment = replace(
        config.augment, erasing=0.0, mixup=0.0, cutmix=0.0, policy="none", smoothing=0.1
    )
    tuned = replace(
        config,
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
        },
    )


RECIPES: dict[str, Recipe] = {
    "auto": Recipe(auto),
    "spt-lsa": Recipe(spt_lsa, data={"val": 0.0}),  # the papers train on all images
    "compact": Recipe(compact, data={"val": 0.0}),
    "drloc": Recipe(drloc),
    "demo": Recipe(demo),
}

ADDITIONS: dict[str, Addition] = {"model.pretrained": Addition(fine_tuned, data={"val": None})}
"""By the config path that is set."""


def _batch(facts: Facts, wanted: int) -> int:
    """The paper's batch, or the largest that a smaller set fills in whole mixing groups."""
    return wanted if facts.images >= wanted else max(8, 8 * math.floor(facts.images / 8))
