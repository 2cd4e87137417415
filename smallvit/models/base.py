"""What every backbone shares: its config, its checks, and the way from images to logits."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers import (
    SPT,
    Block,
    Features,
    PatchTokenizer,
    Positions,
    WindowAttention,
    resample,
    shifted_stack,
)
from smallvit.layers.tokenizers import Directions, num_views, shift_pixels

Size = tuple[int, int]
Stages = tuple[int, ...]

_MAY_BE_ZERO = {"num_classes", "convs", "num_splits"}
_SHARES = {"dropout", "attn_dropout", "drop_path"}


def as_size(value: int | Sequence[int]) -> Size:
    """Height and width from one number or two."""
    sides: tuple[Any, ...] = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(sides) != 2 or not all(hasattr(side, "__index__") and side > 0 for side in sides):
        raise ValueError(
            f"image_size is {value!r}: give one positive number, or two as (height, width)"
        )
    return int(sides[0]), int(sides[1])


def require_multiple(size: Size, unit: int, why: str) -> None:
    """Refuses an image size that is no multiple of `unit`, and says which sizes are."""
    for side in size:
        if side % unit:
            near = [n for n in (side // unit * unit, (side // unit + 1) * unit) if n]
            raise ValueError(
                f"image_size {size[0]}×{size[1]} does not divide: {why}, so both sides must be "
                f"multiples of {unit}, such as {' or '.join(map(str, near))}"
            )


def drop_rates(rate: float, depth: int, *, ramp: bool) -> list[float]:
    """Stochastic depth for each layer: constant, or rising linearly from 0."""
    if not ramp:
        return [rate] * depth
    return [rate * i / max(depth - 1, 1) for i in range(depth)]


def _fault(name: str, kind: Any, value: Any) -> str:
    """What would be allowed where a value is not; else nothing."""
    if kind is bool:
        return "" if isinstance(value, bool) else "are True and False"
    if kind is int:
        least = 0 if name in _MAY_BE_ZERO else 1
        good = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return "" if good else f"is a whole number of at least {least}"
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in _SHARES:
            return "" if number and 0 <= value < 1 else "is 0 up to below 1"
        return "" if number and 0 < value < float("inf") else "is a number above 0"
    if kind == Stages:
        good = isinstance(value, Sequence) and all(isinstance(n, int) and n > 0 for n in value)
        return "" if good and value else "are positive whole numbers, one a stage"
    choices = get_args(kind)
    if choices and isinstance(choices[0], str) and value not in choices:
        return f"are {', '.join(choices)}"
    return ""


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The fields every family has.

    Attributes:
        image_size: Height and width; one number means a square.
        num_classes: Width of the head; 0 leaves the head out.
        in_channels: Channels of the images.
        spt: Shifted patch tokenization wherever the family tokenizes or pools.
        shift: SPT's shift as a fraction of the patch.
        directions: SPT's directions.
        temperature: LSA's learned temperature.
        masked: LSA's diagonal mask.
        dropout: After attention and in the MLP.
        attn_dropout: On the attention weights.
        drop_path: Stochastic depth.
    """

    image_size: Size
    num_classes: int
    in_channels: int = 3
    spt: bool = False
    shift: float = 0.5
    directions: Directions = "diagonal"
    temperature: bool = False
    masked: bool = False
    dropout: float = 0.0
    attn_dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_size(self.image_size))
        for field in fields(self):
            value = getattr(self, field.name)
            fault = _fault(field.name, field.type, value)
            if fault:
                raise ValueError(f"{field.name} is {value!r}: allowed {fault}")
        stages = {f.name: len(getattr(self, f.name)) for f in fields(self) if f.type == Stages}
        if len(set(stages.values())) > 1:
            told = ", ".join(f"{name} has {count}" for name, count in stages.items())
            raise ValueError(f"stages differ in number: {told}")

    @property
    def lsa(self) -> dict[str, Any]:
        """The two switches as attention layers take them."""
        return {"temperature": self.temperature, "masked": self.masked}

    @property
    def dropouts(self) -> dict[str, Any]:
        """The two dropouts as attention layers take them."""
        return {"dropout": self.dropout, "attn_dropout": self.attn_dropout}

    @property
    def stacked_channels(self) -> int:
        """Channels of what `Backbone.shifted` returns."""
        return self.in_channels * (num_views(self.directions) if self.spt else 1)


