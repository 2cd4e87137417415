"""HCT, the hybrid compact transformer: our own family, made for small data and short time.

A convolutional stem with batch norm and residual blocks, a narrow attention stage on many tokens,
a residual block that halves the grid, a wide attention stage on few, SeqPool and a linear head.
HCT2, the second table of sizes, has more convolutions and one stage of attention in the middle of
them: a maximum halves the grid before it, and once more after it.
Attention is LSA (2112.13492) throughout, the pool and the learned positions are those of Compact
Transformers (2104.05704), the depthwise convolution in the MLP is that of LocalViT (2104.05707).

Deliberate choices, measured in docs/experiments.md:
- LSA is built in, so `+lsa` is refused; `masked=False` or `temperature=False` take it apart.
- `+spt`: the shifted stack feeds the stem, shifted by half the stride of its tokens.
- The narrow stage costs a tenth to a third of the speed and gives attention maps four times the
  tokens; `narrow_depth=0` does without it, and is as accurate.
- Residual blocks start as their shortcut and an activation; everything else as PyTorch's layers.
- Sizes that do not divide are rounded up, as convolutions do.
There is no Flax port of it.
"""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers import Attention, Features, Positions, ResidualBlock, SeqPool, Stack
from smallvit.layers.positions import Position
from smallvit.layers.residual import Activation, make_activation
from smallvit.layers.soft_split import soft_split
from smallvit.layers.tokenizers import reach
from smallvit.models.base import OURS, Backbone, Variant, drop_rates
from smallvit.models.config import BackboneConfig, Count
from smallvit.sizes import Size

#: Strides of the two convolutions of the stem; a pool halves once more, and the merging again.
_STRIDES = {4: (1, 1), 8: (2, 1), 16: (2, 2)}


