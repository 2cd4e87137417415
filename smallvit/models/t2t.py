"""T2T: soft splits with a transformer between them, then a ViT; the SPT paper's and T2T-ViT-14.

Deliberate differences from the reference code:
- Blocks have one residual around each branch; the small reference adds a second.
- The small reference's unused norm in front of the projection does not exist.
- `+spt` shifts by half the first split's stride (one pixel for the small model, as released).
- `+lsa` on T2T-ViT-14 leaves its performers as they are: they have no similarity matrix.
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Any, Self

from jaxtyping import Float
from torch import Tensor, nn

from smallvit.arguments import Rate
from smallvit.layers import (
    Attention,
    AttentionLayout,
    ClassToken,
    Features,
    Performer,
    Positions,
    Stack,
    Stage,
    TokenTransformer,
    soft_split,
    token_range,
)
from smallvit.layers.tokenizers import reach
from smallvit.models.base import DRLOC, SPT_LSA, Backbone, Variant, drop_rates, init_linear
from smallvit.models.config import BackboneConfig, Count, require_multiple
from smallvit.sizes import Size

_SMALL_SPLIT = (3, 2, 1)
_LARGEST_FOR_TWO = 48


@dataclass(frozen=True, kw_only=True)
class T2TConfig(BackboneConfig):
    """Soft splits and the encoder behind them.

    Attributes:
        dim: Width of the encoder.
        depth: Number of its blocks.
        num_heads: Number of heads.
        token_dim: Width of the transformers between splits.
        first_split: Kernel, stride and padding of the first split; the others are 3, 2, 1.
        num_splits: How many; 0 chooses two for images up to 48 pixels and three above.
        performers: Linear attention between the splits instead of softmax.
        performer_dropout: Dropout at the end of both branches of a performer, where `dropout` is 0.
        ramp: Stochastic depth rises with depth instead of being constant.
    """

    dim: int
    depth: int
    num_heads: int
    token_dim: int = 64
    first_split: tuple[int, int, int] = _SMALL_SPLIT
    num_splits: Count = 0
    performers: bool = False
    performer_dropout: Rate = 0.0
    ramp: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        strides = [stride for _, stride, _ in self.splits]
        unit = 1
        for stride in strides:
            unit *= stride
        why = f"the soft splits have strides {', '.join(map(str, strides))}"
        require_multiple(self.image_size, unit, why)

    @property
    def splits(self) -> list[tuple[int, int, int]]:
        """Kernel, stride and padding of each soft split."""
        count = self.num_splits or (2 if max(self.image_size) <= _LARGEST_FOR_TWO else 3)
        return [self.first_split, *[_SMALL_SPLIT] * (count - 1)]

    @property
    def grids(self) -> list[Size]:
        """Rows and columns of tokens after each soft split."""
        grids = [self.image_size]
        for kernel, stride, padding in self.splits:
            height, width = ((side + 2 * padding - kernel) // stride + 1 for side in grids[-1])
            grids.append((height, width))
        return grids[1:]

    @property
    def stack_stride(self) -> int:
        """The shifted stack feeds the first soft split."""
        return self.first_split[1]

    @property
    def first_conv(self) -> str | None:
        """None: a soft split reads the image."""
        return None

    @property
    def entries_per_channel(self) -> int:
        """A soft split puts the pixels of one channel side by side."""
        return self.first_split[0] ** 2

    def resized(self, image_size: int | Size) -> Self:
        """For another image size with as many soft splits, which could follow the size."""
        new, count = super().resized(image_size), len(self.splits)
        return new if len(new.splits) == count else replace(new, num_splits=count)


class SoftSplits(nn.Module):
    """All soft splits, the transformers between them, and the projection to the encoder."""

    def __init__(self, config: T2TConfig) -> None:
        super().__init__()
        self.splits, self.grids = config.splits, config.grids
        # Through the transformers between the splits a token sees everything; they are left out.
        self.receptive_field = reach((kernel, stride) for kernel, stride, _ in self.splits)
        width = config.stacked_channels
        self.transformers = nn.ModuleList()
        for kernel, _, _ in self.splits[:-1]:
            tokens = width * kernel**2
            self.transformers.append(
                Performer(
                    tokens, config.token_dim, dropout=config.dropout or config.performer_dropout
                )
                if config.performers
                else TokenTransformer(tokens, config.token_dim, **config.lsa, **config.dropouts)
            )
            width = config.token_dim
        self.proj = nn.Linear(width * self.splits[-1][0] ** 2, config.dim)

    def forward(
        self, images: Float[Tensor, "B C H W"], *, weights: list[Tensor] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Returns the encoder's tokens.

        Args:
            weights: A list to which the attention weights are appended.
        """
        x = soft_split(images, *self.splits[0])
        for transformer, grid, split in zip(
            self.transformers, self.grids, self.splits[1:], strict=False
        ):
            x = transformer(x, weights=weights)
            x = soft_split(x.transpose(1, 2).unflatten(2, grid), *split)
        return self.proj(x)


