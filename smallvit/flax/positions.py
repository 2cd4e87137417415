"""Position embeddings: learned or sinusoidal, and their resampling to another grid."""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

Position = Literal["learned", "sine", "none"]


def sinusoid(tokens: int, dim: int) -> Float[np.ndarray, "1 N D"]:
    """The fixed table: sine on even columns, cosine on odd ones."""
    column = np.arange(dim)
    angle = np.arange(tokens)[:, None] / 10000 ** (2 * (column // 2) / dim)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))[None].astype(np.float32)


def resample(
    table: Float[Array, "1 N D"], old: tuple[int, int], new: tuple[int, int], prefix: int = 0
) -> Float[Array, "1 n D"]:
    """Stretches a position table from one token grid to another (bicubic, antialiased).

    Args:
        old: Rows and columns of the table.
        new: Rows and columns that are needed.
        prefix: Leading entries of class tokens, which are kept.
    """
    _, entries, dim = table.shape
    if entries != prefix + old[0] * old[1]:
        raise ValueError(
            f"a position table of {entries} entries does not fit a grid of "
            f"{old[0]}×{old[1]} and {prefix} class tokens"
        )
    if old == new:
        return table
    image = table[:, prefix:].reshape(1, *old, dim)
    entries = jax.image.resize(image, (1, *new, dim), "cubic").reshape(1, -1, dim)
    return jnp.concatenate([table[:, :prefix], entries], 1)


class Positions(nn.Module):
    """Adds a position table to the tokens.

    Attributes:
        kind: A learned table, the fixed sinusoid (in the collection "constants", so that no
            optimiser moves it), or none.
        std: Standard deviation of the learned table at the start.
    """

    kind: Position = "learned"
    std: float = 0.02

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Returns the tokens with their positions added."""
        _, tokens, dim = x.shape
        if self.kind == "none":
            return x
        if self.kind == "learned":
            table = self.param("table", nn.initializers.normal(self.std), (1, tokens, dim))
        else:
            table = self.variable(
                "constants", "table", lambda: jnp.asarray(sinusoid(tokens, dim))
            ).value
        return x + table.astype(x.dtype)
