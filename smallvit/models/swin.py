"""Swin: windows, relative bias, patch merging; the SPT paper's small one and Swin-T.

Deliberate differences from the reference code:
- On a rectangle, each axis decides for itself whether its grid is larger than the window.
- With SPT the patch embedding has no norm after it and merging is SPT with patches of 2.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers import (
    Block,
    Features,
    MeanPool,
    PatchMerging,
    PatchTokenizer,
    Positions,
    SPTPooling,
    Stack,
    WindowAttention,
)
from smallvit.models.base import DRLOC, SPT_LSA, Backbone, Variant, drop_rates, init_linear
from smallvit.models.config import BackboneConfig, Stages, patch_grid, require_multiple
from smallvit.sizes import Size


@dataclass(frozen=True, kw_only=True)
class SwinConfig(BackboneConfig):
    """Stages of window attention; the width doubles from one to the next.

    Attributes:
        dim: Width of the first stage.
        depths: Blocks of each stage.
        num_heads: Heads of each stage.
        patch_size: Side of a patch.
        window: Side of a window, in tokens.
        absolute: Adds a learned absolute position table too.
        ramp: Stochastic depth rises with depth instead of being constant.
        narrow: Linear layers start from a truncated normal of 0.02 with zero biases; otherwise as
            PyTorch starts them.
    """

    dim: int
    depths: Stages
    num_heads: Stages
    patch_size: int
    window: int
    absolute: bool = False
    ramp: bool = True
    narrow: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        stages = len(self.depths)
        stride = self.patch_size * 2 ** (stages - 1)
        why = f"patches of {self.patch_size} pixels are merged by 2 {stages - 1} times"
        require_multiple(self.image_size, stride, why)
        for side in self.image_size:
            if not self.fits(side):
                sizes = range(stride, side + stride * self.window + 1, stride)
                good = [n for n in sizes if self.fits(n)]
                near = sorted(good, key=lambda n: abs(n - side))[:2]
                raise ValueError(
                    f"image_size {self.image_size[0]}×{self.image_size[1]} does not divide into "
                    f"windows of {self.window} tokens at every stage; the nearest sides that do "
                    f"are {' and '.join(map(str, sorted(near)))}"
                )

    def fits(self, side: int) -> bool:
        """Whether every stage's grid divides into windows, or is not larger than one."""
        grids = [side // self.patch_size // 2**i for i in range(len(self.depths))]
        return all(grid <= self.window or grid % self.window == 0 for grid in grids)

    @property
    def grid(self) -> Size:
        """Rows and columns of the first stage."""
        return patch_grid(self.image_size, self.patch_size)


class PatchEmbedding(PatchTokenizer):
    """Patches, normalised after their projection."""

    def __init__(self, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__(in_channels, dim, patch_size)
        self.norm = nn.LayerNorm(dim)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """Returns one token per patch, row by row."""
        return self.norm(super().forward(images))


class Swin(Backbone):
    """The shifted-window transformer.

    Attributes:
        shows_raw: Whether features hold the tokens before the final norm, as DRLoc's released code
            reads them; logits are the same.
    """

    shows_raw = False

    Config = SwinConfig
    between = "mergings"
    drloc_weight = 0.5
    drloc_narrow = True
    config: SwinConfig

    def __init__(self, config: SwinConfig) -> None:
        super().__init__(config)
        dim, grid = config.dim, config.grid
        self.tokenizer = self.make_tokenizer(dim, config.patch_size, PatchEmbedding)
        self.positions = Positions("learned" if config.absolute else "none", grid, dim)
        self.dropout = nn.Dropout(config.dropout)
        rates = iter(drop_rates(config.drop_path, sum(config.depths), ramp=config.ramp))
        self.stages = nn.ModuleList()
        self.grids = []
        self.mergings = nn.ModuleList()
        for depth, num_heads in zip(config.depths, config.num_heads, strict=True):
            if self.stages:
                merging = (
                    SPTPooling(dim, grid, directions=config.directions)
                    if config.spt
                    else PatchMerging(dim, grid)
                )
                self.mergings.append(merging)
                dim, grid = 2 * dim, merging.grid
            blocks = [self._block(dim, num_heads, grid, i, next(rates)) for i in range(depth)]
            self.stages.append(Stack(blocks))
            self.grids.append(grid)
        self.strides = [config.patch_size * 2**i for i in range(len(config.depths))]
        self.norm = nn.LayerNorm(dim)
        self.pool = MeanPool()
        self.dim = dim
        self.head = self.make_head()
        if config.narrow:
            self.apply(partial(init_linear, xavier=False))

    def _block(self, dim: int, num_heads: int, grid: Size, index: int, rate: float) -> Block:
        config = self.config
        attention = WindowAttention(
            dim,
            num_heads,
            grid=grid,
            window=config.window,
            shifted=index % 2 == 1,
            **config.lsa,
            **config.dropouts,
        )
        return self.make_block(attention, dim, rate)

    def encode(
        self,
        images: Float[Tensor, "B C H W"],
        weights: list[Tensor] | None,
        intermediates: list[Tensor] | None = None,
    ) -> Features:
        """Stages with merging between them."""
        x = self.dropout(self.positions(self.tokenizer(images)))
        for merging, stage in zip([nn.Identity(), *self.mergings], self.stages, strict=True):
            x = stage(merging(x), weights=weights)
            if intermediates is not None:
                intermediates.append(x)
        normed = self.norm(x)
        return Features(x if self.shows_raw else normed, self.grid, self.pool(normed))


_TINY: dict[str, Any] = {"dim": 96, "depths": (2, 6, 4), "num_heads": (3, 6, 12), "mlp_ratio": 2}
_TINY |= {"window": 4, "absolute": True, "drop_path": 0.1, "narrow": False}
_T: dict[str, Any] = {"dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)}
_T |= {"mlp_ratio": 4, "patch_size": 4, "window": 7, "drop_path": 0.2}

VARIANTS = {
    "swin_tiny_p2": Variant(Swin, SPT_LSA, 32, _TINY | {"patch_size": 2}),
    "swin_tiny_p4": Variant(Swin, SPT_LSA, 64, _TINY | {"patch_size": 4}),
    "swin_t": Variant(Swin, DRLOC, 224, _T),
}
