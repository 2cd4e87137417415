"""Augmentation: batched, per-image random, on the device; pure functions of their arguments."""

from typing import TYPE_CHECKING

from smallvit.extras import on_first_use

if TYPE_CHECKING:
    from smallvit.augment.config import PRESETS, AugmentConfig
    from smallvit.augment.mixing import soft_targets
    from smallvit.augment.pipeline import Augmentation, normalise

__all__ = ["PRESETS", "AugmentConfig", "Augmentation", "normalise", "soft_targets"]

# Configs are read for `--help`, which must not wait for torch.
__getattr__ = on_first_use(
    __name__,
    {
        "config": ("PRESETS", "AugmentConfig"),
        "mixing": ("soft_targets",),
        "pipeline": ("Augmentation", "normalise"),
    },
)
