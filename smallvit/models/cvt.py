"""CvT-13: convolutional embeddings and projections, three stages, no class token.

Deliberate differences from the reference code:
- Tokens keep their channels last; the 1×1 convolutions are linear layers.
- `+spt`: the shifted stack feeds the first embedding, shifted by half its stride.
- `+lsa` is refused: queries and keys differ in number, so there is no diagonal.
"""

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers import Block, ChannelNorm, ConvAttention, Features, MeanPool, Stack, soft_split
from smallvit.models.base import DRLOC, Backbone, Variant, drop_rates
from smallvit.models.config import BackboneConfig, Stages
from smallvit.sizes import Size


@dataclass(frozen=True, kw_only=True)
class CvTConfig(BackboneConfig):
    """Stages, each with its embedding convolution.

    Attributes:
        dims: Width of each stage.
        depths: Blocks of each stage.
        num_heads: Heads of each stage.
        kernels: Kernel of each embedding.
        strides: Stride of each embedding.
        head_dim: Width of a head.
    """

    dims: Stages
    depths: Stages
    num_heads: Stages
    kernels: Stages
    strides: Stages
    head_dim: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature or self.masked:
            raise ValueError(
                "CvT has no +lsa (nor temperature or masked): its keys are pooled, so queries and "
                "keys differ in number and there is no diagonal to mask"
            )
        if any(kernel % 2 == 0 for kernel in self.kernels):
            raise ValueError(f"kernels is {self.kernels}: allowed are odd numbers")

    @property
    def stack_stride(self) -> int:
        """The shifted stack feeds the first embedding."""
        return self.strides[0]

    @property
    def first_conv(self) -> str | None:
        """The convolution that reads the image."""
        return None if self.spt else "embeddings.0.conv"


class Embedding(nn.Module):
    """A strided convolution and a norm over channels; `view` shows what a token is made of."""

    def __init__(self, in_channels: int, dim: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.view = partial(soft_split, kernel=kernel, stride=stride, padding=kernel // 2)
        self.conv = nn.Conv2d(in_channels, dim, kernel, stride, kernel // 2)
        self.norm = ChannelNorm(dim)

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """Returns one token per position, row by row."""
        return self.norm(self.conv(image).flatten(2).transpose(1, 2))


class CvT(Backbone):
    """The convolutional vision transformer."""

    Config = CvTConfig
    takes_lsa = False
    between = "embeddings"
    config: CvTConfig

    def __init__(self, config: CvTConfig) -> None:
        super().__init__(config)
        width = config.stacked_channels
        grid = config.image_size
        rates = iter(drop_rates(config.drop_path, sum(config.depths), ramp=True))
        self.grids = []
        self.embeddings = nn.ModuleList()
        self.stages = nn.ModuleList()
        plan = zip(
            config.dims,
            config.depths,
            config.num_heads,
            config.kernels,
            config.strides,
            strict=True,
        )
        for dim, depth, num_heads, kernel, stride in plan:
            self.embeddings.append(Embedding(width, dim, kernel, stride))
            grid = (-(-grid[0] // stride), -(-grid[1] // stride))
            blocks = [self._block(dim, num_heads, grid, next(rates)) for _ in range(depth)]
            self.stages.append(Stack(blocks))
            self.grids.append(grid)
            width = dim
        self.strides = list(accumulate(config.strides, mul))
        self.pool = MeanPool()
        self.dim = width
        self.head = self.make_head()

    def _block(self, dim: int, num_heads: int, grid: Size, rate: float) -> Block:
        config = self.config
        attention = ConvAttention(
            dim, num_heads, grid=grid, head_dim=config.head_dim, **config.dropouts
        )
        return self.make_block(attention, dim, rate, norm=ChannelNorm)

    def encode(
        self,
        images: Float[Tensor, "B C H W"],
        weights: list[Tensor] | None,
        intermediates: list[Tensor] | None = None,
    ) -> Features:
        """Stages; nothing is normalised after the last block."""
        image = self.shifted(images)
        for embedding, stage, grid in zip(self.embeddings, self.stages, self.grids, strict=True):
            x = stage(embedding(image), weights=weights)
            if intermediates is not None:
                intermediates.append(x)
            image = x.transpose(1, 2).unflatten(2, grid)
        return Features(x, self.grid, self.pool(x))

    @property
    def receptive_field(self) -> int:
        """The side, in pixels, of what one token sees as it leaves the first embedding."""
        return self.config.kernels[0] + 2 * self.config.stack_shift


_CVT_13: dict[str, Any] = {"dims": (64, 192, 384), "depths": (1, 2, 10), "num_heads": (1, 3, 6)}
_CVT_13 |= {"kernels": (7, 3, 3), "strides": (4, 2, 2), "head_dim": 64}

VARIANTS = {"cvt_13": Variant(CvT, DRLOC, 224, _CVT_13 | {"mlp_ratio": 4})}
