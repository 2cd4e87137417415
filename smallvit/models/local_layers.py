"""timm's layers, localized: what `localize` puts in their stead.

Each is a subclass of the layer it replaces, so that tensors keep their names and whatever is not
said here stays timm's. The similarity matrix with its scale and mask, and the shifted patches, are
this package's.
"""

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.layers.attention import Attention
from timm.layers.format import Format, nchw_to
from timm.layers.helpers import to_2tuple
from timm.layers.patch_embed import PatchEmbed
from timm.models.cait import ClassAttn, TalkingHeadAttn
from timm.models.pit import Pooling
from timm.models.swin_transformer import PatchMerging, WindowAttention
from torch import Tensor, nn

from smallvit.layers import SPT, TalkingHeads, attend

Part = TypeVar("Part", bound=nn.Module)


def recast(part: nn.Module, kind: type[Part]) -> Part:
    """A timm module as a subclass of its class, with the same tensors and settings.

    It is restored as pickle restores one: the constructor would draw new weights.
    """
    module = kind.__new__(kind)
    module.__setstate__(part.__dict__)
    return module


class LocalLayer(nn.Module):
    """What localized attentions share: timm's number `scale` may be a parameter, one per head.

    Attributes:
        initial_scale: The scale before training, which a temperature of 1 stands for.
    """

    masked: bool
    scale: nn.Parameter | float
    initial_scale: float
    num_heads: int
    attn_drop: nn.Dropout

    def heads(self, x: Float[Tensor, "B N MEs"], parts: int) -> tuple[Tensor, ...]:
        """Splits a projection into `parts` tensors of heads, each (B, M, N, E)."""
        return x.unflatten(-1, (parts, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    @property
    def options(self) -> dict[str, Any]:
        """Scale, mask and dropout as `attend` takes them."""
        scale = self.scale
        return {
            "scale": scale.view(-1, 1, 1) if isinstance(scale, Tensor) else scale,
            "masked": self.masked,
            "dropout": self.attn_drop.p if self.training else 0.0,
        }


class LocalAttention(LocalLayer, Attention):
    """The attention of timm's ViT, DeiT and PiT, localized."""

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        *,
        weights: list[Tensor] | None = None,
    ) -> Float[Tensor, "B N d"]:
        """Tokens attend to each other.

        Args:
            attn_mask: timm's, boolean (True may be seen) or added to the scores.
            is_causal: Hides what comes later.
            weights: A list to which the attention weights are appended.
        """
        q, k, v = self.heads(self.qkv(x), 3)
        q, k = self.q_norm(q), self.k_norm(k)
        options = self.options
        if is_causal:
            attn_mask = torch.ones(q.shape[-2:-1] * 2, dtype=torch.bool, device=q.device).tril()
        if attn_mask is not None:
            options |= {"bias": _bias(attn_mask, q, masked=self.masked), "masked": False}
        y = attend(q, k, v, **options, weights=weights)
        y = self.norm(y.transpose(1, 2).flatten(2))
        gate = getattr(self, "gate", None)  # older timm has none
        if gate is not None:
            y = y * gate(x).sigmoid()
        return self.proj_drop(self.proj(y))


def _bias(mask: Tensor, q: Float[Tensor, "B M N E"], *, masked: bool) -> Tensor:
    """A mask as a bias. A token that may see none but itself keeps its diagonal."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf"))
    if not masked:
        return mask
    diagonal = torch.eye(q.shape[-2], dtype=torch.bool, device=q.device)
    others = torch.where(diagonal, float("-inf"), mask)
    alone = (others == float("-inf")).all(-1, keepdim=True)
    return torch.where(alone, mask, others)


class LocalTalkingHeads(LocalLayer, TalkingHeadAttn, TalkingHeads):
    """The attention of CaiT's patch layers, localized; it is its own pair of mixing layers."""

    before = property(lambda self: self.proj_l)
    after = property(lambda self: self.proj_w)

    @staticmethod
    def mix(maps: Float[Tensor, "B M n N"], matrix: nn.Linear) -> Float[Tensor, "B M n N"]:  # type: ignore[override]
        """Mixes as timm does, with a linear layer that has a bias."""
        weight, bias = matrix.weight.to(maps.dtype), matrix.bias.to(maps.dtype)
        return F.linear(maps.movedim(1, -1), weight, bias).movedim(-1, 1)

    def forward(
        self, x: Float[Tensor, "B N D"], *, weights: list[Tensor] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Tokens attend to each other.

        Args:
            weights: A list to which the attention weights are appended, mixed.
        """
        y = attend(*self.heads(self.qkv(x), 3), **self.options, talking=self, weights=weights)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))


class LocalClassAttention(LocalLayer, ClassAttn):
    """The attention of CaiT's class layers: a learned scale; one query has no diagonal."""

    def forward(
        self, x: Float[Tensor, "B N D"], *, weights: list[Tensor] | None = None
    ) -> Float[Tensor, "B 1 D"]:
        """The class token, which comes first, attends to all.

        Args:
            weights: A list to which the attention weights are appended.
        """
        (q,), (k,), (v,) = (
            self.heads(project(part), 1)
            for project, part in ((self.q, x[:, :1]), (self.k, x), (self.v, x))
        )
        y = attend(q, k, v, **self.options, weights=weights)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))


