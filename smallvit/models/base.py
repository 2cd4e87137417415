"""What every backbone shares: the way from images to logits, and what it states of itself."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.arguments import described
from smallvit.layers import (
    SPT,
    AttentionLayout,
    Block,
    ClassToken,
    Features,
    MeanPool,
    PatchTokenizer,
    Stack,
    Stage,
    shifted_stack,
    token_range,
)
from smallvit.models.config import BackboneConfig
from smallvit.sizes import Size


class Backbone(nn.Module):
    """Images to `Features` to logits.

    A family builds its parts in `__init__`, sets `pool`, `dim`, `grids`, `strides` and `head`, and
    writes `encode`. What it states of itself otherwise holds for a tokenizer and stacks of blocks,
    one per grid, in which all tokens attend to each other unless the attention has a layout.

    Attributes:
        Config: The class of its config.
        takes_lsa: Whether LSA can be added; a family that does not take it has it, or says why.
        between: Name of the list of modules that make the tokens of a stack; the last belongs to
            the last stack.
        pool: From the final tokens to the vector that the head reads.
        dim: Width of its features.
        grids: Rows and columns of tokens at each stage.
        strides: Pixels from one token to the next at each stage.
    """

    Config: ClassVar[type[BackboneConfig]]
    takes_lsa: ClassVar[bool] = True
    drloc_weight: ClassVar[float] = 0.1  # λ of dense relative localization in its paper
    drloc_narrow: ClassVar[bool] = False  # how its perceptron starts in the released code
    between: ClassVar[str] = ""
    config: BackboneConfig
    pool: MeanPool | ClassToken
    dim: int
    grids: list[Size]
    strides: list[int]
    head: nn.Module
    name: str = ""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config

    def encode(
        self,
        images: Float[Tensor, "B C H W"],
        weights: list[Tensor] | None,
        intermediates: list[Tensor] | None = None,
    ) -> Features:
        """Images of the right size to features; written by each family.

        Args:
            weights: A list to which every attention appends its weights, first layer first.
            intermediates: A list to which the tokens are appended, class tokens first, as they
                leave each block of a plain encoder or each stage of a family of several.
        """
        raise NotImplementedError

    def forward_features(
        self, images: Float[Tensor, "B C H W"], *, weights: list[Tensor] | None = None
    ) -> Features:
        """Everything but the head.

        Args:
            weights: A list to which every attention appends its weights, first layer first.
        """
        self.require(images)
        return self.encode(images, weights)

    def require(self, images: Float[Tensor, "B C H W"]) -> None:
        """Refuses what is no batch of images of its channels and size."""
        if not isinstance(images, Tensor) or not images.is_floating_point():
            raise TypeError(
                f"images is {described(images)}: expected is a batch of normalised images in "
                "floating point; `smallvit.augment.normalise` makes one of bytes"
            )
        expected = (self.config.in_channels, *self.config.image_size)
        if tuple(images.shape[1:]) != expected:
            raise ValueError(
                "expected images of {}×{}×{} (channels, height, width)".format(*expected)
                + f" and got a batch shaped {tuple(images.shape)}; "
                "`model.resized(size)` makes this model for another size"
            )

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Logits."""
        return self.head(self.forward_features(images).pooled)

    def attention_maps(self, images: Float[Tensor, "B C H W"]) -> list[Tensor]:
        """The weights of every attention, first layer first."""
        weights: list[Tensor] = []
        self.forward_features(images, weights=weights)
        return weights

    @property
    def grid(self) -> Size:
        """Rows and columns of its features."""
        return self.grids[-1]

    def stacks(self) -> list[tuple[str, Stack, str]]:
        """Its stacks of blocks, first to last: name, blocks, and what makes their tokens."""
        stacks = [(name, part) for name, part in self.named_modules() if isinstance(part, Stack)]
        makers = [f"{self.between}.{i}" for i in range(len(getattr(self, self.between, ())))]
        makers = [*[""] * (len(stacks) - len(makers)), *makers]
        return [(*stack, maker) for stack, maker in zip(stacks, makers, strict=True)]

    def attention_stages(self) -> list[Stage]:
        """Which tokens attend to which, with one layout per attention, first to last."""
        stages: list[Stage] = []
        for grid, (_, blocks, maker) in zip(self.grids, self.stacks(), strict=True):
            everything = self.all_tokens(grid)
            layouts = [getattr(block.attention, "layout", everything) for block in blocks]
            view: Any = self.get_submodule(maker).view if maker and stages else None
            stages.append(Stage(grid, layouts, view))
        return stages

    def all_tokens(self, grid: Size) -> AttentionLayout:
        """Attention of all tokens on a grid, class tokens too."""
        return AttentionLayout(token_range(0, self.pool.prefix + grid[0] * grid[1]))

    @property
    def receptive_field(self) -> int:
        """The side, in pixels, of what one token sees as it leaves the tokenizer."""
        tokenizer: Any = self.tokenizer
        return tokenizer.receptive_field + 2 * self.config.stack_shift

    def parameter_layers(self) -> list[tuple[str, ...]]:
        """Names of the parts of each layer, from the images on.

        The first holds the tokenizer, positions and class token, then each block is a layer, with
        what makes its tokens in front of it. What is not named belongs to the head, the last.
        """
        layers: list[tuple[str, ...]] = [("tokenizer", "positions", "pool.token")]
        for name, blocks, maker in self.stacks():
            if maker and len(layers) == 1:
                layers[0] = (*layers[0], maker)
                maker = ""
            for index in range(len(blocks)):
                block = f"{name}.{index}"
                layers.append((maker, block) if maker and not index else (block,))
        return layers

    def compensate_channels(self, state: dict[str, Tensor], factor: float) -> None:
        """Adapts, in place, what else depends on having `factor` times as many channels."""

    def make_tokenizer(
        self, dim: int, patch_size: int, plain: type[PatchTokenizer] = PatchTokenizer
    ) -> SPT | PatchTokenizer:
        """Shifted patches, or plain ones."""
        config = self.config
        if not config.spt:
            return plain(config.in_channels, dim, patch_size)
        return SPT(
            config.in_channels, dim, patch_size, shift=config.shift, directions=config.directions
        )

    def make_block(self, attention: nn.Module, dim: int, drop_path: float, **options: Any) -> Block:
        """A block with the config's MLP and dropout; options are those of `Block`."""
        ratio, dropout = self.config.mlp_ratio, self.config.dropout
        return Block(attention, dim, ratio, dropout=dropout, drop_path=drop_path, **options)

    def make_head(self) -> nn.Module:
        """The head, or nothing where there are no classes."""
        classes = self.config.num_classes
        return nn.Linear(self.dim, classes) if classes else nn.Identity()

    def shifted(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B c H W"]:
        """The stack that SPT puts in front of a convolution or soft split."""
        shift = self.config.stack_shift
        return shifted_stack(images, shift, self.config.directions) if shift else images

    def state_for(self, new: "Backbone") -> dict[str, Tensor]:
        """Its state dict for the same model at another size: positions resampled to its grid."""
        state = self.state_dict()
        for (key, old_part), new_part in zip(self.named_modules(), new.modules(), strict=True):
            resample: Any = getattr(old_part, "resampled", None)
            if resample is not None:
                state |= {f"{key}.{name}": value for name, value in resample(new_part).items()}
        return state

    def resized(self, image_size: int | Size) -> "Backbone":
        """This model for another image size: same weights, positions resampled to its grid."""
        new = type(self)(self.config.resized(image_size))
        new.name = self.name
        new.load_state_dict(self.state_for(new))
        reference = next(self.parameters())
        return new.to(reference).train(self.training)


def drop_rates(rate: float, depth: int, *, ramp: bool) -> list[float]:
    """Stochastic depth for each layer: constant, or rising linearly from 0."""
    if not ramp:
        return [rate] * depth
    return [rate * i / max(depth - 1, 1) for i in range(depth)]


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


def init_patches(tokenizer: nn.Module) -> None:
    """Xavier-normal, as the linear layer over the pixels of a patch that the convolution is."""
    if isinstance(tokenizer, PatchTokenizer):
        nn.init.xavier_normal_(tokenizer.proj.weight.flatten(1))


SPT_LSA = "SPT + LSA (2112.13492)"
DRLOC = "DRLoc (2106.03746)"
COMPACT = "Compact Transformers (2104.05704)"
STANDARD = "ViT (2010.11929), as in timm"
OURS = "our own"


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
