"""Turns timm's transformers into their SPT/LSA versions, trained weights included."""

import copy
from typing import Any, Literal, TypeVar

from jaxtyping import Float
from timm.layers.attention import Attention
from timm.layers.patch_embed import PatchEmbed
from timm.models.cait import Cait, ClassAttn, TalkingHeadAttn
from timm.models.pit import Pooling, PoolingVisionTransformer
from timm.models.swin_transformer import PatchMerging, SwinTransformer, WindowAttention
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from smallvit.layers import SPT
from smallvit.layers.tokenizers import Directions
from smallvit.models.base import init_linear
from smallvit.models.local_layers import (
    LocalAttention,
    LocalClassAttention,
    LocalLayer,
    LocalTalkingHeads,
    LocalWindowAttention,
    ShiftedMerging,
    ShiftedPatchEmbed,
    ShiftedPooling,
    SPTMap,
    SPTMerging,
    recast,
)

Model = TypeVar("Model", bound=nn.Module)

LOCAL: dict[type[nn.Module], type[LocalLayer]] = {
    Attention: LocalAttention,
    TalkingHeadAttn: LocalTalkingHeads,
    ClassAttn: LocalClassAttention,
    WindowAttention: LocalWindowAttention,
}


def localize(
    model: Model,
    *,
    spt: bool = True,
    lsa: bool = True,
    temperature: bool | None = None,
    masked: bool | None = None,
    start: Literal["pretrained", "fresh"] = "pretrained",
    shift: float = 0.5,
    directions: Directions = "diagonal",
) -> Model:
    """The SPT/LSA version of a timm VisionTransformer, DeiT, CaiT, PiT or Swin.

    Returns a copy; the original model is not changed. The copy is still a timm model of
    the same class, and every tensor of the original keeps its name. Attention keeps its weights. An
    attention pool in front of the head (`global_pool="map"`) is left alone.

    Args:
        model: The timm model, with any weights.
        spt: Shifted patch tokenization: in the patch embedding, in Swin's patch merging too; in
            PiT, whose overlapping stem stays, in the pooling layers only.
        lsa: Both halves of locality self-attention, unless one is set by itself.
        temperature: Learns the scale of the scores, one per head; it starts at the old scale.
        masked: Hides every token from itself. CaiT's class layers have no diagonal.
        start: "pretrained" keeps each embedding and adds an SPT branch whose projection starts at
            zero, so that the model computes at first what it did; "fresh" replaces the embedding
            and what normalises it, as in the paper.
        shift: How far the copies move, as a fraction of the patch; by one token in mergings and
            pooling layers.
        directions: Where they move.

    Raises:
        TypeError: The model is not one of these.
        ValueError: It has an attention or an embedding that cannot be localized.
    """
    if start not in ("pretrained", "fresh"):
        raise ValueError(f"start is {start!r}: allowed are 'pretrained' and 'fresh'")
    _blocks(model)  # refuses what is not one of these, which may not be fit to be copied
    model = copy.deepcopy(model)
    blocks = _blocks(model)
    temperature = lsa if temperature is None else temperature
    masked = lsa if masked is None else masked
    if temperature or masked:
        for name, block in blocks.items():
            _localize_block(model, name, block, temperature=temperature, masked=masked)
    if spt:
        _add_spt(model, fresh=start == "fresh", shift=shift, directions=directions)
    return model


def attention_maps(model: nn.Module, images: Float[Tensor, "B C H W"]) -> list[Tensor]:
    """The weights of every attention of a model with LSA, first layer first."""
    local = [part for part in model.modules() if isinstance(part, LocalLayer)]
    if not local:
        raise ValueError("no attention of this model is localized: it shows no weights")
    weights: list[Tensor] = []

    def pass_list(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "weights": weights}

    hooks = [part.register_forward_pre_hook(pass_list, with_kwargs=True) for part in local]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return weights


