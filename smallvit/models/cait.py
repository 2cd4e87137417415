"""CaiT at the size of the SPT paper: patch layers that talk across heads, then class layers.

Deliberate differences from the reference code:
- With LSA the diagonal is masked with −∞ after the head mixing; the released code overwrites it
  with −1e-9, which masks nothing.
- Queries, keys and values of a layer share one projection matrix.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers import (
    Attention,
    AttentionLayout,
    Block,
    ClassToken,
    Features,
    Positions,
    Stack,
    Stage,
    token_range,
)
from smallvit.models.base import SPT_LSA, Backbone, Variant, init_linear, init_patches
from smallvit.models.config import BackboneConfig, patch_grid
from smallvit.sizes import Size


@dataclass(frozen=True, kw_only=True)
class CaiTConfig(BackboneConfig):
    """Depth of both kinds of layers, and their width.

    Attributes:
        dim: Width of the tokens.
        depth: Number of patch layers.
        class_depth: Number of class layers.
        num_heads: Number of heads.
        head_dim: Width of a head.
        patch_size: Side of a patch.
    """

    dim: int
    depth: int
    class_depth: int
    num_heads: int
    head_dim: int
    patch_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        patch_grid(self.image_size, self.patch_size)

    @property
    def grid(self) -> Size:
        """Rows and columns of tokens."""
        return patch_grid(self.image_size, self.patch_size)


def layer_scale(layer: int) -> float:
    """LayerScale's starting value for a layer, counted from 1."""
    return 0.1 if layer <= 18 else 1e-5 if layer <= 24 else 1e-6


class CaiT(Backbone):
    """Patch layers without a class token, then layers in which only the class token has queries."""

    Config = CaiTConfig
    config: CaiTConfig
    pool: ClassToken

    def __init__(self, config: CaiTConfig) -> None:
        super().__init__(config)
        dim = config.dim
        self.tokenizer = self.make_tokenizer(dim, config.patch_size)
        self.positions = Positions("learned", config.grid, dim, std=1.0)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = Stack(self._block(i, masked=config.masked) for i in range(config.depth))
        self.pool = ClassToken(dim)
        self.class_blocks = Stack(self._block(i, masked=False) for i in range(config.class_depth))
        self.norm = nn.LayerNorm(dim)
        self.dim, self.grids, self.strides = dim, [config.grid], [config.patch_size]
        self.head = self.make_head()
        self.apply(partial(init_linear, xavier=True))
        init_patches(self.tokenizer)
        nn.init.normal_(self.pool.token)
        for block in (*self.blocks, *self.class_blocks):  # queries apart, as they are projected
            weight = block.attention.qkv.weight
            inner = len(weight) // 3
            nn.init.xavier_normal_(weight[:inner])
            nn.init.xavier_normal_(weight[inner:])

    def _block(self, index: int, *, masked: bool) -> Block:
        config = self.config
        attention = Attention(
            config.dim,
            config.num_heads,
            head_dim=config.head_dim,
            temperature=config.temperature,
            masked=masked,
            talking=True,
            **config.dropouts,
        )
        scale = layer_scale(index + 1)
        return self.make_block(attention, config.dim, config.drop_path, layer_scale=scale)

    def encode(
        self,
        images: Float[Tensor, "B C H W"],
        weights: list[Tensor] | None,
        intermediates: list[Tensor] | None = None,
    ) -> Features:
        """Patch layers, then class layers; tokens are the patches as class layers see them."""
        x = self.dropout(self.positions(self.tokenizer(images)))
        x = self.blocks(x, weights=weights, intermediates=intermediates)
        if not self.pool.prefix:  # the class layers were pruned, and their token with them
            return Features(x, self.grid, self.pool(x))
        token = self.pool.prepend(x)[:, :1]
        token = self.class_blocks(token, x, weights=weights)
        return Features(x, self.grid, self.norm(self.pool(token)))

    def attention_stages(self) -> list[Stage]:
        """Patches among themselves, then the class token to the patches."""
        patches = token_range(1, self.grid[0] * self.grid[1])
        first = [AttentionLayout(patches)] * len(self.blocks)
        then = [AttentionLayout(token_range(0, 1), patches)] * len(self.class_blocks)
        return [Stage(self.grid, [*first, *then])]


_CAIT_24: dict[str, Any] = {"dim": 192, "depth": 24, "class_depth": 2, "num_heads": 4}
_CAIT_24 |= {"head_dim": 64, "mlp_ratio": 2, "drop_path": 0.1}

VARIANTS = {
    "cait_24_p4": Variant(CaiT, SPT_LSA, 32, _CAIT_24 | {"patch_size": 4}),
    "cait_24_p8": Variant(CaiT, SPT_LSA, 64, _CAIT_24 | {"patch_size": 8}),
}
