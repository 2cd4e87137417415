"""Recipes: functions from facts about the data to a config. Each docstring is a claim."""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from smallvit.augment import PRESETS, AugmentConfig
from smallvit.data import Audit, Dataset, audit
from smallvit.evaluation.evaluate import choose_device
from smallvit.models.registry import parse_name
from smallvit.runs.config import (
    DataConfig,
    DeviceName,
    LoopConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    ScheduleConfig,
)
from smallvit.runs.dataset import open_data
from smallvit.runs.plain import merge

_SMALL = 40  # pixels up to which pictures are thumbnails, such as digits and CIFAR's
_IMBALANCE = 10


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a recipe looks at.

    Attributes:
        source: Name of the data.
        images: Training pictures.
        classes: Classes.
        side: The longer side of the pictures.
        channels: Their channels.
        device: cpu, cuda or mps.
        mirrored: Whether a mirrored picture keeps its class.
        imbalance: Pictures of the largest class over those of the smallest.
    """

    source: str
    images: int
    classes: int
    side: int
    channels: int
    device: str
    mirrored: bool
    imbalance: float

    @classmethod
    def of(cls, dataset: Dataset, found: Audit, device: str) -> "Facts":
        """From the data and its audit."""
        counts = np.bincount(dataset.labels("train"), minlength=len(dataset.classes))
        return cls(
            source=Path(dataset.source).name.lower(),
            images=len(dataset.split("train")),
            classes=len(dataset.classes),
            side=max(dataset.image_size),
            channels=dataset.channels,
            device=device,
            mirrored=not found.flips_matter,
            imbalance=float(counts.max() / max(counts.min(), 1)),
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A config, the data it is for, and why it is as it is.

    Attributes:
        config: What `train` takes.
        dataset: The data, loaded.
        found: Its audit.
        reasons: A line each.
    """

    config: RunConfig
    dataset: Dataset
    found: Audit
    reasons: tuple[str, ...]


Made = tuple[RunConfig, list[str]]


