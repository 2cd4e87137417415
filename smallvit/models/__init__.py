"""One file a family, holding only what is different; every model by name in the registry."""

from smallvit.models.base import Backbone
from smallvit.models.registry import create_model, list_models

__all__ = ["Backbone", "create_model", "list_models"]
