"""Dense relative localization (arXiv 2106.03746): tokens learn where they are in the image.

Pairs of tokens are drawn from the final grid; a small perceptron on both predicts how far apart
they are. It is a training loss: its perceptron belongs to the loss and never to the model.

Deliberate differences from the released code: targets are divided by the grid's side (its
unnormalised ones with `normalised=False`); one hidden layer, as the paper says (two with
`hidden_layers=2`); finer grids are pooled in cells that do not overlap (3×3 at stride 2 with
`overlapping=True`); "ce" and "cbr" have no spare layer and no spare classes (`spare=True`); grids
may be rectangles; draws come from a generator that is passed in. `RELEASED` has these four as in
that code, which also reads Swin's tokens before the final norm (`Swin.shows_raw`) and starts the
perceptron of Swin and T2T like the model's own layers (`narrow=True`).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from smallvit.arguments import Width, check, checked, described
from smallvit.layers import Features

Mode = Literal["l1", "ce", "cbr"]

#: Options of `DRLoc` as the released code has them.
RELEASED = {"normalised": False, "hidden_layers": 2, "overlapping": True, "spare": True}

_FINEST = 7
_VARIANCE_WEIGHT = 1e-3
_VARIANCE_EPS = 1e-8


def pool_stride(side: int) -> int:
    """The whole number nearest to side / 7: finer grids are average-pooled by it."""
    return max(round(side / _FINEST), 1)


class DRLoc(nn.Module):
    """The loss on `Features`.

    Modes: "l1" regresses the two distances; "ce" classifies them, one class per offset, and sums
    both axes; "cbr" regresses the expectation of that classification, each squared error over
    its variance plus a small multiple of the log variance. The minimum is 0 for l1 and ce, and
    2 · 0.001 · ln(1e-8) ≈ −0.037 for cbr, where all predictions are certain and right.

    Args:
        dim: Width of the tokens.
        grid: Rows and columns of tokens.
        mode: How distances are predicted.
        pairs: Pairs drawn per image.
        normalised: Divides l1's targets by the grid's side, as in the paper.
        hidden: Width of the perceptron.
        hidden_layers: Its hidden layers.
        overlapping: Pools finer grids with windows of 2s − 1 at stride s instead of s.
        spare: In "ce" and "cbr", a linear layer more behind the hidden ones, and a class for each
            offset that the grid has before it is pooled.
        narrow: Linear layers start from a truncated normal of 0.02 with zero biases; otherwise as
            PyTorch starts them.
    """

    @checked
    def __init__(
        self,
        dim: Width,
        grid: tuple[int, int],
        *,
        mode: Mode = "l1",
        pairs: Width = 64,
        normalised: bool = True,
        hidden: Width = 512,
        hidden_layers: Width = 1,
        overlapping: bool = False,
        spare: bool = False,
        narrow: bool = False,
    ) -> None:
        super().__init__()
        check("grid", grid, Sequence[Width])
        if len(grid) != 2:
            raise ValueError(f"grid is {grid!r}: expected are rows and columns of tokens")
        grid = (grid[0], grid[1])  # a list, as JSON has it, would equal no grid of features
        self.mode, self.pairs, self.normalised = mode, pairs, normalised
        self.overlapping, self.dim, self.before = overlapping, dim, grid
        self.stride = (pool_stride(grid[0]), pool_stride(grid[1]))
        self.grid = (-(-grid[0] // self.stride[0]), -(-grid[1] // self.stride[1]))
        widths = [2 * dim, *[hidden] * hidden_layers]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        if spare and mode != "l1":
            layers.append(nn.Linear(hidden, hidden))
        self.classes = grid if spare else self.grid
        self.perceptron = nn.Sequential(*layers)
        self.predict = nn.Linear(hidden, 2 if mode == "l1" else sum(self.classes))
        for layer in self.modules() if narrow else ():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def pool(self, features: Features) -> Float[Tensor, "B n D"]:
        """Tokens on a grid of about 7×7 or coarser; a last odd row or column is kept."""
        if not isinstance(features, Features):
            raise TypeError(
                f"features is {described(features)}: expected is what forward_features returns"
            )
        if tuple(features.grid) != self.before:
            raise ValueError(f"made for a grid of {self.before} and got one of {features.grid}")
        count = self.before[0] * self.before[1]
        if tuple(features.tokens.shape[1:]) != (count, self.dim):
            raise ValueError(
                f"made for {count} tokens of width {self.dim} per image and got tokens shaped "
                f"{tuple(features.tokens.shape)}"
            )
        tokens = features.tokens
        if self.stride == (1, 1):
            return tokens
        image = tokens.transpose(1, 2).unflatten(2, self.before)
        around = 1 if self.overlapping else 0
        image = F.avg_pool2d(
            image,
            tuple(s + around * (s - 1) for s in self.stride),
            self.stride,
            padding=tuple(around * (s - 1) for s in self.stride),
            ceil_mode=not self.overlapping,
            count_include_pad=False,
        )
        return image.flatten(2).transpose(1, 2)

    def draw(
        self, batch: int, device: torch.device, generator: torch.Generator | None
    ) -> Int[Tensor, "2 B m"]:
        """The tokens of each pair, uniform over the grid and independent."""
        tokens = self.grid[0] * self.grid[1]
        shape = (2, batch, self.pairs)
        source = generator.device if generator is not None else device
        return torch.randint(tokens, shape, generator=generator, device=source).to(device)

    def targets(self, pairs: Int[Tensor, "2 B m"]) -> Int[Tensor, "B m 2"]:
        """How many rows and columns apart the tokens of each pair are."""
        columns = self.grid[1]
        positions = torch.stack([pairs // columns, pairs % columns], -1)
        return (positions[0] - positions[1]).abs()

    def compare(
        self, prediction: Float[Tensor, "B m c"], target: Int[Tensor, "B m 2"]
    ) -> Float[Tensor, ""]:
        """The loss of predictions, mean over all pairs, in float32 at least."""
        prediction = prediction.to(torch.promote_types(prediction.dtype, torch.float32))
        if self.mode == "l1":
            sides = prediction.new_tensor(self.grid if self.normalised else (1, 1))
            return F.l1_loss(prediction, target / sides)
        axes = zip(prediction.split(self.classes, -1), target.unbind(-1), strict=True)
        measure = F.cross_entropy if self.mode == "ce" else expected_offset
        losses = [measure(logits.flatten(0, 1), offset.flatten()) for logits, offset in axes]
        return losses[0] + losses[1]

    def forward(
        self,
        features: Features,
        generator: torch.Generator | None = None,
        *,
        pairs: Int[Tensor, "2 B m"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of one batch.

        Args:
            features: From `forward_features` of any backbone with a token grid.
            generator: Where the pairs are drawn from; on any device.
            pairs: The tokens of each pair, where they are drawn elsewhere.
        """
        tokens = self.pool(features)
        if pairs is None:
            pairs = self.draw(tokens.shape[0], tokens.device, generator)
        rows = torch.arange(tokens.shape[0], device=tokens.device)[:, None]
        both = torch.cat([tokens[rows, pairs[0]], tokens[rows, pairs[1]]], -1)
        return self.compare(self.predict(self.perceptron(both)), self.targets(pairs))


def expected_offset(logits: Float[Tensor, "P c"], offset: Int[Tensor, " P"]) -> Float[Tensor, ""]:
    """Regression by expectation with a variance term, mean over pairs."""
    chance = logits.softmax(-1)
    offsets = torch.arange(logits.shape[-1], device=logits.device, dtype=chance.dtype)
    mean = (chance * offsets).sum(-1)
    variance = (chance * (offsets - mean[:, None]).square()).sum(-1) + _VARIANCE_EPS
    error = (mean - offset).square()
    return (error / variance + _VARIANCE_WEIGHT * variance.log()).mean()
