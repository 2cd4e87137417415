"""Augmentation: batched, per-image random, on the device; pure functions of their arguments."""

from smallvit.augment.colour import normalise
from smallvit.augment.config import PRESETS, AugmentConfig
from smallvit.augment.mixing import soft_targets
from smallvit.augment.pipeline import Augmentation

__all__ = ["PRESETS", "AugmentConfig", "Augmentation", "normalise", "soft_targets"]
