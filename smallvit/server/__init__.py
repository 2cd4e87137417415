"""A trained model behind HTTP: one address to send an image to, and a page to try it on."""

from smallvit.server.limits import Limits
from smallvit.server.running import serve

__all__ = ["Limits", "serve"]
