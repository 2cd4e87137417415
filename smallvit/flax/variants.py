"""The models of this family by name: the same names and sizes as in `smallvit.models`."""

import dataclasses
import difflib
from typing import Any

from smallvit.flax.models import CCT, Encoder, Size, ViT


def _sizes(depth: int, dim: int, heads: int, mlp_dim: int) -> dict[str, Any]:
    return {"depth": depth, "dim": dim, "heads": heads, "mlp_dim": mlp_dim}


_COMPACT = {
    depth: {
        **_sizes(depth, dim, heads, mlp_dim),
        "post_norm": True,
        "start": "compact",
        "attn_dropout": 0.1,
        "drop_path": 0.1,
        "ramp": True,
    }
    for depth, dim, heads, mlp_dim in (
        (2, 128, 2, 128),
        (4, 128, 2, 128),
        (6, 256, 4, 512),
        (7, 256, 4, 512),
        (14, 384, 6, 1152),
    )
}
_PATCHES = [*((depth, 4) for depth in _COMPACT), (7, 8), (7, 16)]
_SMALL = {**_sizes(9, 192, 12, 384), "drop_path": 0.1}
_TIMM = {"qkv_bias": True, "eps": 1e-6, "ramp": True, "start": "trunc"}

#: name → (module, its fields)
VARIANTS: dict[str, tuple[type[Encoder], dict[str, Any]]] = {
    "vit_9_p4": (ViT, {**_SMALL, "patch_size": 4}),
    "vit_9_p8": (ViT, {**_SMALL, "patch_size": 8}),
    **{
        f"vit_lite_{depth}_p{patch}": (ViT, {**_COMPACT[depth], "patch_size": patch})
        for depth, patch in _PATCHES
    },
    **{
        f"compact_vit_{depth}_p{patch}": (
            ViT,
            {**_COMPACT[depth], "patch_size": patch, "pool": "seq"},
        )
        for depth, patch in _PATCHES
    },
    **{
        f"cct_{depth}_{kernel}x{convs}": (
            CCT,
            {**_COMPACT[depth], "kernel": kernel, "convs": convs, "conv_stride": stride},
        )
        for depth in _COMPACT
        for kernel, convs, stride in ((3, 1, 1), (3, 2, 1), (7, 2, 2))
    },
    "vit_base_p16": (ViT, {**_TIMM, **_sizes(12, 768, 12, 3072), "patch_size": 16}),
    "vit_large_p16": (ViT, {**_TIMM, **_sizes(24, 1024, 16, 4096), "patch_size": 16}),
    "vit_huge_p14": (ViT, {**_TIMM, **_sizes(32, 1280, 16, 5120), "patch_size": 14}),
}
_SUFFIXES = ("", "+spt", "+lsa", "+spt+lsa")


def from_name(
    name: str, *, num_classes: int, image_size: int | Size, in_channels: int = 3, **options: Any
) -> Encoder:
    """Builds one of our models.

    Args:
        name: A name of `VARIANTS`, with `+spt`, `+lsa` or `+spt+lsa` behind it if wanted.
        num_classes: Width of the head; 0 leaves it out.
        image_size: One number, or (height, width).
        in_channels: Channels of the images.
        options: Any field of the module, such as `drop_path=0.2` or `dtype=jnp.bfloat16`.

    Raises:
        ValueError: A name or option is not known.
    """
    base, *addons = name.split("+")
    if base not in VARIANTS:
        near = difflib.get_close_matches(base, VARIANTS, n=3, cutoff=0.4)
        hint = f"the nearest are {', '.join(near)}" if near else "`VARIANTS` holds all"
        raise ValueError(f"there is no model {base!r} in Flax; {hint}")
    if name.removeprefix(base) not in _SUFFIXES:
        raise ValueError(
            f"{name!r}: add-ons are {', '.join(_SUFFIXES[1:])}, in this order and no others"
        )
    module, fields = VARIANTS[base]
    known = {field.name for field in dataclasses.fields(module)} - {"parent", "name"}
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(sorted(known))}"
            raise ValueError(f"{name} has no option {option!r}; {hint}")
    return module(
        num_classes=num_classes,
        image_size=image_size,
        in_channels=in_channels,
        **{**fields, "spt": "spt" in addons, "lsa": "lsa" in addons, **options},
    )
