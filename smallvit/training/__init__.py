"""From a config to a run: `train`."""

from smallvit.training.train import train

__all__ = ["train"]
