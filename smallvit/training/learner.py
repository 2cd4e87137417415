"""From bytes and labels to a loss: augmentation, model and losses as one module."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from smallvit.augment import Augmentation, AugmentConfig
from smallvit.augment.randomness import uniform, whole
from smallvit.evaluation.measure import Precision
from smallvit.layers import DropPath
from smallvit.losses import DRLoc
from smallvit.models.features import feature_shape, features_of
from smallvit.runs.config import LossConfig
from smallvit.sizes import Size

# Augmentation draws with the seed itself; each other purpose has its own key beside it.
_PATHS, _PAIRS = 1 << 32, 2 << 32


class Learner(nn.Module):
    """What a step minimises.

    All it draws is a function of (seed, step, place in the global batch), so that neither the
    number of processes nor that of passes changes what is learned.

    Args:
        model: What is trained.
        augment: What happens to images.
        loss: What is added to the cross-entropy.
        image_size: Of the images.
        mean: Of their channels.
        std: Of their channels.
        class_weights: One a class, for the balanced loss.
        seed: The run's.
        precision: Number format of the model's arithmetic.
    """

    class_weights: Tensor | None
    path_seed: Tensor
    pair_seed: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        augment: AugmentConfig,
        loss: LossConfig,
        image_size: Size,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        num_classes: int,
        class_weights: Float[Tensor, " K"] | None,
        seed: int,
        precision: Precision,
    ) -> None:
        super().__init__()
        self.model, self.precision, self.weight = model, precision, loss.drloc
        assert self.weight != "auto"
        facts = {"image_size": image_size, "mean": mean, "std": std, "num_classes": num_classes}
        self.mixing = Augmentation(augment, **facts, seed=seed)  # type: ignore[arg-type]
        unmixed = replace(augment, mixup=0.0, cutmix=0.0)
        self.plain = Augmentation(unmixed, **facts, seed=seed)  # type: ignore[arg-type]
        self.drloc: DRLoc | None = None
        if loss.drloc:
            dim, grid = feature_shape(model, image_size, len(mean))
            self.drloc = DRLoc(dim, grid, mode=loss.drloc_mode, pairs=loss.pairs)
        constants = {
            "class_weights": class_weights,
            "path_seed": torch.tensor(seed + _PATHS),
            "pair_seed": torch.tensor(seed + _PAIRS),
        }
        for name, constant in constants.items():
            self.register_buffer(name, constant, persistent=False)
        self.paths = [m for m in model.modules() if isinstance(m, DropPath) and m.rate]

    @property
    def extra(self) -> list[nn.Module]:
        """What is trained with the model and is not part of it."""
        return [self.drloc] if self.drloc is not None else []

    def draw_paths(self, step: Int64[Tensor, ""], positions: Int64[Tensor, " B"]) -> None:
        """Tells every branch of stochastic depth which images drop it in the next pass."""
        if self.paths:
            numbers = self.path_draws(step, positions)
            for path, draws in zip(self.paths, numbers, strict=True):
                path.draws = draws

    def path_draws(
        self, step: Int64[Tensor, ""], positions: Int64[Tensor, " B"]
    ) -> tuple[Tensor, ...]:
        """One uniform number an image for each branch."""
        return uniform(self.path_seed, step, positions, len(self.paths)).unbind(1)

    def release(self) -> None:
        """Lets the model draw for itself again."""
        for path in self.paths:
            path.draws = None

    def forward(
        self,
        images: UInt8[Tensor, "B C H W"],
        labels: Int64[Tensor, " B"],
        step: Int64[Tensor, ""],
        positions: Int64[Tensor, " B"],
        *,
        mixed: bool,
    ) -> tuple[Float[Tensor, ""], Int64[Tensor, ""]]:
        """The mean loss, and how many images are told right (mixed ones: their larger part)."""
        x, targets = (self.mixing if mixed else self.plain)(images, labels, step, positions)
        with self._autocast(x.device.type):
            if self.drloc is None:
                logits, beside = self.model(x), None
            else:
                features, logits = features_of(self.model, x)
                beside = self.drloc(features, pairs=self._pairs(step, positions))
        logits = logits.float()
        weighted = targets if self.class_weights is None else targets * self.class_weights
        loss = -(weighted * logits.log_softmax(1)).sum(1).mean()
        if beside is not None:
            loss = loss + self.weight * beside.float()
        return loss, (logits.argmax(1) == targets.argmax(1)).sum()

    def _pairs(self, step: Tensor, positions: Tensor) -> Int64[Tensor, "2 B m"]:
        """The pairs of dense relative localization, each image's its own."""
        assert self.drloc is not None
        numbers = uniform(self.pair_seed, step, positions, 2 * self.drloc.pairs)
        tokens = whole(numbers, self.drloc.grid[0] * self.drloc.grid[1])
        return torch.stack(tokens.chunk(2, 1))

    def _autocast(self, device: str) -> AbstractContextManager[None]:
        if self.precision == "fp32":
            return nullcontext()
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float16
        return torch.autocast(device, dtype, cache_enabled=False)
