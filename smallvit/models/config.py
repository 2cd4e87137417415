"""The config every family extends: its fields, their checks, and what follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Self

from smallvit.arguments import AboveZero, Between, Rate, Width, check
from smallvit.layers.tokenizers import Directions, num_views, shift_pixels
from smallvit.sizes import Size, as_size

Count = Annotated[int, Between(0, 1_000_000)]
Stages = tuple[int, ...]
"""One number per stage."""

#: What is allowed where a field's type alone does not say it.
_LIMITS: dict[Any, Any] = {int: Width, float: AboveZero, Stages: Sequence[Width]}


def require_multiple(size: Size, unit: int, why: str) -> None:
    """Refuses an image size that is not a multiple of `unit`, and says which sizes are."""
    for side in size:
        if side % unit:
            near = [n for n in (side // unit * unit, (side // unit + 1) * unit) if n]
            raise ValueError(
                f"image_size {size[0]}×{size[1]} does not divide: {why}, so both sides must be "
                f"multiples of {unit}, such as {' or '.join(map(str, near))}"
            )


def patch_grid(size: Size, patch_size: int) -> Size:
    """Rows and columns of patches; refuses an image size that does not divide."""
    require_multiple(size, patch_size, f"patches are {patch_size} pixels wide")
    return size[0] // patch_size, size[1] // patch_size


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The fields every family has.

    Attributes:
        image_size: Height and width; one number means a square.
        num_classes: Width of the head; 0 leaves the head out.
        in_channels: Channels of the images.
        mlp_ratio: Hidden width of the MLP over the width of the tokens.
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
    num_classes: Count
    in_channels: int = 3
    mlp_ratio: float
    spt: bool = False
    shift: float = 0.5
    directions: Directions = "diagonal"
    temperature: bool = False
    masked: bool = False
    dropout: Rate = 0.0
    attn_dropout: Rate = 0.0
    drop_path: Rate = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_size(self.image_size))
        for field in fields(self):
            try:
                hint = _LIMITS.get(field.type, field.type)
                check(field.name, getattr(self, field.name), hint)
            except TypeError as error:  # options may come from a file
                raise ValueError(str(error)) from error
        stages = {f.name: len(getattr(self, f.name)) for f in fields(self) if f.type == Stages}
        if len(set(stages.values())) > 1 or 0 in stages.values():
            counts = ", ".join(f"{name} has {count}" for name, count in stages.items())
            what = "there are no stages" if 0 in stages.values() else "stages differ in number"
            raise ValueError(f"{what}: {counts}")

    @property
    def lsa(self) -> dict[str, Any]:
        """The two switches as attention layers take them."""
        return {"temperature": self.temperature, "masked": self.masked}

    @property
    def dropouts(self) -> dict[str, Any]:
        """The two dropouts as attention layers take them."""
        return {"dropout": self.dropout, "attn_dropout": self.attn_dropout}

    @property
    def stack_stride(self) -> int:
        """Stride of the layer that reads the shifted stack; 0 where SPT cuts the patches itself."""
        return 0

    @property
    def stack_shift(self) -> int:
        """Pixels by which the copies of the shifted stack move; 0 without a stack."""
        if not (self.spt and self.stack_stride):
            return 0
        return shift_pixels(self.shift, self.stack_stride)

    @property
    def stacked_channels(self) -> int:
        """Channels of what `Backbone.shifted` returns."""
        return self.in_channels * (num_views(self.directions) if self.stack_shift else 1)

    @property
    def first_conv(self) -> str | None:
        """The convolution that reads the image; None where another layer does."""
        return None if self.spt else "tokenizer.proj"

    @property
    def entries_per_channel(self) -> int:
        """Neighbouring inputs of the first matrix that come from one channel of the image."""
        return 1

    def resized(self, image_size: int | Size) -> Self:
        """This config for another image size, with the same weights but for positions."""
        return replace(self, image_size=as_size(image_size))
