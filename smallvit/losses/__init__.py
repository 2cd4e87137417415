"""Losses; they read `Features` and know no backbone."""

from smallvit.losses.drloc import DRLoc

__all__ = ["DRLoc"]
