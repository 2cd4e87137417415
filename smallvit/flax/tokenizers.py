"""From images to tokens: patches, shifted patches (SPT) and convolutions (CCT)."""

import math
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from smallvit.flax.blocks import LayerNorm
from smallvit.flax.initial import KAIMING, UNIFORM, XAVIER, Init, Initializer, uniform_bias

Directions = Literal["diagonal", "cardinal", "all"]

# Signs of (row, column): the view at (r, c) shows the image at (r + row·s, c + column·s).
_DIAGONAL = ((-1, -1), (-1, 1), (1, -1), (1, 1))
_CARDINAL = ((-1, 0), (1, 0), (0, -1), (0, 1))
_OFFSETS = {"diagonal": _DIAGONAL, "cardinal": _CARDINAL, "all": _DIAGONAL + _CARDINAL}


def shift_pixels(shift: float, patch_size: int) -> int:
    """A shift in pixels from a fraction of the patch, rounded down; refuses less than one."""
    pixels = math.floor(shift * patch_size)
    if pixels < 1:
        raise ValueError(
            f"shift {shift} of a patch of {patch_size} pixels is less than one pixel; "
            f"use a shift of at least {1 / patch_size:g} or larger patches"
        )
    return pixels


def shifted_stack(
    images: Float[Array, "B H W C"], shift: int, directions: Directions = "diagonal"
) -> Float[Array, "B H W VC"]:
    """The image and its shifted copies, side by side on the channel axis, original first.

    The diagonal copies follow in the order x[r−s, c−s], x[r−s, c+s], x[r+s, c−s], x[r+s, c+s],
    the cardinal ones in the order x[r−s, c], x[r+s, c], x[r, c−s], x[r, c+s]; zeros move in.
    """
    if directions not in _OFFSETS:
        raise ValueError(f"directions is {directions!r}: allowed are {', '.join(_OFFSETS)}")
    _, height, width, _ = images.shape
    padded = jnp.pad(images, ((0, 0), (shift, shift), (shift, shift), (0, 0)))
    corners = [((row + 1) * shift, (col + 1) * shift) for row, col in _OFFSETS[directions]]
    moved = [padded[:, r : r + height, c : c + width] for r, c in corners]
    return jnp.concatenate([images, *moved], -1)


def _row_by_row(x: Float[Array, "B h w D"]) -> Float[Array, "B N D"]:
    """A map as tokens. No size is left open: a batch may be empty, or unknown in `jax.export`."""
    batch, rows, columns, dim = x.shape
    return x.reshape(batch, rows * columns, dim)


class PatchTokenizer(nn.Module):
    """Non-overlapping patches through one linear layer (stored as a convolution).

    Attributes:
        dim: Width of the tokens.
        patch_size: Side of a patch.
        start: How it starts: xavier-normal as a linear layer with bias zero, kaiming-normal
            ("compact"), or as PyTorch starts a convolution.
        dtype: Data type of the computation.
    """

    dim: int
    patch_size: int
    start: Init = "xavier"
    dtype: Any = None

    @nn.compact
    def __call__(self, images: Float[Array, "B H W C"]) -> Float[Array, "B N D"]:
        """Returns one token per patch, row by row."""
        p = self.patch_size
        fan_in = p * p * images.shape[-1]
        proj = nn.Conv(
            self.dim,
            (p, p),
            (p, p),
            padding="VALID",
            kernel_init={
                "xavier": nn.initializers.normal(math.sqrt(2 / (fan_in + self.dim))),
                "compact": KAIMING,
                "trunc": UNIFORM,
            }[self.start],
            bias_init=nn.initializers.zeros if self.start == "xavier" else uniform_bias(fan_in),
            dtype=self.dtype,
            name="proj",
        )
        return _row_by_row(proj(images))


class SPT(nn.Module):
    """Shifted Patch Tokenization (arXiv 2112.13492): LN(patches([x, s₁ … s₄])) · E.

    Attributes:
        dim: Width of the tokens.
        patch_size: Side of a patch.
        shift: How far the copies move, as a fraction of the patch, rounded down to pixels.
        directions: Where they move: the four diagonals, the four cardinals, or all eight.
        kernel_init: How the projection starts.
        dtype: Data type of the computation.
    """

    dim: int
    patch_size: int
    shift: float = 0.5
    directions: Directions = "diagonal"
    kernel_init: Initializer = XAVIER
    dtype: Any = None

    @nn.compact
    def __call__(self, images: Float[Array, "B H W C"]) -> Float[Array, "B N D"]:
        """Returns one token per patch, row by row."""
        batch, height, width, _ = images.shape
        p = self.patch_size
        if height % p or width % p:
            raise ValueError(f"images of {height}×{width} do not divide into patches of {p}")
        stack = shifted_stack(images, shift_pixels(self.shift, p), self.directions)
        # Flattened row, column, view, channel.
        h, w, channels = height // p, width // p, stack.shape[-1]
        patches = stack.reshape(batch, h, p, w, p, channels).swapaxes(2, 3)
        patches = patches.reshape(batch, h * w, p * p * channels)
        patches = LayerNorm(epsilon=1e-5, dtype=self.dtype, name="norm")(patches)
        proj = nn.Dense(self.dim, kernel_init=self.kernel_init, dtype=self.dtype, name="proj")
        return proj(patches)


class ConvTokenizer(nn.Module):
    """The compact transformer's tokenizer: convolution, ReLU, max-pool, repeated.

    Attributes:
        dim: Width of the tokens.
        kernel: Side of the convolution kernels.
        layers: How many convolutions; all but the last have 64 channels.
        stride: Stride of the convolutions; each pool halves once more.
        dtype: Data type of the computation.
    """

    dim: int
    kernel: int = 3
    layers: int = 1
    stride: int = 1
    dtype: Any = None

    @nn.compact
    def __call__(self, images: Float[Array, "B H W C"]) -> Float[Array, "B N D"]:
        """Returns one token per position of the last feature map, row by row."""
        x = images
        for layer in range(self.layers):
            x = nn.Conv(
                self.dim if layer == self.layers - 1 else 64,
                (self.kernel, self.kernel),
                self.stride,
                padding=self.kernel // 2,
                use_bias=False,
                kernel_init=KAIMING,
                dtype=self.dtype,
                name=f"convs_{layer}",
            )(x)
            x = nn.max_pool(nn.relu(x), (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        return _row_by_row(x)
