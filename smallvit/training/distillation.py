"""Distillation: labels, and what a trained model says of the same augmented images.

After "Distilling the Knowledge in a Neural Network" (arXiv 1503.02531). The teacher sees every
image exactly as the model does, mixed and erased, as in "A good teacher is patient and consistent"
(arXiv 2106.05237).
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.data import Dataset
from smallvit.evaluation.measure import Precision
from smallvit.runs.config import LossConfig, RunConfig
from smallvit.runs.folder import Run
from smallvit.runs.places import WEIGHTS
from smallvit.text import some
from smallvit.training.classification import Classification
from smallvit.training.objective import find_objective


class _Held:
    """Holds a model that is no part of the module it belongs to: neither trained nor saved.

    Copies of the module share it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Held":
        return self


class Distillation(Classification):
    """The loss of the labels, and the divergence from a teacher's probabilities, both softened."""

    scale: Tensor
    shift: Tensor

    def __init__(
        self, model: nn.Module, config: RunConfig, dataset: Dataset, precision: Precision
    ) -> None:
        super().__init__(model, config, dataset, precision)
        teacher = _open_teacher(config.loss, dataset)
        self.teacher = _Held(teacher.model().requires_grad_(False))
        self.teacher_size = teacher.image_size
        # From this model's normalisation to the teacher's.
        (mean, std), card = dataset.statistics, teacher.card
        means, stds = torch.tensor([mean, card.mean]), torch.tensor([std, card.std])
        self.register_buffer("scale", (stds[0] / stds[1])[:, None, None], persistent=False)
        shift = ((means[0] - means[1]) / stds[1])[:, None, None]
        self.register_buffer("shift", shift, persistent=False)

    @property
    def helpers(self) -> list[nn.Module]:
        """The teacher."""
        return [self.teacher.model]

    def compare(
        self,
        images: Float[Tensor, "B C H W"],
        logits: Float[Tensor, "B K"],
        targets: Float[Tensor, "B K"],
    ) -> Float[Tensor, ""]:
        """The labels' part of the loss and the teacher's."""
        loss = self.config.loss
        softness, share = loss.teacher_temperature, loss.teacher_share
        with torch.no_grad():
            taught = self.taught(images)
        logs = [(each / softness).log_softmax(1) for each in (logits, taught)]
        # The square keeps the size of the gradient, whatever the temperature.
        told = softness**2 * F.kl_div(logs[0], logs[1], reduction="batchmean", log_target=True)
        return (1 - share) * super().compare(images, logits, targets) + share * told

    def taught(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """What the teacher says of augmented images, normalised and sized as it knows them."""
        x = images * self.scale + self.shift
        if (x.shape[2], x.shape[3]) != self.teacher_size:
            x = F.interpolate(x, self.teacher_size, mode="bilinear", antialias=True)
        with self.autocast(x.device):
            logits: Tensor = self.teacher.model(x)
        return logits.float()

    @classmethod
    def settled(
        cls, config: RunConfig, model: nn.Module, dataset: Dataset
    ) -> tuple[RunConfig, list[str]]:
        """With the hash of the teacher's weights, so that no other can take its place."""
        config, notes = super().settled(config, model, dataset)
        teacher = _open_teacher(config.loss, dataset)
        folder = str(teacher.folder.resolve())
        loss = replace(config.loss, teacher=folder, teacher_hash=_hash_of(teacher))
        name = teacher.info["model"]["name"]
        notes = [*notes, f"{name} of {teacher.folder} teaches, and stays as it is"]
        # That it never saw the images which are tested here is certain if it was tested on them.
        if dataset.tested != teacher.info["data"].get("tested") and dataset.tested:
            notes.append(
                "the teacher was tested on other images: if it was trained on some that are tested "
                "here, the accuracy is too high"
            )
        return replace(config, loss=loss), notes


def _open_teacher(loss: LossConfig, dataset: Dataset) -> Run:
    """The teacher's run.

    Raises:
        ValueError: There is none, or it cannot teach here.
    """
    if not loss.teacher:
        raise ValueError(
            "loss.objective is 'distillation': name a finished run with --teacher, or take "
            "'classification'"
        )
    run = Run.open(loss.teacher)
    if not run.finished:
        raise ValueError(f"{run.folder} cannot teach: it is not finished")
    if not find_objective(run.config.loss.objective).needs_labels:
        raise ValueError(f"{run.folder} cannot teach: it was trained without labels")
    if run.image_size != tuple(run.info["model"].get("image_size", ())):
        raise ValueError(f"{run.folder} is damaged: its model has another image size")
    if run.classes != dataset.classes:
        differ = [name for name in dataset.classes if name not in run.classes]
        what = f"it does not know {some(differ)}" if differ else "its classes are not these"
        raise ValueError(f"{run.folder} cannot teach here: {what}")
    if run.card.channels != dataset.channels:
        raise ValueError(
            f"{run.folder} cannot teach here: its images have {run.card.channels} channels, and "
            f"these {dataset.channels}"
        )
    if loss.teacher_hash and _hash_of(run) != loss.teacher_hash:
        raise ValueError(
            f"{run.folder} is not the teacher that this run began with: its weights are others"
        )
    return run


def _hash_of(teacher: Run) -> str:
    """Of its weights."""
    if WEIGHTS not in (hashes := teacher.hashed(WEIGHTS)):
        raise ValueError(f"{teacher.folder} is damaged: it has no {WEIGHTS}")
    return hashes[WEIGHTS]
