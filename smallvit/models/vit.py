"""ViT in four dresses: the SPT paper's, ViT-Lite, CVT and CCT, and the standard sizes of timm.

Deliberate differences from the reference code:
- ViT: the final norm acts on all tokens, not the class token alone; the logits are the same.
- `position="sine"` gives CCT and CVT sinusoidal positions, where the published `*_sine` models
  silently learn them; `position="none"` works.
- `+spt` on CCT: the shifted stack feeds the convolutions, shifted by half the tokens' stride.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers import (
    SPT,
    Attention,
    Block,
    ConvTokenizer,
    Features,
    PatchTokenizer,
    Positions,
)
from smallvit.layers.pooling import ClassToken, Pool, make_pool
from smallvit.layers.positions import Position
from smallvit.layers.tokenizers import num_views
from smallvit.models.base import (
    Backbone,
    BackboneConfig,
    Size,
    drop_rates,
    init_linear,
    require_multiple,
)


@dataclass(frozen=True, kw_only=True)
class ViTConfig(BackboneConfig):
    """A plain transformer encoder on a tokenizer.

    Attributes:
        dim: Width of the tokens.
        depth: Number of blocks.
        num_heads: Number of heads.
        mlp_ratio: Hidden width of the MLP over dim.
        patch_size: Side of a patch; unused with convolutions.
        convs: How many convolutions tokenize instead of patches; 0 for patches.
        kernel: Side of their kernels.
        conv_stride: Their stride.
        pool: Class token, mean, or sequence pooling.
        position: Learned, sinusoidal or no positions.
        post_norm: The published compact block.
        qkv_bias: Bias on queries, keys and values.
        eps: Of every LayerNorm but SPT's.
        init: How the weights start.
        ramp: Stochastic depth rises with depth instead of being constant.
    """

    dim: int
    depth: int
    num_heads: int
    mlp_ratio: float
    patch_size: int = 4
    convs: int = 0
    kernel: int = 3
    conv_stride: int = 1
    pool: Pool = "class"
    position: Position = "learned"
    post_norm: bool = False
    qkv_bias: bool = False
    eps: float = 1e-5
    init: Literal["xavier", "compact", "trunc"] = "trunc"
    ramp: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.convs:
            why = f"patches are {self.patch_size} pixels wide"
            require_multiple(self.image_size, self.patch_size, why)

    @property
    def stride(self) -> int:
        """Pixels from one token to the next."""
        return (2 * self.conv_stride) ** self.convs if self.convs else self.patch_size

    @property
    def grid(self) -> Size:
        """Rows and columns of tokens; convolutions round up."""
        height, width = self.image_size
        return -(-height // self.stride), -(-width // self.stride)


class ViT(Backbone):
    """The encoder."""

    Config = ViTConfig

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        norm: Callable[[int], nn.Module] = partial(nn.LayerNorm, eps=config.eps)
        self.tokenizer = _tokenizer(config)
        self.pool = make_pool(config.pool, dim)
        std = {"xavier": 1.0, "compact": 0.2, "trunc": 0.02}[config.init]
        prefix = self.pool.prefix
        self.positions = Positions(config.position, config.grid, dim, prefix=prefix, std=std)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(
                Attention(
                    dim,
                    config.num_heads,
                    qkv_bias=config.qkv_bias,
                    **config.lsa,
                    **config.dropouts,
                ),
                dim,
                config.mlp_ratio,
                dropout=config.dropout,
                drop_path=rate,
                post_norm=config.post_norm,
                norm=norm,
            )
            for rate in drop_rates(config.drop_path, config.depth, ramp=config.ramp)
        )
        self.norm = norm(dim)
        self.head = self.make_head(dim)
        self.apply(partial(init_linear, xavier=config.init == "xavier"))
        if isinstance(self.pool, ClassToken) and config.init == "xavier":
            nn.init.normal_(self.pool.token)
        if isinstance(self.tokenizer, ConvTokenizer):
            for conv in self.tokenizer.convs:
                nn.init.kaiming_normal_(conv.weight)

    def encode(self, images: Float[Tensor, "B C H W"], weights: list[Tensor] | None) -> Features:
        """Tokenizer, blocks, norm, pool."""
        if self.config.convs:
            images = self.shifted(images, self.config.stride)
        x = self.pool.prepend(self.tokenizer(images))
        x = self.dropout(self.positions(x))
        for block in self.blocks:
            x = block(x, weights=weights)
        x = self.norm(x)
        return Features(x[:, self.pool.prefix :], self.config.grid, self.pool(x))


def _tokenizer(config: ViTConfig) -> nn.Module:
    channels = config.in_channels
    if config.convs:
        if config.spt:
            channels *= num_views(config.directions)
        return ConvTokenizer(
            channels,
            config.dim,
            kernel=config.kernel,
            layers=config.convs,
            stride=config.conv_stride,
        )
    if config.spt:
        return SPT(
            channels,
            config.dim,
            config.patch_size,
            shift=config.shift,
            directions=config.directions,
        )
    return PatchTokenizer(channels, config.dim, config.patch_size)


def _sizes(dim: int, num_heads: int, mlp_ratio: int) -> dict[str, Any]:
    return {"dim": dim, "num_heads": num_heads, "mlp_ratio": mlp_ratio}


_COMPACT_SIZES = {
    2: _sizes(128, 2, 1),
    4: _sizes(128, 2, 1),
    6: _sizes(256, 4, 2),
    7: _sizes(256, 4, 2),
    14: _sizes(384, 6, 3),
}
_COMPACT = {
    depth: {
        "depth": depth,
        "post_norm": True,
        "init": "compact",
        "attn_dropout": 0.1,
        "drop_path": 0.1,
        "ramp": True,
        **sizes,
    }
    for depth, sizes in _COMPACT_SIZES.items()
}
_PATCHES = [*((depth, 4) for depth in _COMPACT), (7, 8), (7, 16)]
_SMALL = {"depth": 9, **_sizes(192, 12, 2), "init": "xavier", "drop_path": 0.1}
_TIMM = {"qkv_bias": True, "eps": 1e-6, "ramp": True}

#: name → (paper's image size, options)
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "vit_9_p4": (32, {**_SMALL, "patch_size": 4}),
    "vit_9_p8": (64, {**_SMALL, "patch_size": 8}),
    **{
        f"vit_lite_{depth}_p{patch}": (32, {**_COMPACT[depth], "patch_size": patch})
        for depth, patch in _PATCHES
    },
    **{
        f"compact_vit_{depth}_p{patch}": (
            32,
            {**_COMPACT[depth], "patch_size": patch, "pool": "seq"},
        )
        for depth, patch in _PATCHES
    },
    **{
        f"cct_{depth}_{kernel}x{convs}": (
            size,
            {
                **_COMPACT[depth],
                "kernel": kernel,
                "convs": convs,
                "conv_stride": stride,
                "pool": "seq",
            },
        )
        for depth in _COMPACT
        for kernel, convs, stride, size in ((3, 1, 1, 32), (3, 2, 1, 32), (7, 2, 2, 224))
    },
    "vit_base_p16": (224, {**_TIMM, "patch_size": 16, "depth": 12, **_sizes(768, 12, 4)}),
    "vit_large_p16": (224, {**_TIMM, "patch_size": 16, "depth": 24, **_sizes(1024, 16, 4)}),
    "vit_huge_p14": (224, {**_TIMM, "patch_size": 14, "depth": 32, **_sizes(1280, 16, 4)}),
}
