"""ViT and CCT: two tokenizers in front of one encoder.

Field names are those of the port that users know (`heads`, `mlp_dim`, `emb_dropout`); what it has
no name for is called as in `smallvit.models`.
"""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, ClassVar, get_args

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from smallvit.flax.blocks import Attention, Block, LayerNorm, Mlp
from smallvit.flax.initial import POSITION_STD, Init, linear
from smallvit.flax.pooling import ClassToken, MeanPool, Pool, SeqPool
from smallvit.flax.positions import Position, Positions, resample
from smallvit.flax.tokenizers import (
    SPT,
    ConvTokenizer,
    Directions,
    PatchTokenizer,
    shift_pixels,
    shifted_stack,
)

Size = tuple[int, int]


@flax.struct.dataclass
class Features:
    """What losses and probes read.

    Attributes:
        tokens: The final patch tokens, row by row, without the class token.
        pooled: What the linear head reads.
        grid: Rows and columns of the token grid; static under jit.
    """

    tokens: Float[Array, "B N D"]
    pooled: Float[Array, "B D"]
    grid: Size = flax.struct.field(pytree_node=False)


class Encoder(nn.Module, kw_only=True):
    """What ViT and CCT share: everything behind the tokenizer.

    Attributes:
        image_size: Height and width; one number means a square.
        num_classes: Width of the head; 0 leaves the head out.
        dim: Width of the tokens.
        depth: Number of blocks.
        heads: Number of heads.
        mlp_dim: Hidden width of the MLP.
        in_channels: Channels of the images.
        head_dim: Width of a head; by default dim / heads.
        spt: Shifted patch tokenization.
        shift: SPT's shift as a fraction of the patch, or of the tokens' stride.
        directions: SPT's directions.
        lsa: Locality self-attention.
        temperature: LSA's learned temperature; by default that of `lsa`.
        masked: LSA's diagonal mask; by default that of `lsa`.
        pool: Class token, mean, or sequence pooling.
        position: Learned, sinusoidal or no positions.
        post_norm: The published compact block.
        qkv_bias: Bias on queries, keys and values.
        eps: Added to the variance in every LayerNorm but SPT's.
        start: How the weights start.
        dropout: After attention and in the MLP.
        emb_dropout: After the positions.
        attn_dropout: On the attention weights.
        drop_path: Stochastic depth.
        ramp: Stochastic depth rises with depth instead of being constant.
        dtype: Data type of the computation, such as `jnp.bfloat16`; parameters stay float32.
    """

    image_size: int | Size
    num_classes: int
    dim: int
    depth: int
    heads: int
    mlp_dim: int
    in_channels: int = 3
    head_dim: int | None = None
    spt: bool = True
    shift: float = 0.5
    directions: Directions = "diagonal"
    lsa: bool = True
    temperature: bool | None = None
    masked: bool | None = None
    pool: Pool = "class"
    position: Position = "learned"
    post_norm: bool = False
    qkv_bias: bool = False
    eps: float = 1e-5
    start: Init = "xavier"
    dropout: float = 0.0
    emb_dropout: float = 0.0
    attn_dropout: float = 0.0
    drop_path: float = 0.0
    ramp: bool = False
    dtype: Any = None

    _CHOICES: ClassVar[dict[str, Any]] = {
        "directions": Directions,
        "pool": Pool,
        "position": Position,
        "start": Init,
    }

    def __post_init__(self) -> None:
        size: Any = self.image_size
        sides = size if isinstance(size, Sequence) else [size] * 2
        if len(sides) != 2 or not all(
            isinstance(side, Integral) and int(side) > 0 for side in sides
        ):
            raise ValueError(
                f"image_size is {self.image_size!r}: expected is one positive whole number, or two "
                "as (height, width)"
            )
        for name, kind in self._CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                allowed = ", ".join(get_args(kind))
                raise ValueError(f"{name} is {getattr(self, name)!r}: allowed are {allowed}")
        for name in ("dropout", "emb_dropout", "attn_dropout", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: allowed is 0 up to below 1")
        super().__post_init__()

    @property
    def size(self) -> Size:
        """Height and width."""
        size = self.image_size
        return (int(size[0]), int(size[1])) if isinstance(size, Sequence) else (size, size)

    @property
    def stride(self) -> int:
        """Pixels from one token to the next."""
        raise NotImplementedError

    @property
    def grid(self) -> Size:
        """Rows and columns of tokens; convolutions round up."""
        height, width = self.size
        return -(-height // self.stride), -(-width // self.stride)

    @property
    def prefix(self) -> int:
        """Class tokens in front of the others."""
        return 1 if self.pool == "class" else 0

    def make_tokenizer(self) -> nn.Module:
        """The part in which ViT and CCT differ."""
        raise NotImplementedError

    def tokenize(self, images: Float[Array, "B H W C"]) -> Float[Array, "B N D"]:
        """Images to tokens, row by row."""
        tokens: Array = self.tokenizer(images)
        return tokens

    def setup(self) -> None:
        """Makes every part, under the names the PyTorch model gives them."""
        self.tokenizer = self.make_tokenizer()
        self.pooling = self._make_pool()
        self.positions = Positions(self.position, POSITION_STD[self.start])
        self.emb_drop = nn.Dropout(self.emb_dropout, rng_collection="emb_dropout")
        self.blocks = [self._make_block(layer) for layer in range(self.depth)]
        self.norm = LayerNorm(epsilon=self.eps, dtype=self.dtype)
        if self.num_classes:
            self.head = nn.Dense(self.num_classes, kernel_init=linear(self.start), dtype=self.dtype)

    def _make_pool(self) -> MeanPool | ClassToken:
        if self.pool == "class":
            return ClassToken(self.dim, 1.0 if self.start == "xavier" else 0.0)
        if self.pool == "seq":
            return SeqPool(kernel_init=linear(self.start), dtype=self.dtype)
        return MeanPool()

    def _make_block(self, layer: int) -> Block:
        attention = Attention(
            self.dim,
            self.heads,
            head_dim=self.head_dim,
            qkv_bias=self.qkv_bias,
            temperature=self.lsa if self.temperature is None else self.temperature,
            masked=self.lsa if self.masked is None else self.masked,
            dropout=self.dropout,
            attn_dropout=self.attn_dropout,
            kernel_init=linear(self.start),
            dtype=self.dtype,
        )
        share = layer / max(self.depth - 1, 1) if self.ramp else 1.0
        return Block(
            attention,
            Mlp(self.mlp_dim, self.dropout, linear(self.start), self.dtype),
            drop_path=self.drop_path * share,
            post_norm=self.post_norm,
            eps=self.eps,
            dtype=self.dtype,
        )

    def features(self, images: Float[Array, "B H W C"], *, deterministic: bool = False) -> Features:
        """Everything but the head; call it with `method="features"`."""
        if not jnp.issubdtype(jnp.result_type(images), jnp.floating):
            raise TypeError(
                f"images are {jnp.result_type(images)}: expected is a batch of normalised images "
                "in floating point"
            )
        expected = (*self.size, self.in_channels)
        if images.shape[1:] != expected:
            raise ValueError(
                "expected images of {}×{}×{} (height, width, channels)".format(*expected)
                + f" and got a batch shaped {images.shape}; "
                "`resized(model, variables, size)` makes this model for another size"
            )
        if self.dtype is not None:
            images = images.astype(self.dtype)
        x = self.positions(self.pooling.prepend(self.tokenize(images)))
        x = self.emb_drop(x, deterministic=deterministic)
        for block in self.blocks:
            x = block(x, deterministic=deterministic)
        x = self.norm(x)
        return Features(tokens=x[:, self.prefix :], pooled=self.pooling(x), grid=self.grid)

    def classify(self, pooled: Float[Array, "B D"]) -> Float[Array, "B K"]:
        """Logits from pooled features; call it with `method="classify"`."""
        if not self.num_classes:
            return pooled
        logits: Array = self.head(pooled)
        return logits

    def __call__(
        self, images: Float[Array, "B H W C"], *, deterministic: bool = False
    ) -> Float[Array, "B K"]:
        """Logits."""
        return self.classify(self.features(images, deterministic=deterministic).pooled)


class ViT(Encoder, kw_only=True):
    """A transformer on patches, by default the SPT paper's with both of its parts.

    Attributes:
        patch_size: Side of a patch.
    """

    patch_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(side % self.patch_size for side in self.size):
            raise ValueError(
                f"image_size {self.size[0]}×{self.size[1]} does not divide: both sides must be "
                f"multiples of the patch_size {self.patch_size}"
            )

    @property
    def stride(self) -> int:
        """Pixels from one token to the next."""
        return self.patch_size

    def make_tokenizer(self) -> nn.Module:
        """Patches, shifted or plain."""
        if self.spt:
            return SPT(
                self.dim,
                self.patch_size,
                self.shift,
                self.directions,
                linear(self.start),
                self.dtype,
            )
        return PatchTokenizer(self.dim, self.patch_size, self.start, self.dtype)


class CCT(Encoder, kw_only=True):
    """The compact convolutional transformer, by default as published: sequence pooling, no SPT.

    Attributes:
        kernel: Side of the convolution kernels.
        convs: How many convolutions tokenize.
        conv_stride: Their stride.
    """

    kernel: int = 3
    convs: int = 1
    conv_stride: int = 1
    spt: bool = False
    lsa: bool = False
    pool: Pool = "seq"
    post_norm: bool = True
    start: Init = "compact"

    @property
    def stride(self) -> int:
        """Pixels from one token to the next."""
        return int((2 * self.conv_stride) ** self.convs)

    def make_tokenizer(self) -> nn.Module:
        """Convolutions."""
        return ConvTokenizer(self.dim, self.kernel, self.convs, self.conv_stride, self.dtype)

    def tokenize(self, images: Float[Array, "B H W C"]) -> Float[Array, "B N D"]:
        """With SPT, the shifted stack feeds the convolutions."""
        if self.spt:
            pixels = shift_pixels(self.shift, self.stride)
            images = shifted_stack(images, pixels, self.directions)
        return super().tokenize(images)


def resized(
    model: Encoder, variables: Mapping[str, Any], image_size: int | Size
) -> tuple[Encoder, dict[str, Any]]:
    """The model for another image size: same weights, positions resampled to its grid."""
    new = model.clone(image_size=image_size)
    changed = dict(variables)
    for collection, tree in variables.items():
        if "positions" in tree:
            table = jnp.asarray(tree["positions"]["table"])
            table = resample(table, model.grid, new.grid, model.prefix)
            changed[collection] = {**tree, "positions": {"table": table}}
    return new, changed