class LocalWindowAttention(LocalLayer, WindowAttention):
    """The attention of Swin, localized; the scale multiplies q·kᵀ only."""

    def forward(
        self,
        x: Float[Tensor, "BW n D"],
        mask: Float[Tensor, "W n n"] | None = None,
        *,
        weights: list[Tensor] | None = None,
    ) -> Float[Tensor, "BW n D"]:
        """Tokens attend inside their windows.

        Args:
            mask: Added to the scores, one per window of an image.
            weights: A list to which the weights are appended, (B · windows, M, n, n).
        """
        q, k, v = self.heads(self.qkv(x), 3)
        options, bias = self.options, self._get_rel_pos_bias()
        windows = 1 if mask is None else len(mask)
        if mask is not None:
            # Windows and heads share one axis, so that the mask is never copied for the batch.
            q, k, v = (t.unflatten(0, (-1, windows)).flatten(1, 2) for t in (q, k, v))
            bias = (bias + mask[:, None]).flatten(0, 1)
            if isinstance(self.scale, Tensor):
                options["scale"] = options["scale"].repeat(windows, 1, 1)
        maps: list[Tensor] | None = None if weights is None else []
        y = attend(q, k, v, **options, bias=bias, weights=maps)
        if weights is not None and maps:
            weights += [m.unflatten(1, (windows, -1)).flatten(0, 1) for m in maps]
        y = y.unflatten(1, (windows, -1)).flatten(0, 1).transpose(1, 2).flatten(2)
        return self.proj_drop(self.proj(y))


class SPTMap(SPT):
    """SPT from one feature map to another, for any size.

    Args:
        in_channels: Channels of the map.
        dim: Channels of the new map.
        patch_size: Side of a patch.
        padded: Fills up the last patches with zeros instead of leaving out incomplete patches.
        options: Further arguments of `SPT`.
    """

    def __init__(
        self, in_channels: int, dim: int, patch_size: int, *, padded: bool, **options: Any
    ) -> None:
        super().__init__(in_channels, dim, patch_size, **options)
        self.padded = padded

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Returns one vector per patch."""
        p = self.patch_size
        bottom, right = -images.shape[2] % p, -images.shape[3] % p
        if self.padded and (bottom or right):
            images = F.pad(images, (0, right, 0, bottom))
        h, w = images.shape[2] // p, images.shape[3] // p
        return super().forward(images[:, :, : h * p, : w * p]).transpose(1, 2).unflatten(2, (h, w))


class SPTMerging(SPTMap):
    """The same with channels last, as Swin keeps its maps."""

    def forward(self, images: Float[Tensor, "B H W C"]) -> Float[Tensor, "B h w D"]:
        """Returns one vector per patch."""
        return super().forward(images.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class ShiftedPatchEmbed(PatchEmbed):
    """timm's patch embedding plus an SPT branch; or, with no branch, SPT in place of `proj`."""

    spt: SPTMap | None

    def set_input_size(self, img_size: Any = None, patch_size: Any = None) -> None:
        """Another image size is fine; another patch size is refused."""
        if patch_size is not None and to_2tuple(patch_size) != self.patch_size:
            raise ValueError(
                f"patch_size is {patch_size}: the shifted patches stay {self.patch_size[0]} pixels "
                "wide; set the patch size first and localize then"
            )
        super().set_input_size(img_size)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Tensor:
        """Returns patches in the format of the embedding."""
        tokens = super().forward(x)
        if self.spt is None:
            return tokens
        return tokens + nchw_to(self.spt(x), Format.NLC if self.flatten else self.output_fmt)


class ShiftedPooling(Pooling):
    """PiT's pooling plus an SPT branch."""

    spt: SPTMap

    def forward(self, x: Tensor, cls_token: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the pooled map and the widened class tokens."""
        pooled, cls_token = super().forward(x, cls_token)
        return pooled + self.spt(x), cls_token


class ShiftedMerging(PatchMerging):
    """Swin's patch merging plus an SPT branch."""

    spt: SPTMerging

    def forward(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B h w D"]:
        """Returns the merged map."""
        return super().forward(x) + self.spt(x)
