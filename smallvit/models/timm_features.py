"""What timm asks of a backbone for detection and segmentation: its feature maps on the way.

A plain encoder (ViT, CaiT, T2T) has one feature per block, all on one grid; a family of several
stages (PiT, Swin, CvT, HCT) has one per stage. With `features_only=True` timm prunes what comes
after the last feature.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers import Features, MeanPool, SeqPool, Stack
from smallvit.models.base import Backbone

_FORMATS = ("NCHW", "NLC")
_LAST = 3  # how many blocks of a plain encoder are shown by default, as in timm


class FeatureMaps(Backbone):
    """The methods of timm's models that show features between the images and the head.

    Attributes:
        pruned: Whether layers were taken away, so that the config says more than there is.
    """

    pruned: bool = False

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Channels, pixels per token and module of each feature, first to last."""
        stacks = self.stacks()
        if not self.between:
            name, blocks, _ = stacks[0]
            stride = self.strides[-1]
            return [_info(f"{name}.{i}", _width(blocks), stride) for i in range(len(blocks))]
        return [
            # A stage without attention is what makes its tokens.
            _info(name, _width(blocks), stride) if len(blocks) else _info(maker, self.dim, stride)
            for stride, (name, blocks, maker) in zip(self.strides, stacks, strict=True)
        ]

    def forward_intermediates(
        self,
        x: Float[Tensor, "B C H W"],
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """What `forward_features` returns, and features on the way to it.

        Args:
            x: Images.
            indices: Which features, in this order, negative ones from the end; a number for that
                many of the last; None for all.
            return_prefix_tokens: Pairs each feature with its class token, where it has one; CaiT's
                joins after the last block.
            norm: Applies the final norm to the features of a plain encoder, and to the last
                stage of a family of several; CvT has none.
            stop_early: Computes nothing after the last feature; the first result is then what
                the layers up to there give.
            output_fmt: "NCHW" for maps, "NLC" for tokens.
            intermediates_only: Leaves out the first result.

        Returns:
            The features, in a list, after the tokens of `forward_features`.
        """
        if output_fmt not in _FORMATS:
            raise ValueError(f"output_fmt is {output_fmt!r}: allowed are {', '.join(_FORMATS)}")
        taken = self._taken(indices)
        model = self._view() if stop_early else self
        if stop_early:
            model.prune_intermediate_layers(taken, prune_head=False)
        model.require(x)
        seen: list[Tensor] = []
        final = model.encode(x, None, seen)
        features = [model._feature(seen, i, norm, output_fmt, return_prefix_tokens) for i in taken]
        return features if intermediates_only else (model.joined(final), features)

    def get_intermediate_layers(
        self,
        x: Float[Tensor, "B C H W"],
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
    ) -> list[Any]:
        """Features by DINO's names: the last `n`, or those of these indices.

        Args:
            x: Images.
            n: How many of the last features, or which.
            reshape: Maps instead of tokens.
            return_prefix_tokens: As in `forward_intermediates`.
            norm: As in `forward_intermediates`.
        """
        features: list[Any] = self.forward_intermediates(
            x,
            n,
            return_prefix_tokens=return_prefix_tokens,
            norm=norm,
            output_fmt="NCHW" if reshape else "NLC",
            intermediates_only=True,
        )
        return features

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] | None = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Takes away what these features do not need, in place.

        A norm and a head of the last stage's width go with that stage.

        Args:
            indices: Which features, as in `forward_intermediates`; None, which is how timm asks
                for no features in particular, for all stages or the last three blocks.
            prune_norm: Takes the final norm away.
            prune_head: Takes the head, its pool and CaiT's class layers away.

        Returns:
            The features' numbers, counted from the first.
        """
        info = self.feature_info
        if indices is None and not self.between:
            indices = min(_LAST, len(info))
        taken = self._taken(indices)
        count = max(taken) + 1
        misfits = bool(self.between) and count < len(info)
        parts: Any = self
        if self.between:
            makers = getattr(self, self.between)
            first = len(parts.stages) - len(makers)
            setattr(self, self.between, makers[: count - first])
            parts.stages = parts.stages[:count]
            self.grids, self.strides = self.grids[:count], self.strides[:count]
            self.dim = info[count - 1]["num_chs"]
        else:
            parts.blocks = parts.blocks[:count]
        if (prune_norm or misfits) and hasattr(self, "norm"):
            self.norm = nn.Identity()
        if prune_head or misfits:
            if isinstance(self.pool, SeqPool):
                self.pool = MeanPool()
            if not self.between:
                for name, _, _ in self.stacks()[1:]:  # class layers, which alone read the token
                    setattr(self, name, Stack())
                    self.pool = MeanPool()
            parts.reset_classifier(0, "")
        self.pruned = True
        return taken

    def joined(self, features: Features) -> Float[Tensor, "B N D"]:
        """The class token, if there is one, and the patch tokens."""
        if not self.pool.prefix:
            return features.tokens
        return torch.cat([features.pooled[:, None], features.tokens], 1)

    def _taken(self, indices: int | Sequence[int] | None) -> list[int]:
        """The features' numbers, counted from the first."""
        count = len(self.feature_info)
        if indices is None or isinstance(indices, int):
            number = count if indices is None else indices
            if not 1 <= number <= count:
                raise ValueError(f"the last {number} features: {self.name} has 1 to {count}")
            return list(range(count - number, count))
        wrong = [index for index in indices if not -count <= index < count]
        if wrong or not len(indices):
            raise ValueError(
                f"indices are {list(indices)}: {self.name} has features 0 to {count - 1}"
            )
        return [index % count for index in indices]

    def _view(self) -> "FeatureMaps":
        """This model with its own list of parts, from which some can be taken."""
        view = copy.copy(self)
        view.__dict__["_modules"] = dict(self._modules)
        return view

    def _feature(
        self, seen: list[Tensor], index: int, norm: bool, output_fmt: str, with_prefix: bool
    ) -> Any:
        """One feature as timm returns it."""
        tokens = seen[index]
        if norm and (not self.between or index == len(seen) - 1):
            parts: Any = self
            tokens = parts.norm(tokens) if hasattr(self, "norm") else tokens
        rows, columns = self.grids[index] if self.between else self.grid
        prefix = tokens.shape[1] - rows * columns
        patches = tokens[:, prefix:]
        if output_fmt == "NCHW":
            patches = patches.transpose(1, 2).unflatten(2, (rows, columns)).contiguous()
        return (patches, tokens[:, :prefix]) if with_prefix and prefix else patches


def _info(module: str, channels: int, stride: int) -> dict[str, Any]:
    return {"num_chs": channels, "reduction": stride, "module": module}


def _width(blocks: Stack) -> int:
    last: Any = blocks[-1]
    width: int = last.mlp.fc2.out_features
    return width
