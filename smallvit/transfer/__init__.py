"""Trained weights for a new task: other classes, sizes and channels."""

from smallvit.transfer.start import start_from

__all__ = ["start_from"]
