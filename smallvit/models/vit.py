"""ViT in four forms: the SPT paper's, ViT-Lite, CVT and CCT, and the standard sizes of timm.

Deliberate differences from the reference code:
- ViT: the final norm acts on all tokens, not the class token alone; the logits are the same.
- `position="sine"` gives CCT and CVT sinusoidal positions, which the published `*_sine` models
  had too; the code as released last learns them silently. `position="none"` works.
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
    ConvTokenizer,
    Features,
    PatchTokenizer,
    Positions,
    Stack,
)
from smallvit.layers.pooling import ClassToken, Pool, make_pool
from smallvit.layers.positions import Position
from smallvit.models.base import (
    COMPACT,
    SPT_LSA,
    STANDARD,
    Backbone,
    Variant,
    drop_rates,
    init_linear,
    init_patches,
)
from smallvit.models.config import BackboneConfig, Count, patch_grid
from smallvit.sizes import Size


@dataclass(frozen=True, kw_only=True)
class ViTConfig(BackboneConfig):
    """A plain transformer encoder on a tokenizer.

    Attributes:
        dim: Width of the tokens.
        depth: Number of blocks.
        num_heads: Number of heads.
        patch_size: Side of a patch; unused with convolutions.
        convs: How many convolutions tokenize instead of patches; 0 for patches.
        kernel: Side of their kernels.
        conv_stride: Their stride.
        pool: Class token, mean, or sequence pooling.
        position: Learned, sinusoidal or no positions.
        post_norm: The published compact block.
        qkv_bias: Bias on queries, keys and values.
        eps: Added to the variance in every LayerNorm but SPT's.
        init: How the weights start.
        ramp: Stochastic depth rises with depth instead of being constant.
    """

    dim: int
    depth: int
    num_heads: int
    patch_size: int = 4
    convs: Count = 0
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
            patch_grid(self.image_size, self.patch_size)
        elif self.kernel % 2 == 0:
            raise ValueError(f"kernel is {self.kernel}: allowed are odd numbers")

    @property
    def stride(self) -> int:
        """Pixels from one token to the next."""
        return (2 * self.conv_stride) ** self.convs if self.convs else self.patch_size

    @property
    def grid(self) -> Size:
        """Rows and columns of tokens; convolutions round up."""
        height, width = self.image_size
        return -(-height // self.stride), -(-width // self.stride)

    @property
    def stack_stride(self) -> int:
        """The shifted stack feeds convolutions."""
        return self.stride if self.convs else 0

    @property
    def first_conv(self) -> str | None:
        """The convolution that reads the image."""
        return "tokenizer.convs.0" if self.convs and not self.spt else super().first_conv


class ViT(Backbone):
    """The encoder."""

    Config = ViTConfig
    config: ViTConfig

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        dim = config.dim
        norm: Callable[[int], nn.Module] = partial(nn.LayerNorm, eps=config.eps)
        self.tokenizer: SPT | PatchTokenizer | ConvTokenizer
        if config.convs:
            self.tokenizer = ConvTokenizer(
                config.stacked_channels,
                dim,
                kernel=config.kernel,
                layers=config.convs,
                stride=config.conv_stride,
            )
        else:
            self.tokenizer = self.make_tokenizer(dim, config.patch_size)
        self.pool = make_pool(config.pool, dim)
        std = {"xavier": 1.0, "compact": 0.2, "trunc": 0.02}[config.init]
        prefix = self.pool.prefix
        self.positions = Positions(config.position, config.grid, dim, prefix=prefix, std=std)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = Stack(
            self.make_block(
                Attention(
                    dim, config.num_heads, qkv_bias=config.qkv_bias, **config.lsa, **config.dropouts
                ),
                dim,
                rate,
                post_norm=config.post_norm,
                norm=norm,
            )
            for rate in drop_rates(config.drop_path, config.depth, ramp=config.ramp)
        )
        self.norm = norm(dim)
        self.dim, self.grids, self.strides = dim, [config.grid], [config.stride]
        self.head = self.make_head()
        self.apply(partial(init_linear, xavier=config.init == "xavier"))
        if isinstance(self.pool, ClassToken) and config.init == "xavier":
            nn.init.normal_(self.pool.token)
        if config.init == "xavier":
            init_patches(self.tokenizer)
        convs = [part for part in self.tokenizer.modules() if isinstance(part, nn.Conv2d)]
        for conv in convs if config.init == "compact" else ():
            nn.init.kaiming_normal_(conv.weight)

    def encode(
        self,
        images: Float[Tensor, "B C H W"],
        weights: list[Tensor] | None,
        intermediates: list[Tensor] | None = None,
    ) -> Features:
        """Tokenizer, blocks, norm, pool."""
        x = self.pool.prepend(self.tokenizer(self.shifted(images)))
        x = self.dropout(self.positions(x))
        x = self.norm(self.blocks(x, weights=weights, intermediates=intermediates))
        return Features(x[:, self.pool.prefix :], self.grid, self.pool(x))


def _sizes(dim: int, depth: int, num_heads: int, mlp_ratio: int) -> dict[str, Any]:
    return {"dim": dim, "depth": depth, "num_heads": num_heads, "mlp_ratio": mlp_ratio}


def _small(patch_size: int, image_size: int) -> Variant:
    options = {"patch_size": patch_size, "init": "xavier", "drop_path": 0.1}
    return Variant(ViT, SPT_LSA, image_size, _sizes(192, 9, 12, 2) | options)


def _compact(depth: int, image_size: int, **options: Any) -> Variant:
    shared = {"post_norm": True, "init": "compact", "ramp": True}
    dropouts = {"attn_dropout": 0.1, "drop_path": 0.1}
    return Variant(ViT, COMPACT, image_size, _COMPACT[depth] | shared | dropouts | options)


def _standard(patch_size: int, sizes: dict[str, Any]) -> Variant:
    options = {"patch_size": patch_size, "qkv_bias": True, "eps": 1e-6, "ramp": True}
    return Variant(ViT, STANDARD, 224, sizes | options)


_COMPACT = {
    2: _sizes(128, 2, 2, 1),
    4: _sizes(128, 4, 2, 1),
    6: _sizes(256, 6, 4, 2),
    7: _sizes(256, 7, 4, 2),
    14: _sizes(384, 14, 6, 3),
}
_PATCHES = [*((depth, 4) for depth in _COMPACT), (7, 8), (7, 16)]
_KERNELS = [(3, 1, 1, 32), (3, 2, 1, 32), (7, 2, 2, 224)]  # kernel, convolutions, stride, image

VARIANTS = {
    "vit_9_p4": _small(4, 32),
    "vit_9_p8": _small(8, 64),
    **{f"vit_lite_{n}_p{p}": _compact(n, 32, patch_size=p) for n, p in _PATCHES},
    **{f"compact_vit_{n}_p{p}": _compact(n, 32, patch_size=p, pool="seq") for n, p in _PATCHES},
    **{
        f"cct_{n}_{kernel}x{convs}": _compact(
            n, size, kernel=kernel, convs=convs, conv_stride=stride, pool="seq"
        )
        for n in _COMPACT
        for kernel, convs, stride, size in _KERNELS
    },
    "vit_base_p16": _standard(16, _sizes(768, 12, 12, 4)),
    "vit_large_p16": _standard(16, _sizes(1024, 24, 16, 4)),
    "vit_huge_p14": _standard(14, _sizes(1280, 32, 16, 4)),
}
