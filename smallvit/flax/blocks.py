"""The transformer block: attention, in which the two halves of LSA are switches, and an MLP."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from smallvit.flax.initial import XAVIER, Initializer

#: In two passes: the fast variance E[x²] − E[x]² loses what float32 has, most on flat patches.
LayerNorm = partial(nn.LayerNorm, use_fast_variance=False)


class Attention(nn.Module):
    """Multi-head attention, plain or local.

    The weights are sown as "attention" into the collection "intermediates".

    Attributes:
        dim: Width of the tokens.
        heads: Number of heads.
        head_dim: Width of a head; by default dim / heads.
        qkv_bias: Gives the query, key and value projections a bias.
        temperature: Makes the scale of the scores a learned parameter, one per head (half of LSA).
        masked: Hides every token from itself (the other half). A single token still sees itself:
            there is nothing else to attend to.
        dropout: On the output.
        attn_dropout: On the weights.
        kernel_init: How both projections start.
        dtype: Data type of the computation; the softmax never below float32.
    """

    dim: int
    heads: int
    head_dim: int | None = None
    qkv_bias: bool = False
    temperature: bool = False
    masked: bool = False
    dropout: float = 0.0
    attn_dropout: float = 0.0
    kernel_init: Initializer = XAVIER
    dtype: Any = None

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], *, deterministic: bool = False
    ) -> Float[Array, "B N D"]:
        """Tokens attend to each other."""
        if self.head_dim is None and self.dim % self.heads:
            raise ValueError(f"dim {self.dim} is not a multiple of heads {self.heads}")
        batch, tokens, _ = x.shape
        width = self.head_dim or self.dim // self.heads
        dense = {"kernel_init": self.kernel_init, "dtype": self.dtype}
        qkv = nn.Dense(3 * self.heads * width, use_bias=self.qkv_bias, name="qkv", **dense)(x)
        # Heads first: XLA's CPU products take twice as long on heads between the tokens.
        heads = qkv.reshape(batch, tokens, 3, self.heads, width)
        q, k, v = jnp.transpose(heads, (2, 0, 3, 1, 4))

        scale: Any = width**-0.5
        if self.temperature:
            start = nn.initializers.constant(scale)
            scale = self.param("scale", start, (self.heads,))[:, None, None]
        q = (q * scale).astype(q.dtype)
        exact = jnp.promote_types(q.dtype, jnp.float32)
        scores = jnp.matmul(q, k.swapaxes(-2, -1), preferred_element_type=exact)
        if self.masked and tokens > 1:
            scores = jnp.where(jnp.eye(tokens, dtype=bool), -jnp.inf, scores)
        weights = jax.nn.softmax(scores)
        self.sow("intermediates", "attention", weights)

        weights = nn.Dropout(self.attn_dropout)(weights, deterministic=deterministic)
        y = (weights.astype(v.dtype) @ v).swapaxes(1, 2).reshape(batch, tokens, self.heads * width)
        y = nn.Dense(self.dim, name="proj", **dense)(y)
        return nn.Dropout(self.dropout)(y, deterministic=deterministic)


class LSA(Attention):
    """Locality Self-Attention (arXiv 2112.13492): a learned temperature and a masked diagonal."""

    temperature: bool = True
    masked: bool = True


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
