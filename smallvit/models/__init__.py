"""One file per family, holding only what is different; every model by its name."""

from smallvit.models.base import Backbone
from smallvit.models.build import create_model
from smallvit.models.names import list_models

__all__ = ["Backbone", "create_model", "list_models"]