def _blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Every transformer block by name."""
    if isinstance(model, PoolingVisionTransformer):
        roots = [f"transformers.{i}.blocks" for i in range(len(model.transformers))]
    elif isinstance(model, SwinTransformer):
        roots = [f"layers.{i}.blocks" for i in range(len(model.layers))]
    elif isinstance(model, Cait):
        roots = ["blocks", "blocks_token_only"]
    elif isinstance(model, VisionTransformer):
        roots = ["blocks"]
    else:
        raise TypeError(
            f"cannot localize a {type(model).__name__}: expected timm's VisionTransformer (DeiT is "
            "one), Cait, PoolingVisionTransformer or SwinTransformer; localize such a model before "
            "it is wrapped or compiled"
        )
    return {
        f"{root}.{name}": block
        for root in roots
        for name, block in model.get_submodule(root).named_children()
    }


def _localize_block(
    model: nn.Module, name: str, block: nn.Module, *, temperature: bool, masked: bool
) -> None:
    """Every attention of a block becomes local; one that is not understood is refused."""
    # `num_heads` marks an attention, also where a block computes it by itself.
    attentions = {k: part for k, part in block.named_modules() if hasattr(part, "num_heads")}
    strange = [type(part).__name__ for part in attentions.values() if type(part) not in LOCAL]
    if strange or not attentions:
        raise ValueError(
            f"{name} is a {type(block).__name__} with {', '.join(strange) or 'no attention'}: "
            f"LSA knows {', '.join(known.__name__ for known in LOCAL)}"
        )
    for path, part in attentions.items():
        local: Any = recast(part, LOCAL[type(part)])
        local.masked = masked and not isinstance(local, LocalClassAttention)
        local.initial_scale = local.scale
        if temperature:
            start = local.proj.weight.new_full((local.num_heads,), local.scale)
            local.scale = nn.Parameter(start)
        model.set_submodule(f"{name}.{path}", local)


def _add_spt(model: Any, *, fresh: bool, shift: float, directions: Directions) -> None:
    """SPT wherever the family tokenizes or pools."""
    if isinstance(model, PoolingVisionTransformer):
        for stage in model.transformers:
            if stage.pool is not None:
                _shift_pooling(stage, fresh, directions)
        return
    _shift_embedding(model, fresh, shift, directions)
    if isinstance(model, SwinTransformer):
        for stage in model.layers:
            if not isinstance(stage.downsample, nn.Identity):
                _shift_merging(stage, fresh, directions)


def _shift_embedding(model: Any, fresh: bool, shift: float, directions: Directions) -> None:
    embed = model.patch_embed
    kind, conv = type(embed), getattr(embed, "proj", None)
    if kind is not PatchEmbed or not isinstance(conv, nn.Conv2d):
        raise ValueError(
            f"the patch embedding is a {kind.__name__}: SPT knows timm's PatchEmbed with "
            "one convolution; spt=False leaves the embedding alone"
        )
    height, width = embed.patch_size
    if height != width:
        raise ValueError(f"patches are {height}×{width}: shifted patches must be square")
    options: dict[str, Any] = {"shift": shift, "directions": directions}
    spt = SPTMap(
        conv.in_channels, conv.out_channels, height, padded=embed.dynamic_img_pad, **options
    )
    _start(spt, embed, conv.weight, fresh=fresh)
    model.patch_embed = recast(embed, ShiftedPatchEmbed)
    model.patch_embed.spt = None if fresh else spt
    if fresh:
        model.patch_embed.proj, model.patch_embed.norm = spt, nn.Identity()


def _shift_pooling(stage: Any, fresh: bool, directions: Directions) -> None:
    pool = stage.pool
    kind, conv = type(pool), getattr(pool, "conv", None)
    if kind is not Pooling or not isinstance(conv, nn.Conv2d) or conv.stride != (2, 2):
        raise ValueError(f"a pooling layer is {pool}: SPT replaces PiT's pooling at stride 2 only")
    spt = SPTMap(conv.in_channels, conv.out_channels, 2, padded=True, directions=directions)
    _start(spt, pool, conv.weight, fresh=fresh)
    if fresh:
        pool.conv = spt
    else:
        stage.pool = recast(pool, ShiftedPooling)
        stage.pool.spt = spt


def _shift_merging(stage: Any, fresh: bool, directions: Directions) -> None:
    merging = stage.downsample
    kind = type(merging)
    if kind is not PatchMerging:
        raise ValueError(f"a merging is a {kind.__name__}: SPT knows Swin's PatchMerging")
    spt = SPTMerging(merging.dim, merging.out_dim, 2, padded=True, directions=directions)
    _start(spt, merging, merging.reduction.weight, fresh=fresh)
    if fresh:
        stage.downsample = spt
    else:
        stage.downsample = recast(merging, ShiftedMerging)
        stage.downsample.spt = spt


def _start(spt: SPT, old: nn.Module, like: Tensor, *, fresh: bool) -> None:
    """A fresh projection starts as in the paper, a branch at zero; both where the old part is."""
    if fresh:
        init_linear(spt.proj, xavier=True)
    else:
        nn.init.zeros_(spt.proj.weight)
        nn.init.zeros_(spt.proj.bias)
    spt.to(like).train(old.training)
