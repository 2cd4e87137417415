"""The transformer block."""

from functools import partial
from typing import Any

import flax.linen as nn
from jax import Array
from jaxtyping import Float

from smallvit.flax.attention import Attention
from smallvit.flax.initial import XAVIER, Initializer

#: In two passes: the fast variance E[x²] − E[x]² loses what float32 has.
LayerNorm = partial(nn.LayerNorm, use_fast_variance=False)


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them.

    Attributes:
        hidden: Width between them.
        dropout: After each of them.
        kernel_init: How both start.
        dtype: Data type of the computation.
    """

    hidden: int
    dropout: float = 0.0
    kernel_init: Initializer = XAVIER
    dtype: Any = None

    @nn.compact
    def __call__(
        self, x: Float[Array, "... D"], *, deterministic: bool = False
    ) -> Float[Array, "... D"]:
        """Applies the perceptron to every token."""
        dense = partial(nn.Dense, kernel_init=self.kernel_init, dtype=self.dtype)
        y = nn.gelu(dense(self.hidden, name="fc1")(x), approximate=False)
        y = nn.Dropout(self.dropout)(y, deterministic=deterministic)
        y = dense(x.shape[-1], name="fc2")(y)
        return nn.Dropout(self.dropout)(y, deterministic=deterministic)


class Block(nn.Module):
    """Attention and MLP, each on a residual branch.

    Attributes:
        attention: The attention module.
        mlp: The MLP module.
        drop_path: Stochastic depth on both branches: drops a branch for some images of a
            batch, scales up the rest.
        post_norm: The published compact-transformer block, which normalises the residual stream
            itself after attention: x = x + attn(norm1(x)); x = norm2(x); x = x + mlp(x).
        eps: Added to the variance in both norms.
        dtype: Data type of the computation.
    """

    attention: Attention
    mlp: Mlp
    drop_path: float = 0.0
    post_norm: bool = False
    eps: float = 1e-5
    dtype: Any = None

    def setup(self) -> None:
        """Makes the norms and the stochastic depth."""
        self.norm1 = LayerNorm(epsilon=self.eps, dtype=self.dtype)
        self.norm2 = LayerNorm(epsilon=self.eps, dtype=self.dtype)
        self.drop = nn.Dropout(self.drop_path, broadcast_dims=(1, 2))

    def __call__(
        self, x: Float[Array, "B N D"], *, deterministic: bool = False
    ) -> Float[Array, "B N D"]:
        """Applies both branches."""
        y = self.attention(self.norm1(x), deterministic=deterministic)
        x = x + self.drop(y, deterministic=deterministic)
        if self.post_norm:
            x = self.norm2(x)
            y = self.mlp(x, deterministic=deterministic)
        else:
            y = self.mlp(self.norm2(x), deterministic=deterministic)
        return x + self.drop(y, deterministic=deterministic)
