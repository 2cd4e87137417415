"""Attention: one softmax(QKᵀ)V, the two halves of LSA as switches."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from smallvit.flax.initial import XAVIER, Initializer


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
        y = (weights.astype(v.dtype) @ v).swapaxes(1, 2).reshape(batch, tokens, -1)
        y = nn.Dense(self.dim, name="proj", **dense)(y)
        return nn.Dropout(self.dropout)(y, deterministic=deterministic)


class LSA(Attention):
    """Locality Self-Attention (arXiv 2112.13492): a learned temperature and a masked diagonal."""

    temperature: bool = True
    masked: bool = True