class Backbone(nn.Module):
    """Images to `Features` to logits.

    A family builds its parts in `__init__`, sets `config` and `head`, and writes `encode`.

    Attributes:
        dim: Width of its features.
        grid: Rows and columns of its features.
    """

    Config: ClassVar[type[BackboneConfig]]
    local: ClassVar[bool] = True  # whether LSA applies
    drloc_weight: ClassVar[float] = 0.1  # λ of dense relative localization in its paper
    config: Any
    dim: int
    grid: Size
    head: nn.Module
    name: str = ""

    def encode(self, images: Float[Tensor, "B C H W"], weights: list[Tensor] | None) -> Features:
        """Images of the right size to features; written by each family."""
        raise NotImplementedError

    def forward_features(
        self, images: Float[Tensor, "B C H W"], *, weights: list[Tensor] | None = None
    ) -> Features:
        """Everything but the head.

        Args:
            weights: A list to which every attention appends its weights, first layer first.
        """
        expected = (self.config.in_channels, *self.config.image_size)
        if tuple(images.shape[1:]) != expected:
            raise ValueError(
                "expected images of {}×{}×{} (channels, height, width)".format(*expected)
                + f" and got a batch shaped {tuple(images.shape)}; "
                "`model.resized(size)` makes this model for another size"
            )
        return self.encode(images, weights)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Logits."""
        return self.head(self.forward_features(images).pooled)

    def attention_maps(self, images: Float[Tensor, "B C H W"]) -> list[Tensor]:
        """The weights of every attention, first layer first."""
        weights: list[Tensor] = []
        self.forward_features(images, weights=weights)
        return weights

    def make_tokenizer(
        self, dim: int, plain: type[PatchTokenizer] = PatchTokenizer
    ) -> SPT | PatchTokenizer:
        """Shifted patches, or plain ones."""
        config = self.config
        if not config.spt:
            return plain(config.in_channels, dim, config.patch_size)
        options = {"shift": config.shift, "directions": config.directions}
        return SPT(config.in_channels, dim, config.patch_size, **options)

    def make_block(self, attention: nn.Module, dim: int, drop_path: float, **options: Any) -> Block:
        """A block with the config's MLP and dropout; options are those of `Block`."""
        ratio, dropout = self.config.mlp_ratio, self.config.dropout
        return Block(attention, dim, ratio, dropout=dropout, drop_path=drop_path, **options)

    def make_head(self, dim: int, grid: Size) -> nn.Module:
        """Notes what the features are; returns the head, or nothing where there are no classes."""
        self.dim, self.grid = dim, grid
        classes = self.config.num_classes
        return nn.Linear(dim, classes) if classes else nn.Identity()

    def shifted(self, images: Float[Tensor, "B C H W"], stride: int) -> Float[Tensor, "B c H W"]:
        """The stack that SPT puts in front of a convolution or soft split of that stride."""
        if not self.config.spt:
            return images
        shift = shift_pixels(self.config.shift, stride)
        return shifted_stack(images, shift, self.config.directions)

    def resized(self, image_size: int | Size) -> "Backbone":
        """This model for another image size: same weights, positions resampled to its grid."""
        new = type(self)(replace(self.config, image_size=as_size(image_size)))
        new.name = self.name
        state = self.state_dict()
        for (key, old_part), new_part in zip(self.named_modules(), new.modules(), strict=True):
            if isinstance(old_part, Positions) and isinstance(new_part, Positions):
                table = f"{key}.table"
                if table in state:
                    grids = old_part.grid, new_part.grid
                    state[table] = resample(state[table], *grids, old_part.prefix)
            elif isinstance(old_part, WindowAttention) and isinstance(new_part, WindowAttention):
                table = f"{key}.bias_table"
                old, to = ((2 * w[0] - 1, 2 * w[1] - 1) for w in (old_part.window, new_part.window))
                state[table] = resample(state[table][None], old, to)[0]
        new.load_state_dict(state)
        reference = next(self.parameters())
        return new.to(reference).train(self.training)


@torch.no_grad()
def init_linear(module: nn.Module, *, xavier: bool) -> None:
    """Linear layers: xavier-normal or truncated normal of 0.02; their biases zero."""
    if isinstance(module, nn.Linear) or (xavier and isinstance(module, nn.Conv2d)):
        if xavier:
            nn.init.xavier_normal_(module.weight)
        else:
            nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


SPT_LSA = "SPT + LSA (2112.13492)"
DRLOC = "DRLoc (2106.03746)"
COMPACT = "Compact Transformers (2104.05704)"
STANDARD = "ViT (2010.11929), as in timm"


@dataclass(frozen=True)
class Variant:
    """One row of a family's table.

    Attributes:
        model: The family's class.
        paper: Where these sizes come from.
        image_size: The image size of that paper.
        options: What its config is made of.
    """

    model: type[Backbone]
    paper: str
    image_size: int
    options: dict[str, Any]