@dataclass(frozen=True, kw_only=True)
class HCTConfig(BackboneConfig):
    """The stem and two stages of attention, the first of which may be empty.

    Attributes:
        patch_size: Pixels from one token of the last attention to the next: 4, 8 or 16.
        stem_dim: Channels of the first convolution.
        residuals: Residual blocks in the stem.
        narrow_dim: Width of the stem and of the first stage.
        narrow_depth: Blocks of the first stage; 0 leaves it out.
        narrow_heads: Heads of the first stage.
        merge_dim: Channels of the residual block between the stages.
        dim: Width of the last stage.
        depth: Blocks of the last stage.
        num_heads: Heads of the last stage.
        pooled: Whether grids are halved by a convolution and the maximum of 2×2 tokens instead of
            by a residual block at stride 2: more work, and more accurate.
        merge_residuals: Residual blocks behind that maximum, before the last stage: more accurate,
            but a token then sees 4 patch sizes more of the image, and maps say less.
        tail_dim: Channels of a second merging, behind the last stage; 0 leaves it out.
        activation: Of the convolutions.
        position: Learned, sinusoidal or no positions.
    """

    patch_size: int
    stem_dim: int
    residuals: Count = 1
    narrow_dim: int
    narrow_depth: Count = 1
    narrow_heads: int
    merge_dim: int
    dim: int
    depth: int
    num_heads: int
    pooled: bool = False
    merge_residuals: Count = 0
    tail_dim: Count = 0
    activation: Activation = "relu"
    position: Position = "learned"
    temperature: bool = True
    masked: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patch_size not in _STRIDES:
            allowed = ", ".join(map(str, _STRIDES))
            raise ValueError(f"patch_size is {self.patch_size}: allowed are {allowed}")
        if self.merge_residuals and not self.pooled:
            raise ValueError("merge_residuals follow a maximum: they need pooled=True")

    def grid_of(self, stride: int) -> Size:
        """Rows and columns of tokens that are `stride` pixels apart."""
        height, width = self.image_size
        return -(-height // stride), -(-width // stride)

    @property
    def stack_stride(self) -> int:
        """The shifted stack feeds the stem."""
        return self.patch_size // 2

    @property
    def first_conv(self) -> str | None:
        """The convolution that reads the image."""
        return None if self.spt else "tokenizer.conv1"


def _residuals(channels: int, count: int, activation: Activation) -> nn.Sequential:
    blocks = (
        ResidualBlock(channels, channels, zero_start=True, activation=activation)
        for _ in range(count)
    )
    return nn.Sequential(*blocks)


class ConvStem(nn.Module):
    """Two 3×3 convolutions with batch norm, a pool that halves the map, and residual blocks.

    Args:
        in_channels: Channels of the image.
        widths: Channels of the first convolution, and of everything after it.
        strides: Of the two convolutions.
        residuals: How many residual blocks.
        activation: ReLU or GELU.

    Attributes:
        kernels: Kernel and stride of each layer, for what a token sees.
    """

    def __init__(
        self,
        in_channels: int,
        widths: tuple[int, int],
        strides: tuple[int, int],
        residuals: int,
        *,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        first, dim = widths
        self.kernels = [(3, strides[0]), (3, strides[1]), (2, 2), *[(3, 1), (3, 1)] * residuals]
        self.conv1 = nn.Conv2d(in_channels, first, 3, strides[0], 1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.conv2 = nn.Conv2d(first, dim, 3, strides[1], 1, bias=False)
        self.bn2 = nn.BatchNorm2d(dim)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.act = make_activation(activation)
        self.residuals = _residuals(dim, residuals, activation)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """Returns one token per position of the last feature map, row by row."""
        x = self.act(self.bn1(self.conv1(images)))
        # ReLU would give the same before the pool, for four times the work.
        x = self.act(self.pool(self.bn2(self.conv2(x))))
        return self.residuals(x).flatten(2).transpose(1, 2)


class PooledBlock(nn.Module):
    """A 3×3 convolution, a pool that halves the map, batch norm, and residual blocks."""

    def __init__(
        self, in_channels: int, channels: int, residuals: int, activation: Activation
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 3, 1, 1, bias=False)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.bn = nn.BatchNorm2d(channels)
        self.act = make_activation(activation)
        self.residuals = _residuals(channels, residuals, activation)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Returns a feature map of half the size and the new width."""
        return self.residuals(self.act(self.bn(self.pool(self.conv(x)))))


class ConvMerging(nn.Module):
    """Convolutions that halve the grid, a linear layer to the new width, and positions.

    Args:
        dim: Width of the tokens.
        before: Rows and columns of tokens that come in.
        hidden: Channels of the convolutions.
        out_dim: Width of the tokens that go out.
        position: What is added to them.
        pooled: Residual blocks behind a convolution and a maximum that halve the grid; None takes
            one residual block, which halves it by its stride.
        activation: ReLU or GELU.
    """

    def __init__(
        self,
        dim: int,
        before: Size,
        hidden: int,
        out_dim: int,
        position: Position,
        *,
        pooled: int | None = None,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.before = before
        self.block: nn.Module
        if pooled is None:
            self.block = ResidualBlock(dim, hidden, 2, zero_start=True, activation=activation)
        else:
            self.block = PooledBlock(dim, hidden, pooled, activation)
        self.proj = nn.Linear(hidden, out_dim)
        grid = (-(-before[0] // 2), -(-before[1] // 2))
        self.positions = Positions(position, grid, out_dim)

    def view(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B n s"]:
        """By shortcut or pool a token is made of 2×2 tokens; a rollout ignores convolutions."""
        rows, columns = image.shape[2:]
        return soft_split(F.pad(image, (0, columns % 2, 0, rows % 2)), 2, 2, 0)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B n d"]:
        """Returns a quarter of the tokens, wider."""
        image = self.block(x.transpose(1, 2).unflatten(2, self.before))
        return self.positions(self.proj(image.flatten(2).transpose(1, 2)))


class HCT(Backbone):
    """The hybrid compact transformer."""

    Config = HCTConfig
    takes_lsa = False
    between = "mergings"
    config: HCTConfig
    tokenizer: ConvStem
    pool: SeqPool

    def __init__(self, config: HCTConfig) -> None:
        super().__init__(config)
        narrow, wide = (config.grid_of(config.patch_size // part) for part in (2, 1))
        narrow_dim, dim, position = config.narrow_dim, config.dim, config.position
        tail_dim = config.tail_dim
        rates = drop_rates(config.drop_path, config.narrow_depth + config.depth, ramp=True)
        widths, strides = (config.stem_dim, narrow_dim), _STRIDES[config.patch_size]
        self.tokenizer = ConvStem(
            config.stacked_channels, widths, strides, config.residuals, activation=config.activation
        )
        merging = ConvMerging(
            narrow_dim,
            narrow,
            config.merge_dim,
            dim,
            position,
            pooled=config.merge_residuals if config.pooled else None,
            activation=config.activation,
        )
        self.mergings = nn.ModuleList([merging])
        self.dropout = nn.Dropout(config.dropout)
        self.stages = nn.ModuleList()
        self.grids, self.strides = [wide], [config.patch_size]
        if config.narrow_depth:
            self.grids, self.strides = [narrow, wide], [config.patch_size // 2, config.patch_size]
            self.positions = Positions(position, narrow, narrow_dim)
            first = rates[: config.narrow_depth]
            self.stages.append(self._stack(narrow_dim, config.narrow_heads, narrow, first))
        last = rates[config.narrow_depth :]
        self.stages.append(self._stack(dim, config.num_heads, wide, last))
        if tail_dim:
            # A residual block here does not widen what a token sees before the attention.
            tail = ConvMerging(
                dim,
                wide,
                tail_dim,
                tail_dim,
                "none",
                pooled=1 if config.pooled else None,
                activation=config.activation,
            )
            self.mergings.append(tail)
            self.stages.append(Stack())  # no attention on the smallest grid
            self.strides.append(2 * config.patch_size)
            self.grids.append(config.grid_of(2 * config.patch_size))
        self.dim = tail_dim or dim
        self.norm = nn.LayerNorm(self.dim)
        self.pool = SeqPool(self.dim)
        self.head = self.make_head()

    def _stack(self, dim: int, num_heads: int, grid: Size, rates: list[float]) -> Stack:
        config = self.config
        return Stack(
            self.make_block(
                Attention(dim, num_heads, **config.lsa, **config.dropouts), dim, rate, grid=grid
            )
            for rate in rates
        )

    def encode(
        self,
        images: Float[Tensor, "B C H W"],
        weights: list[Tensor] | None,
        intermediates: list[Tensor] | None = None,
    ) -> Features:
        """Stem, narrow stage, merging, wide stage, second merging, norm, pool."""
        x = self.tokenizer(self.shifted(images))
        stages, mergings = list(self.stages), list(self.mergings)
        if self.config.narrow_depth:
            x = stages.pop(0)(self.dropout(self.positions(x)), weights=weights)
            if intermediates is not None:
                intermediates.append(x)
        if stages:  # a pruned model may end with the narrow one
            x = stages[0](self.dropout(mergings[0](x)), weights=weights)
            if intermediates is not None:
                intermediates.append(x)
        for merging in mergings[1:]:
            x = merging(x)
            if intermediates is not None:
                intermediates.append(x)
        x = self.norm(x)
        return Features(x, self.grid, self.pool(x))

    @property
    def receptive_field(self) -> int:
        """The side, in pixels, of what one token sees as it comes to the first attention."""
        residuals = [(3, 1)] * 2 * self.config.merge_residuals
        halving = [(3, 1), (2, 2), *residuals] if self.config.pooled else [(3, 2), (3, 1)]
        merging = [] if self.config.narrow_depth else halving
        return reach([*self.tokenizer.kernels, *merging]) + 2 * self.config.stack_shift


def _size(stem: int, narrow: int, merge: int, dim: int, **options: Any) -> dict[str, Any]:
    widths = {"stem_dim": stem, "narrow_dim": narrow, "merge_dim": merge, "dim": dim}
    return {"mlp_ratio": 2, **widths, **options}


_SIZES = {
    "xs": _size(24, 48, 64, 96, narrow_heads=2, num_heads=3, depth=2),
    "s": _size(32, 64, 128, 192, narrow_heads=2, num_heads=4, depth=2),
    "m": _size(48, 96, 192, 256, narrow_heads=3, num_heads=4, depth=3),
    "l": _size(64, 128, 256, 384, narrow_heads=4, num_heads=6, depth=3, narrow_depth=2),
}


def _pooled(stem: int, narrow: int, merge: int, dim: int, **options: Any) -> dict[str, Any]:
    """More convolutions, and one stage of attention in the middle of them."""
    layout = {"pooled": True, "narrow_depth": 0, "narrow_heads": 1}
    return _size(stem, narrow, merge, dim, **layout, **options)


_POOLED_SIZES = {
    "xs": _pooled(12, 24, 48, 64, tail_dim=96, num_heads=2, depth=1),
    "s": _pooled(16, 32, 64, 96, tail_dim=128, num_heads=3, depth=1),
    "m": _pooled(32, 64, 128, 192, tail_dim=256, num_heads=4, depth=1),
    "l": _pooled(64, 64, 256, 256, tail_dim=384, num_heads=4, depth=2),
    "xl": _pooled(64, 128, 512, 512, tail_dim=512, num_heads=8, depth=2),
}

#: Each has 8×8 tokens in its last attention, and HCT 16×16 in its first, at the size beside it.
VARIANTS = {
    f"{family}_{size}_p{patch}": Variant(HCT, OURS, 8 * patch, options | {"patch_size": patch})
    for family, sizes in {"hct": _SIZES, "hct2": _POOLED_SIZES}.items()
    for size, options in sizes.items()
    for patch in _STRIDES
}
