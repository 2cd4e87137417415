"""Masked images: hide most of an image, and predict the hidden pixels from what the model sees.

It needs no labels, and any model that shows a grid of tokens. After SimMIM (arXiv 2111.09886): the
whole image, hidden parts included, goes through the model, and one linear layer on the last tokens
predicts pixels. Differences: hidden pixels take the mean colour instead of a learned token, so that
convolutional tokenizers work as well, and the units that are hidden are about an eighth of a side
whatever the grid.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn

from smallvit.augment import Augmentation, AugmentConfig
from smallvit.augment.randomness import uniform
from smallvit.data import Dataset
from smallvit.evaluation.measure import Precision
from smallvit.models.features import feature_shape, features_of
from smallvit.runs.config import RunConfig
from smallvit.sizes import Size
from smallvit.training.objective import Objective

_MASKS = 3 << 32
"""A key beside the seed, apart from those of `smallvit.training.objective`."""

_RATIO = 0.6
_UNITS = 8


class MaskedImages(Objective):
    """The mean absolute error of hidden pixels, in standard deviations of their channel."""

    mask_seed: Tensor

    def __init__(
        self, model: nn.Module, config: RunConfig, dataset: Dataset, precision: Precision
    ) -> None:
        super().__init__(model, config, dataset, precision)
        seen = replace(config.augment, mixup=0.0, cutmix=0.0, erasing=0.0)
        self.view: Augmentation = self.augmentation(seen, dataset)
        self.still: Augmentation = self.augmentation(AugmentConfig(), dataset)
        dim, self.grid = feature_shape(model, dataset.image_size, dataset.channels)
        height, width = dataset.image_size
        self.patch: Size = math.ceil(height / self.grid[0]), math.ceil(width / self.grid[1])
        self.units = (min(_UNITS, self.grid[0]), min(_UNITS, self.grid[1]))
        self.predict = nn.Linear(dim, dataset.channels * self.patch[0] * self.patch[1])
        self.register_buffer("mask_seed", torch.tensor(config.seed + _MASKS), persistent=False)

    def forward(
        self,
        images: UInt8[Tensor, "B C H W"],
        labels: Int64[Tensor, " B"],
        step: Int64[Tensor, ""],
        positions: Int64[Tensor, " B"],
        *,
        mixed: bool,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " 0"]]:
        """The mean loss; there are no other numbers."""
        view = self.view if self.training else self.still
        x, _ = view(images, labels, step, positions)
        hidden = self.hidden(step, positions)
        pixels = _enlarged(hidden, (x.shape[2], x.shape[3]))
        with self.autocast(x.device):
            features, logits = features_of(self.model, x.masked_fill(pixels[:, None], 0.0))
            predicted = self.predict(features.tokens).float()
        error = (predicted - _patches(x, self.grid, self.patch)).abs().mean(2)
        of_cells = _enlarged(hidden, self.grid).flatten(1).float()
        loss = (error * of_cells).sum() / of_cells.sum()
        # The head has no part in this; every process must see that it has not, though.
        return loss + 0.0 * logits.float().sum(), loss.new_zeros(0)

    def hidden(
        self, step: Int64[Tensor, ""], positions: Int64[Tensor, " B"]
    ) -> Bool[Tensor, "B h w"]:
        """Which units of each image are hidden: always the same number, drawn per image."""
        count = self.units[0] * self.units[1]
        draws = uniform(self.mask_seed, step, positions, count)
        rank = draws.argsort(1).argsort(1)
        return (rank < round(_RATIO * count)).view(-1, *self.units)


def _enlarged(mask: Bool[Tensor, "B h w"], size: Size) -> Bool[Tensor, "B H W"]:
    """The mask of units for a finer grid, or for the pixels."""
    rows, columns = (
        torch.arange(side, device=mask.device) * units // side
        for side, units in zip(size, mask.shape[1:], strict=True)
    )
    return mask[:, rows][:, :, columns]


def _patches(
    images: Float[Tensor, "B C H W"], grid: Size, patch: Size
) -> Float[Tensor, "B N values"]:
    """The pixels below each token, row by row; black is added where the grid does not divide."""
    height, width = (cells * side for cells, side in zip(grid, patch, strict=True))
    padded = F.pad(images, (0, width - images.shape[3], 0, height - images.shape[2]))
    cut = padded.unflatten(3, (grid[1], patch[1])).unflatten(2, (grid[0], patch[0]))
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
