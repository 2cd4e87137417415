"""The objective of labelled images: cross-entropy, and dense relative localization."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, UInt8
from torch import Tensor, nn

from smallvit.augment.randomness import uniform, whole
from smallvit.data import Dataset
from smallvit.evaluation.calibration import safe_temperature, softmax
from smallvit.evaluation.measure import Precision, measure
from smallvit.evaluation.metrics import log_loss
from smallvit.evaluation.results import Evaluation
from smallvit.losses import DRLoc, balanced_weights, soft_cross_entropy
from smallvit.losses.drloc import RELEASED
from smallvit.models.features import feature_shape, features_of
from smallvit.runs.config import RunConfig
from smallvit.training.distributed import World
from smallvit.training.objective import BATCH, Objective
from smallvit.training.optim import drloc_share

logger = logging.getLogger(__name__)

_PAIRS = 2 << 32
"""A key beside the seed, apart from those of `smallvit.training.objective`."""
_PARTS = 20  # of a test, at least, after each of which it may be over
CALIBRATED = 2_000  # validation images that are enough to fit a temperature


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
            form: dict[str, Any] = {}
            if loss.drloc_form == "released":
                form = {**RELEASED, "narrow": getattr(backbone, "drloc_narrow", False)}
                if hasattr(backbone, "shows_raw"):
                    backbone.shows_raw = True
            dim, grid = feature_shape(model, dataset.image_size, dataset.channels)
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
        loss = self.compare(x, logits, targets)
        if distances is not None:
            loss = loss + self.drloc_share * (self.drloc_weight * distances.float())
        return loss, (logits.argmax(1) == targets.argmax(1)).sum(0, keepdim=True)

    def show(self, *batch: Tensor, mixed: bool) -> None:
        """Shows augmented images to the model, and computes no loss."""
        x, _ = (self.mixing if mixed else self.plain)(*batch)
        with self.autocast(x.device):
            self.model(x)

    def compare(
        self,
        images: Float[Tensor, "B C H W"],
        logits: Float[Tensor, "B K"],
        targets: Float[Tensor, "B K"],
    ) -> Float[Tensor, ""]:
        """How far the logits of augmented images are from their targets."""
        return soft_cross_entropy(logits, targets, self.class_weights)

    @classmethod
    def settled(
        cls, config: RunConfig, model: nn.Module, dataset: Dataset
    ) -> tuple[RunConfig, list[str]]:
        """With λ of dense relative localization for this model."""
        config, notes = super().settled(config, model, dataset)
        weight = drloc_weight(config.loss.drloc, model)
        return replace(config, loss=replace(config.loss, drloc=weight)), notes

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
        size = world.size * BATCH
        if late is not None:
            size = min(size, world.size * math.ceil(len(order) / (world.size * _PARTS)))
        for start in range(0, len(order), size):
            if parts and late is not None and late():
                break
            part = np.array(pixels[order[start : start + size]])
            parts.append(self.logits(dataset, part, world, "fp32"))
        logits = np.concatenate(parts)
        chosen = order[: len(logits)]
        by_number = chosen.argsort()
        return logits[by_number], chosen[by_number]


def drloc_weight(weight: float | Literal["auto"], model: nn.Module) -> float:
    """λ of dense relative localization; "auto" is what its paper has for this kind of model."""
    if weight != "auto":
        return weight
    timms_swin = any("Swin" in kind.__name__ for kind in type(model).__mro__)
    stated: float = getattr(model, "drloc_weight", 0.5 if timms_swin else 0.1)
    return stated
