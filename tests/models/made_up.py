"""A made-up family, written as one in `smallvit/models` would be: its file, and no other."""

from dataclasses import dataclass
from functools import partial

from torch import nn

from smallvit.layers import Attention, Features, Positions, SeqPool, Stack
from smallvit.models.base import Backbone, Variant, init_linear
from smallvit.models.config import BackboneConfig, patch_grid


@dataclass(frozen=True, kw_only=True)
class MadeUpConfig(BackboneConfig):
    dim: int
    depth: int
    patch_size: int
    mlp_ratio: float = 2.0


class MadeUp(Backbone):
    Config = MadeUpConfig
    config: MadeUpConfig

    def __init__(self, config):
        super().__init__(config)
        dim, grid = config.dim, patch_grid(config.image_size, config.patch_size)
        self.dim, self.grids = dim, [grid]
        self.tokenizer = self.make_tokenizer(dim, config.patch_size)
        self.positions = Positions("learned", grid, dim)
        self.blocks = Stack(
            self.make_block(Attention(dim, 2, **config.lsa, **config.dropouts), dim, 0.0)
            for _ in range(config.depth)
        )
        self.norm, self.pool = nn.LayerNorm(dim), SeqPool(dim)
        self.head = self.make_head()
        self.apply(partial(init_linear, xavier=True))

    def encode(self, images, weights):
        x = self.norm(self.blocks(self.positions(self.tokenizer(images)), weights=weights))
        return Features(x, self.grid, self.pool(x))


VARIANTS = {"made_up_2_p4": Variant(MadeUp, "none", 16, {"dim": 24, "depth": 2, "patch_size": 4})}
