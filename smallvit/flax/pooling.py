"""From tokens to one vector per image: class token, mean, sequence pooling.

Each pool prepends what it needs (`prefix` tokens) and reads its vector off the final tokens.
"""

from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from smallvit.flax.initial import NARROW, Initializer

Pool = Literal["class", "mean", "seq"]


class MeanPool(nn.Module):
    """The mean of all tokens."""

    prefix: ClassVar[int] = 0

    def prepend(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Adds nothing."""
        return x

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B D"]:
        """Returns the mean token."""
        return x.mean(1)


class SeqPool(MeanPool):
    """Sequence pooling (arXiv 2104.05704): softmax(g(x)ᵀ) · x with g linear.

    Attributes:
        kernel_init: How g starts.
        dtype: What g is computed in; the softmax never below float32.
    """

    kernel_init: Initializer = NARROW
    dtype: Any = None

    def setup(self) -> None:
        """Makes g."""
        self.score = nn.Dense(1, kernel_init=self.kernel_init, dtype=self.dtype)

    def weights(self, x: Float[Array, "B N D"]) -> Float[Array, "B N"]:
        """How much each token counts; sums to one."""
        scores = self.score(x)[..., 0]
        return jax.nn.softmax(scores.astype(jnp.promote_types(scores.dtype, jnp.float32)))

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B D"]:
        """Returns the weighted mean token."""
        return jnp.einsum("bn,bnd->bd", self.weights(x).astype(x.dtype), x)


class ClassToken(nn.Module):
    """A learned token in front of the others, read at the end.

    Attributes:
        dim: Width of the tokens.
        std: Standard deviation at the start; 0 starts at zero.
    """

    dim: int
    std: float = 0.0

    prefix: ClassVar[int] = 1

    def setup(self) -> None:
        """Makes the token."""
        self.token = self.param("token", nn.initializers.normal(self.std), (1, 1, self.dim))

    def prepend(self, x: Float[Array, "B N D"]) -> Float[Array, "B n D"]:
        """Puts the class token first."""
        token = jnp.broadcast_to(self.token.astype(x.dtype), (x.shape[0], 1, self.dim))
        return jnp.concatenate([token, x], 1)

    def __call__(self, x: Float[Array, "B n D"]) -> Float[Array, "B D"]:
        """Returns the class token."""
        return x[:, 0]
