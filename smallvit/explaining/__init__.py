"""Where a model looks: attention and class evidence as maps over an image."""

from smallvit.explaining.explain import explain

__all__ = ["explain"]
