"""Every registered model, made small: the same parts, fewer and narrower."""

from smallvit.models import create_model, list_models
from smallvit.models.cait import CaiT
from smallvit.models.cvt import CvT
from smallvit.models.hct import HCT
from smallvit.models.names import MODELS
from smallvit.models.pit import PiT
from smallvit.models.swin import Swin
from smallvit.models.t2t import T2T
from smallvit.models.vit import ViT

NAMES = [*list_models(), *list_models("*+*")]

_OPTIONS = {
    ViT: {"dim": 32, "depth": 2, "num_heads": 2},
    CaiT: {"dim": 32, "depth": 1, "class_depth": 1, "num_heads": 2, "head_dim": 8},
    PiT: {"dim": 16, "depths": (1, 1, 1), "num_heads": (1, 2, 4)},
    Swin: {"dim": 16, "depths": (2, 1, 1), "num_heads": (1, 2, 4), "window": 2},
    T2T: {"dim": 32, "depth": 2, "num_heads": 2, "token_dim": 16},
    CvT: {"dims": (16, 24, 32), "depths": (1, 1, 1), "num_heads": (1, 2, 2), "head_dim": 8},
    HCT: {"stem_dim": 8, "narrow_dim": 16, "merge_dim": 24, "dim": 32, "depth": 2}
    | {"narrow_depth": 1, "narrow_heads": 2, "num_heads": 2},
}
#: One name a family (and a kind of tokenizer or pool) for what is slow.
FAMILIES = [
    "vit_9_p4",
    "vit_lite_2_p4",
    "compact_vit_2_p4",
    "cct_2_3x2",
    "cait_24_p4",
    "pit_tiny_p2",
    "swin_tiny_p2",
    "t2t_12",
    "t2t_14",
    "cvt_13",
    "hct_s_p8",
    "hct2_s_p8",
]
#: The same with all add-ons, where a family takes both.
FULL = [f"{name}+spt+lsa" if MODELS[name].model.takes_lsa else name for name in FAMILIES]


def small_size(name: str) -> tuple[int, int]:
    """A small image of more than one window or patch along each side."""
    variant = MODELS[name.partition("+")[0]]
    tokens = {CaiT: 2, ViT: 2, HCT: 2, PiT: 8, Swin: 8}.get(variant.model, 0)
    if variant.options.get("tail_dim"):
        tokens *= 2
    side = tokens * variant.options.get("patch_size", 0) or 32
    return side, side


def shrunk(name: str, **options):
    variant = MODELS[name.partition("+")[0]]
    defaults = {"num_classes": 3, "image_size": small_size(name), **_OPTIONS[variant.model]}
    if variant.options.get("tail_dim"):
        defaults |= {"narrow_depth": 0, "tail_dim": 40}
    return create_model(name, **{**defaults, **options})
