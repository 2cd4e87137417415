"""What a model is worth: numbers of its answers, each with how sure it is."""

from smallvit.evaluation.intervals import Estimate

__all__ = ["Estimate"]
