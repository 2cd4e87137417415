"""Losses; they know no backbone."""

from smallvit.losses.classification import balanced_weights, soft_cross_entropy
from smallvit.losses.drloc import DRLoc

__all__ = ["DRLoc", "balanced_weights", "soft_cross_entropy"]
