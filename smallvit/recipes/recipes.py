"""Recipes: functions from facts about the data to a config. Each docstring is a claim."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from smallvit.augment.config import PRESETS, PresetName
from smallvit.models.names import parse_name
from smallvit.recipes.auto import auto
from smallvit.recipes.facts import SMALL, Choice, Facts, augment_reason, size_reason
from smallvit.runs.changes import layered
from smallvit.runs.config import (
    DataConfig,
    LoopConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    ScheduleConfig,
)


class Recipe(NamedTuple):
    """How to choose what is not requested, and settings of `data` needed before it is read."""

    choose: Callable[[Facts], Choice]
    data: Mapping[str, Any] = MappingProxyType({})
    timed: bool = False  # whether it plans with the device's speed


class Addition(NamedTuple):
    """What one requested value changes in any recipe's choice and in its settings of `data`."""

    adjust: Callable[[Choice, Facts], Choice]
    data: Mapping[str, Any] = MappingProxyType({})
    timed: bool = False  # whether the recipe may still plan with the device's speed


_MANY = 100_000  # images from which a set is trained on as ImageNet is


def spt_lsa(facts: Facts) -> Choice:
    """The recipe of "Vision Transformer for Small-Size Datasets" (2112.13492), as its code runs.

    Its "100 epochs" are 300 passes: three per epoch of its sampler. Claim: vit_9_p4+spt+lsa on
    CIFAR-100, 76.2 % in 9 minutes on one H200, one seed, before all of it was as released;
    76.92 % in the paper (docs/results.md).
    """
    name = "vit_9_p4+spt+lsa" if facts.side <= SMALL else "vit_9_p8+spt+lsa"
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
        **size_reason(facts),
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
    # Eight processes with 128 images each.
    "ImageNet": _Compact("cct_14_7x2", "compact_imagenet", 5e-4, decay=0.05, batch=1024),
}


def compact(facts: Facts) -> Choice:
    """The recipes of "Escaping the Big Data Paradigm with Compact Transformers" (2104.05704).

    300 epochs and 10 at the lowest rate, as the published configs have them: that of CIFAR for
    thumbnails, of Flowers-102 for larger images, of ImageNet from 100,000 of them. Claim: cct_7_3x1
    on CIFAR-100, 80.5 % in 21 minutes on one H200, one seed, before all of it was as released;
    80.92 % in the paper (docs/results.md).
    """
    if facts.side <= SMALL:
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
        **size_reason(facts, size),
        "schedule.epochs loop.batch_size": f"the paper's {like} recipe: 310 passes, {images:,} "
        "images seen",
    }
    return Choice(config, _flip_reason(config, facts, reasons))


_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def drloc(facts: Facts) -> Choice:
    """Dense relative localization (2106.03746) as released: for swin_t, t2t_14 and cvt_13.

    224 pixels, batches of 1,024, 101 epochs of a 300-epoch cosine, the loss in its released form
    with λ = 0.5 for Swin and 0.1 for all others. `--drloc` adds our normalised form to any recipe.
    Claim: none of ours yet; swin_t on CIFAR-100 53.3 to 66.2 % in the paper.
    """
    size, batch = facts.requested_size or (224, 224), facts.batch or _batch(facts, 1024)
    scale = batch / 512
    mean, std = _IMAGENET if facts.channels == 3 else (None, None)
    # Batch norm sees the 128 images of one of its processes.
    has_batch_norm = (facts.model or "").startswith("cvt_")
    parts = batch // 128 if has_batch_norm and batch % 128 == 0 else 1
    config = RunConfig(
        data=DataConfig(image_size=size, fit="imagenet", mean=mean, std=std),
        model=ModelConfig(name="swin_t"),
        augment=PRESETS["drloc"],
        loss=LossConfig(drloc="auto", drloc_form="released"),
        optim=OptimConfig(lr=5e-4 * scale, weight_decay=0.05, decay="drloc", clip=5.0),
        schedule=ScheduleConfig(
            epochs=101.0,
            warmup=20 / 101,
            start=5e-7 * scale,
            end=5e-6 * scale,
            whole=True,
            horizon=300 / 101,
            late=True,
        ),
        loop=LoopConfig(batch_size=batch, accumulation=parts),
    )
    reasons = {
        **size_reason(facts, size),
        "data.fit": "tests enlarge images to 8/7 of their size and take the middle, as released",
        "loss.drloc loss.drloc_form loss.pairs": "dense relative localization as released: 64 "
        "pairs of tokens per image tell how many tokens apart they are",
        "schedule.epochs schedule.horizon": "the released code ends after 101 of its 300 epochs",
        "optim.lr loop.batch_size": f"learning rate {config.optim.lr:g}: 5e-4 for 512 images, and "
        f"a batch has {batch}",
    }
    if mean:
        reasons["data.mean data.std"] = "normalised with ImageNet's mean and deviation, as released"
    if parts > 1:
        reasons["loop.accumulation"] = (
            f"{parts} passes per step: batch norm sees {batch // parts} images, as released"
        )
    return Choice(config, _flip_reason(config, facts, reasons))


