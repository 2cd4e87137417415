"""What a run is: its config, its folder, its card, its checkpoints.

Names load on first use: reading the card of an exported file needs no PyTorch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smallvit.runs.card import Card
    from smallvit.runs.config import RunConfig
    from smallvit.runs.folder import Run

__all__ = ["Card", "Run", "RunConfig"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    homes = {"Card": "card", "Run": "folder", "RunConfig": "config"}
    if name not in homes:
        raise AttributeError(f"module 'smallvit.runs' has no attribute {name!r}")
    return getattr(import_module(f"smallvit.runs.{homes[name]}"), name)
