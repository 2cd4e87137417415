"""PiT at the size of the SPT paper: three stages of ViT blocks with pooling between them.

Deliberate difference from the reference code: none in the forward pass.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers import (
    Attention,
    Block,
    ClassToken,
    Features,
    PiTPooling,
    Positions,
    SPTPooling,
    Stack,
)
from smallvit.models.base import SPT_LSA, Backbone, Variant, init_linear
from smallvit.models.config import BackboneConfig, Stages, patch_grid, require_multiple
from smallvit.sizes import Size


@dataclass(frozen=True, kw_only=True)
class PiTConfig(BackboneConfig):
    """Stages of blocks; the width doubles from one to the next.

    Attributes:
        dim: Width of the first stage.
        depths: Blocks of each stage.
        num_heads: Heads of each stage.
        patch_size: Side of a patch.
    """

    dim: int
    depths: Stages
    num_heads: Stages
    patch_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        times = len(self.depths) - 1
        if self.spt:  # whose pooling does not round up
            why = f"patches of {self.patch_size} pixels are pooled by 2 {times} times"
            require_multiple(self.image_size, self.patch_size * 2**times, why)
        patch_grid(self.image_size, self.patch_size)

    @property
    def grid(self) -> Size:
        """Rows and columns of the first stage."""
        return patch_grid(self.image_size, self.patch_size)


class PiT(Backbone):
    """The pooling transformer."""

    Config = PiTConfig
    between = "poolings"
    config: PiTConfig
    pool: ClassToken

    def __init__(self, config: PiTConfig) -> None:
        super().__init__(config)
        dim, grid = config.dim, config.grid
        self.tokenizer = self.make_tokenizer(dim, config.patch_size)
        self.pool = ClassToken(dim)
        self.positions = Positions("learned", grid, dim, prefix=1, std=1.0)
        self.dropout = nn.Dropout(config.dropout)
        self.stages = nn.ModuleList()
        self.grids = []
        self.poolings = nn.ModuleList()
        for depth, num_heads in zip(config.depths, config.num_heads, strict=True):
            if self.stages:
                pooling = (
                    SPTPooling(dim, grid, prefix=1, directions=config.directions)
                    if config.spt
                    else PiTPooling(dim, grid)
                )
                self.poolings.append(pooling)
                dim, grid = 2 * dim, pooling.grid
            blocks = [self._block(dim, num_heads) for _ in range(depth)]
            self.stages.append(Stack(blocks))
            self.grids.append(grid)
        self.strides = [config.patch_size * 2**i for i in range(len(config.depths))]
        self.norm = nn.LayerNorm(dim)
        self.dim = dim
        self.head = self.make_head()
        self.apply(partial(init_linear, xavier=True))
        nn.init.normal_(self.pool.token)

    def _block(self, dim: int, num_heads: int) -> Block:
        config = self.config
        attention = Attention(dim, num_heads, **config.lsa, **config.dropouts)
        return self.make_block(attention, dim, config.drop_path)

    def encode(
        self,
        images: Float[Tensor, "B C H W"],
        weights: list[Tensor] | None,
        intermediates: list[Tensor] | None = None,
    ) -> Features:
        """Stages with pooling between them; the class token goes along."""
        x = self.dropout(self.positions(self.pool.prepend(self.tokenizer(images))))
        for pooling, stage in zip([nn.Identity(), *self.poolings], self.stages, strict=True):
            x = stage(pooling(x), weights=weights)
            if intermediates is not None:
                intermediates.append(x)
        x = self.norm(x)
        return Features(x[:, 1:], self.grid, self.pool(x))


_PIT_TINY: dict[str, Any] = {"dim": 96, "depths": (2, 6, 4), "num_heads": (2, 4, 8)}
_PIT_TINY |= {"mlp_ratio": 2, "drop_path": 0.1}

VARIANTS = {
    "pit_tiny_p2": Variant(PiT, SPT_LSA, 32, _PIT_TINY | {"patch_size": 2}),
    "pit_tiny_p4": Variant(PiT, SPT_LSA, 64, _PIT_TINY | {"patch_size": 4}),
}