def demo(facts: Facts) -> Choice:
    """What `auto` chooses for Fashion-mini and 25 passes, on any CPU alike (docs/results.md)."""
    config = auto(replace(facts, device="cpu", epochs=25.0, steps=None, minutes=None)).config
    return Choice(replace(config, loop=replace(config.loop, device="cpu")), {})


def fine_tuned(choice: Choice, facts: Facts) -> Choice:
    """Fewer passes, a lower rate that falls towards the first layers, gentler augmentation.

    What was learned without labels is changed as much as from scratch: gently tuned it was 11
    points worse (docs/experiments.md).
    """
    config = choice.config
    data, why = config.data, dict[str, str]()
    if inputs := facts.inputs:
        size = facts.requested_size or inputs.image_size
        data = replace(data, image_size=size)
        if not facts.requested_size:
            why["data.image_size"] = f"images of {size[0]}×{size[1]} pixels: those of the weights"
        if len(inputs.mean) == facts.channels:
            data = replace(data, mean=inputs.mean, std=inputs.std)
            why["data.mean data.std"] = "normalised as the weights expect it"
    if facts.unlabelled_start:
        why["model.name"] = f"model {facts.model}: that of the start, which then learns as usual"
        model = ModelConfig(name="")
        return choice.changed(replace(config, data=data, model=model), why)
    epochs = float(round(min(max(2e5 / facts.images, 10), 60)))
    augment = replace(
        config.augment, erasing=0.0, mixup=0.0, cutmix=0.0, policy="none", smoothing=0.1
    )
    tuned = replace(
        config,
        data=data,
        model=ModelConfig(name=""),  # that of the weights
        augment=augment,
        optim=OptimConfig(lr=3e-4, weight_decay=0.05, clip=1.0, layer_decay=0.75),
        schedule=ScheduleConfig(epochs=epochs, warmup=0.1),
    )
    return choice.changed(
        tuned,
        {
            "schedule.epochs": f"{epochs:g} epochs: pretrained weights need fewer passes",
            "optim.lr optim.layer_decay": "learning rate 3e-4, lower by a quarter with every layer "
            "towards the images: pretrained weights change little",
            "augment": augment_reason(augment, facts),
            **why,
        },
    )


def taught(choice: Choice, facts: Facts) -> Choice:
    """The same, with a teacher beside the labels."""
    loss = replace(choice.config.loss, objective="distillation")
    reason = "a trained model teaches this one: what it says counts beside the labels"
    return choice.changed(replace(choice.config, loss=loss), {"loss.objective": reason})


def pretraining(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run that learns from images alone, labelled or not; see `MaskedImages`.

    Crops and mirroring are the recipe's. What the recipe adds for labels (policies, mixing,
    smoothing) is left out, and so is the average of weights.
    """
    gentle = {"policy": "none", "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0, "smoothing": 0.0}
    start = {
        "loss": {"objective": "masked"},
        "data": {"unlabelled": True},
        "augment": gentle,
        "optim": {"ema": 0.0},
    }
    return layered(start, settings)


RECIPES: dict[str, Recipe] = {
    "auto": Recipe(auto, timed=True),
    "spt-lsa": Recipe(spt_lsa, data={"val": 0.0}),  # the papers train on all images
    "compact": Recipe(compact, data={"val": 0.0}),
    "drloc": Recipe(drloc, data={"val": 0.0}),
    "demo": Recipe(demo),
}

ADDITIONS: dict[str, Addition] = {
    "model.pretrained": Addition(fine_tuned, data={"val": None}),
    "loss.teacher": Addition(taught, timed=True),
}
"""By the config path that is set."""


def _batch(facts: Facts, wanted: int) -> int:
    """The paper's batch, or the largest that a smaller set fills in whole mixing groups."""
    return wanted if facts.images >= wanted else max(8, 8 * math.floor(facts.images / 8))
