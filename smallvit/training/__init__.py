"""From a config to a run: `train`, and the rest of one: `resume`."""

from smallvit.training.train import resume, train

__all__ = ["resume", "train"]
