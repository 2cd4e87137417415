"""Dense relative localization (arXiv 2106.03746): a loss that teaches tokens their positions.

It is a training loss: its perceptron belongs to the loss and never to the model. `RELEASED` has the
options with which the released code differs from the paper.
"""

from typing import Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from smallvit.flax.initial import UNIFORM, uniform_bias
from smallvit.flax.models import Features

Mode = Literal["l1", "ce", "cbr"]
Grid = tuple[int, int]

#: Options of `DRLoc` as the released code has them.
RELEASED = {"normalised": False, "hidden_layers": 2, "overlapping": True, "spare": True}

_FINEST = 7
_VARIANCE_WEIGHT = 1e-3
_VARIANCE_EPS = 1e-8


def pool_grid(
    features: Features, *, overlapping: bool = False
) -> tuple[Float[Array, "B n D"], Grid]:
    """Tokens on a grid of about 7×7 or coarser, and that grid; a last odd row or column is kept.

    Cells of s tokens, or overlapping ones of 2s − 1 that are s apart.
    """
    batch, _, dim = features.tokens.shape
    strides = tuple(max(round(side / _FINEST), 1) for side in features.grid)
    window = tuple(2 * step - 1 for step in strides) if overlapping else strides
    padding = [
        (step - 1, step - 1) if overlapping else (0, -side % step)
        for side, step in zip(features.grid, strides, strict=True)
    ]
    image = features.tokens.reshape(batch, *features.grid, dim)
    image = nn.avg_pool(image, window, strides, padding, count_include_pad=False)
    _, rows, columns, _ = image.shape
    return image.reshape(batch, -1, dim), (rows, columns)


class DRLoc(nn.Module):
    """The loss on `Features`.

    Modes: "l1" regresses the two distances; "ce" classifies them, one class an offset, and sums
    both axes; "cbr" regresses the expectation of that classification, each squared error over
    its variance plus a small multiple of the log variance.

    Attributes:
        mode: How distances are predicted.
        pairs: Pairs drawn per image.
        normalised: Divides l1's targets by the grid's side, as in the paper.
        hidden: Width of the perceptron.
        hidden_layers: Its hidden layers.
        overlapping: Pools finer grids with windows of 2s − 1 at stride s instead of s.
        spare: In "ce" and "cbr", a linear layer more behind the hidden ones, and a class for each
            offset that the grid has before it is pooled.
    """

    mode: Mode = "l1"
    pairs: int = 64
    normalised: bool = True
    hidden: int = 512
    hidden_layers: int = 1
    overlapping: bool = False
    spare: bool = False

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode is {self.mode!r}: allowed are {', '.join(get_args(Mode))}")
        if self.pairs < 1 or self.hidden_layers < 1:
            raise ValueError(
                f"pairs {self.pairs} and hidden_layers {self.hidden_layers} must be at least 1"
            )
        super().__post_init__()

    @nn.compact
    def __call__(
        self, features: Features, key: Array, pairs: Int[Array, "2 B m"] | None = None
    ) -> Float[Array, ""]:
        """The loss of one batch, mean over all pairs.

        Args:
            features: From a model called with `method="features"`.
            key: Draws the pairs, uniform over the grid and independent.
            pairs: The tokens of each pair, instead of drawing them.
        """
        tokens, grid = pool_grid(features, overlapping=self.overlapping)
        batch, count, _ = tokens.shape
        if pairs is None:
            pairs = jax.random.randint(key, (2, batch, self.pairs), 0, count)
        images = jnp.arange(batch)[:, None]
        x = jnp.concatenate([tokens[images, pairs[0]], tokens[images, pairs[1]]], -1)
        for layer in range(self.hidden_layers):
            # Every second module of PyTorch's sequence is the activation.
            x = nn.relu(_dense(x, self.hidden, f"perceptron_{2 * layer}"))
        if self.spare and self.mode != "l1":
            x = _dense(x, self.hidden, f"perceptron_{2 * self.hidden_layers}")
        classes = features.grid if self.spare else grid
        prediction = _dense(x, 2 if self.mode == "l1" else sum(classes), "predict")

        spot = jnp.stack(jnp.divmod(pairs, grid[1]), -1)
        target = jnp.abs(spot[0] - spot[1])
        if self.mode == "l1":
            sides = jnp.asarray(grid) if self.normalised else 1
            return jnp.abs(prediction - target / sides).mean()
        measure = _cross_entropy if self.mode == "ce" else _expected_offset
        rows, columns = jnp.split(prediction, [classes[0]], -1)
        return measure(rows, target[..., 0]).mean() + measure(columns, target[..., 1]).mean()


def _dense(x: Float[Array, "B m d"], width: int, name: str) -> Float[Array, "B m w"]:
    """A linear layer that starts as PyTorch's do."""
    bias = uniform_bias(x.shape[-1])
    return nn.Dense(width, name=name, kernel_init=UNIFORM, bias_init=bias)(x)


def _cross_entropy(logits: Float[Array, "B m c"], offset: Int[Array, "B m"]) -> Float[Array, "B m"]:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), offset[..., None], -1)[..., 0]


def _expected_offset(
    logits: Float[Array, "B m c"], offset: Int[Array, "B m"]
) -> Float[Array, "B m"]:
    """Regression by expectation with a variance term."""
    chance = jax.nn.softmax(logits)
    distance = jnp.arange(logits.shape[-1])
    mean = (chance * distance).sum(-1)
    variance = (chance * (distance - mean[..., None]) ** 2).sum(-1) + _VARIANCE_EPS
    return (mean - offset) ** 2 / variance + _VARIANCE_WEIGHT * jnp.log(variance)
