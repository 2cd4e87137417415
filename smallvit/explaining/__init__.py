"""Where a model looks: attention and gradient maps over an image."""

from smallvit.explaining.explain import explain

__all__ = ["explain"]
