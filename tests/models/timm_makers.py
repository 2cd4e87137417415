"""Small timm models of the five families, with weights that are nothing special."""

from functools import partial

import timm
import torch
from torch import nn

from smallvit.models.local_layers import LocalLayer, SPTMap

SIZE = 32
VIT = partial(timm.create_model, "vit_tiny_patch16_224", patch_size=4, depth=2, num_classes=5)
SMALL_VIT = partial(VIT, embed_dim=24, num_heads=3, img_size=SIZE)
MAKERS = {
    "vit": partial(VIT, img_size=SIZE),
    "deit": partial(
        timm.create_model,
        "deit_tiny_distilled_patch16_224",
        img_size=SIZE,
        patch_size=4,
        depth=2,
        num_classes=5,
    ),
    "cait": partial(
        timm.create_model,
        "cait_xxs24_224",
        img_size=SIZE,
        patch_size=4,
        depth=2,
        embed_dim=48,
        init_values=0.5,
        num_classes=5,
    ),
    # A grid of 7×7, so that both poolings meet odd sides, as the published PiT's 27×27 does.
    "pit": partial(
        timm.create_model,
        "pit_ti_224",
        img_size=SIZE,
        patch_size=8,
        stride=4,
        depth=(1, 2, 1),
        num_classes=5,
    ),
    # Windows of 4 on grids of 16, 8, 4 and 2: shifted, unshifted and cut windows.
    "swin": partial(
        timm.create_model,
        "swin_tiny_patch4_window7_224",
        img_size=SIZE,
        patch_size=2,
        window_size=4,
        depths=(2, 2, 1, 1),
        embed_dim=24,
        num_classes=5,
    ),
}


@torch.no_grad()
def stir(model: nn.Module, by: float = 0.1) -> nn.Module:
    """Weights in which nothing is zero, one or equal by initialisation."""
    for parameter in model.parameters():
        parameter += by * torch.randn_like(parameter)
    return model


def local_parts(model: nn.Module) -> list[LocalLayer]:
    return [part for part in model.modules() if isinstance(part, LocalLayer)]


def spts(model: nn.Module) -> list[SPTMap]:
    return [part for part in model.modules() if isinstance(part, SPTMap)]