class T2T(Backbone):
    """The tokens-to-token transformer."""

    Config = T2TConfig
    drloc_narrow = True
    config: T2TConfig
    pool: ClassToken

    def __init__(self, config: T2TConfig) -> None:
        super().__init__(config)
        dim = config.dim
        self.tokenizer = SoftSplits(config)
        self.pool = ClassToken(dim)
        self.positions = Positions("sine", config.grids[-1], dim, prefix=1)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = Stack(
            self.make_block(
                Attention(dim, config.num_heads, **config.lsa, **config.dropouts), dim, rate
            )
            for rate in drop_rates(config.drop_path, config.depth, ramp=config.ramp)
        )
        self.norm = nn.LayerNorm(dim)
        self.dim, self.grids = dim, config.grids
        self.strides = list(accumulate((stride for _, stride, _ in config.splits), mul))
        self.head = self.make_head()
        self.apply(partial(init_linear, xavier=False))
        nn.init.trunc_normal_(self.pool.token, std=0.02)

    def encode(
        self,
        images: Float[Tensor, "B C H W"],
        weights: list[Tensor] | None,
        intermediates: list[Tensor] | None = None,
    ) -> Features:
        """Soft splits, blocks, norm, class token."""
        x = self.pool.prepend(self.tokenizer(self.shifted(images), weights=weights))
        x = self.dropout(self.positions(x))
        x = self.norm(self.blocks(x, weights=weights, intermediates=intermediates))
        return Features(x[:, 1:], self.grid, self.pool(x))

    def attention_stages(self) -> list[Stage]:
        """Patches among themselves after each soft split but the last, then all tokens."""
        early = [[AttentionLayout(token_range(1, h * w))] for h, w in self.grids[:-1]]
        layouts = [*early, [self.all_tokens(self.grid)] * len(self.blocks)]
        splits = self.config.splits[1:]
        later = [partial(soft_split, kernel=k, stride=s, padding=p) for k, s, p in splits]
        return list(map(Stage, self.grids, layouts, [None, *later]))

    def compensate_channels(self, state: dict[str, Tensor], factor: float) -> None:
        """The scale of the first transformer follows the width of its input; its queries adapt."""
        key = "tokenizer.transformers.0.attention.qkv.weight"
        if key in state and not self.config.temperature:
            state[key][: len(state[key]) // 3] *= factor**0.5


_T2T_12 = {"dim": 256, "depth": 12, "num_heads": 4, "mlp_ratio": 2, "drop_path": 0.1}
_T2T_14: dict[str, Any] = {"dim": 384, "depth": 14, "num_heads": 6, "mlp_ratio": 3}
_T2T_14 |= {"first_split": (7, 4, 2), "num_splits": 3, "performers": True}
_T2T_14 |= {"performer_dropout": 0.1}

VARIANTS = {
    "t2t_12": Variant(T2T, SPT_LSA, 32, _T2T_12),
    "t2t_14": Variant(T2T, DRLOC, 224, _T2T_14),
}