def auto(facts: Facts) -> Made:
    """Compact transformers with a budget that the device can pay.

    Claim: 750 photos of ten classes from scratch on two CPU cores, 8.5 minutes a fold, 81.6 % over
    five folds, one seed (docs/results.md). What it chooses on a GPU has not been measured yet.
    """
    on_gpu = facts.device != "cpu"
    small = facts.side <= _SMALL
    if on_gpu:
        name = "cct_7_3x1" if small else "cct_7_7x2"
    else:
        name = "cct_2_3x2" if small else "cct_4_7x2"
    seen = 6e6 if on_gpu else (1.8e5 if small else 1.8e5 * min(1.0, (64 / facts.side) ** 2))
    least, most = (60, 600) if on_gpu else (20, 300)
    epochs = float(round(min(max(seen / facts.images, least), most)))
    batch = 32 if facts.images < 8_000 else 64 if facts.images < 20_000 else 128
    batch = min(batch, max(facts.images // 8 * 8, 1))
    steps = epochs * (facts.images // batch)
    config = RunConfig(
        model=ModelConfig(name=name),
        augment=_augment(facts, batch),
        loss=LossConfig(balanced=facts.imbalance >= _IMBALANCE),
        optim=OptimConfig(
            lr=1e-3, weight_decay=0.05, clip=1.0, ema=0.999 if steps > 20_000 else 0.99
        ),
        schedule=ScheduleConfig(epochs=epochs, warmup=0.1),
        loop=LoopConfig(batch_size=batch),
    )
    where = "a GPU" if on_gpu else "a CPU"
    reasons = [
        f"model {name}: the convolutional tokenizer learns most from few pictures; this size for "
        f"pictures of {facts.side} pixels on {where}",
        f"{epochs:g} epochs of {facts.images:,} pictures in batches of {batch}: small sets need "
        "many passes and small batches",
        _told_augment(config.augment, facts),
    ]
    if config.loss.balanced:
        reasons.append(
            f"balanced loss: the largest class has {facts.imbalance:.0f} times the pictures of the "
            "smallest"
        )
    return config, reasons


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


def _told_augment(config: AugmentConfig, facts: Facts) -> str:
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


def spt_lsa(facts: Facts) -> Made:
    """The recipe of "Vision Transformer for Small-Size Datasets" (2112.13492), as it really ran.

    Its "100 epochs" are 300 passes: three a sampler's epoch. Claim: vit_9_p4+spt+lsa on CIFAR-100,
    76.2 % in 9 minutes on one H200, one seed; 76.92 % in the paper (docs/results.md).
    """
    name = "vit_9_p4+spt+lsa" if facts.side <= _SMALL else "vit_9_p8+spt+lsa"
    policies = {"svhn": "spt_svhn", "tiny-imagenet": "spt_imagenet"}
    batch = _batch(facts, 128)
    steps = 100 * (3 * facts.images // batch)
    config = RunConfig(
        model=ModelConfig(name=name),
        augment=PRESETS[policies.get(facts.source, "spt_cifar")],
        optim=OptimConfig(lr=3e-3, weight_decay=0.05, decay="all"),
        schedule=ScheduleConfig(epochs=300.0, steps=steps, warmup=0.1),
        loop=LoopConfig(batch_size=batch),
    )
    reasons = [
        f"{steps:,} steps of {batch}, {steps * batch:,} images seen: the paper's 100 epochs are "
        "300 passes",
        "learning rate 3e-3: the released default of 1e-3 does not reproduce its ViT",
        "weight decay on everything, constant stochastic depth, AutoAugment, as released",
    ]
    if config.augment.flip and not facts.mirrored:
        reasons.append("mirroring as in the paper, though the audit says it matters here")
    return config, reasons


def compact(facts: Facts) -> Made:
    """The CIFAR recipe of "Escaping the Big Data Paradigm with Compact Transformers" (2104.05704).

    300 epochs and 10 at the lowest rate. Claim: cct_7_3x1 on CIFAR-100, 80.92 % in the paper; a
    30-epoch run of ours in docs/results.md.
    """
    hundred = facts.classes > 10
    small = facts.side <= _SMALL
    batch = _batch(facts, 128)
    config = RunConfig(
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
    kind = "CIFAR-100" if hundred else "CIFAR-10"
    return config, [f"the paper's {kind} recipe: 310 passes, {images:,} images seen"]


def drloc(facts: Facts) -> Made:
    """Dense relative localization (2106.03746): its loss beside the `auto` recipe's.

    λ is 0.5 for Swin and 0.1 for all others, on targets divided by the grid's side.
    """
    config, reasons = auto(facts)
    return replace(config, loss=replace(config.loss, drloc=0.1)), [
        *reasons,
        "dense relative localization: 64 pairs a picture tell how far apart they are",
    ]


def demo() -> RunConfig:
    """Fashion-mini, 28 pixels: 85.8 % in 2:11 minutes on two idle CPU cores (docs/results.md)."""
    return RunConfig(
        recipe="demo",
        data=DataConfig(source="fashion-mini"),
        model=ModelConfig(name="cct_2_3x2", options={"dim": 96, "num_heads": 3}),
        augment=AugmentConfig(padding=2, smoothing=0.1),
        optim=OptimConfig(lr=3e-3, weight_decay=0.1, clip=1.0, ema=0.99),
        schedule=ScheduleConfig(epochs=20.0, warmup=0.1),
        loop=LoopConfig(batch_size=32, device="cpu"),
    )


RECIPES: dict[str, Callable[[Facts], Made]] = {
    "auto": auto,
    "spt-lsa": spt_lsa,
    "compact": compact,
    "drloc": drloc,
}


def drloc_weight(model: str) -> float:
    """λ for a model: 0.5 for Swin, 0.1 for all others."""
    return 0.5 if "swin" in model.lower() else 0.1


def plan(
    data: str,
    *,
    recipe: str = "auto",
    model: str | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    pretrained: str | None = None,
    drloc: float | bool = False,
    seed: int = 0,
    options: DataConfig | None = None,
    device: DeviceName = "auto",
    changes: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Plan:
    """Looks at the data and decides everything that is not said.

    Args:
        data: Folder, table, .npz file or name.
        recipe: auto, spt-lsa, compact or drloc.
        model: A name instead of the recipe's; "auto" leaves it to the recipe.
        epochs: Passes over the training pictures instead of the recipe's.
        minutes: A budget of time instead.
        pretrained: A run folder, a checkpoint or a name of timm to start from.
        drloc: λ of dense relative localization, or True for the model's usual one.
        seed: Of weights, order and augmentation.
        options: How the data is read; its source is `data`.
        device: Where it will be trained.
        changes: Parts of a config, which go before everything else.
        progress: Whether to show a bar while reading.

    Raises:
        ValueError: Something is unknown or does not fit.
    """
    if recipe not in RECIPES:
        near = difflib.get_close_matches(recipe, RECIPES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no recipe {recipe!r}, but {', '.join(RECIPES)}{hint}")
    if epochs is not None and minutes is not None:
        raise ValueError("give epochs or minutes, not both")
    changes = dict(changes or {})
    wanted = replace(options or DataConfig(), source=data)
    if recipe in ("spt-lsa", "compact") and wanted.val is None and not pretrained:
        wanted = replace(wanted, val=0.0)  # the papers train on all pictures
    wanted = _data_config(wanted, changes)
    dataset = open_data(wanted, progress=progress)
    found = audit(dataset)
    facts = Facts.of(dataset, found, choose_device(device).type)
    config, reasons = RECIPES[recipe](facts)
    if pretrained:
        config, reasons = _fine_tuned(config, facts, pretrained, model)
    elif model and model != "auto":
        config = replace(config, model=ModelConfig(name=model))
        reasons = [line for line in reasons if not line.startswith("model ")]
    if recipe == "drloc" or drloc:
        weight = drloc_weight(config.model.name) if drloc in (True, False) else float(drloc)
        config = replace(config, loss=replace(config.loss, drloc=weight))
    schedule = config.schedule
    if epochs is not None:
        schedule = replace(schedule, epochs=epochs, steps=None)
    if minutes is not None:
        schedule = replace(schedule, minutes=minutes, steps=None)
        reasons.append(f"as many steps as fit into {minutes:g} minutes")
    config = replace(
        config,
        recipe=recipe,
        seed=seed,
        data=wanted,
        schedule=schedule,
        loop=replace(config.loop, device=device),
    )
    config = RunConfig.from_dict(merge(config.to_dict(), changes))
    _check_model(config)
    return Plan(config=config, dataset=dataset, found=found, reasons=tuple(reasons))


def _fine_tuned(config: RunConfig, facts: Facts, source: str, model: str | None) -> Made:
    """Fewer passes, a lower rate that falls towards the first layers, gentler augmentation."""
    epochs = float(round(min(max(2e5 / facts.images, 10), 60)))
    new = replace(
        config,
        model=ModelConfig(name="" if model in (None, "auto") else str(model), pretrained=source),
        augment=replace(
            config.augment, erasing=0.0, mixup=0.0, cutmix=0.0, policy="none", smoothing=0.1
        ),
        optim=replace(config.optim, lr=3e-4, layer_decay=0.75, ema=0.0),
        schedule=ScheduleConfig(epochs=epochs, warmup=0.1),
    )
    return new, [
        f"starts from {source}: {epochs:g} epochs at a learning rate of 3e-4, lower by a quarter "
        "with every layer towards the pictures"
    ]


def _data_config(options: DataConfig, changes: dict[str, Any]) -> DataConfig:
    """The data's part of the changes, before the data is read."""
    part = changes.get("data")
    if not isinstance(part, Mapping):
        return options
    whole = merge(RunConfig(data=options).to_dict(), {"data": part})
    return RunConfig.from_dict(whole).data


def _check_model(config: RunConfig) -> None:
    """Refuses a name that is unknown before anything is decoded."""
    name = config.model.name
    if config.model.pretrained or name.startswith("timm/"):
        return
    from smallvit.interop.baselines import BASELINES

    if name not in BASELINES:
        parse_name(name)


def _batch(facts: Facts, wanted: int) -> int:
    """The paper's batch, or the largest that a smaller set fills in whole mixing groups."""
    return wanted if facts.images >= wanted else max(8, 8 * math.floor(facts.images / 8))
