"""From files to batches: sources, splits, audit, cache and loader.

`load_data` finds images whatever form they have, `audit` says what is wrong with them, `preview`
shows what a model will see, and a `Loader` gives out batches. Names load on first use: what decodes
and fits images needs no PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smallvit.data.auditing import OVERRIDES, Audit, audit, render
    from smallvit.data.dataset import Dataset, load_data
    from smallvit.data.findings import Finding
    from smallvit.data.fit import FILL, Fit, fit_image
    from smallvit.data.images import UnreadableError, read_image, to_channels
    from smallvit.data.loader import Batch, Loader
    from smallvit.data.previews import preview
    from smallvit.data.samples import Items
    from smallvit.data.tensors import fit_tensor

_HOMES = {
    "auditing": ("OVERRIDES", "Audit", "audit", "render"),
    "dataset": ("Dataset", "load_data"),
    "findings": ("Finding",),
    "fit": ("FILL", "Fit", "fit_image"),
    "samples": ("Items",),
    "loader": ("Batch", "Loader"),
    "images": ("UnreadableError", "read_image", "to_channels"),
    "previews": ("preview",),
    "tensors": ("fit_tensor",),
}

__all__ = [
    "FILL",
    "OVERRIDES",
    "Audit",
    "Batch",
    "Dataset",
    "Finding",
    "Fit",
    "Items",
    "Loader",
    "UnreadableError",
    "audit",
    "fit_image",
    "fit_tensor",
    "load_data",
    "preview",
    "read_image",
    "render",
    "to_channels",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"smallvit.data.{home}"), name)
    raise AttributeError(f"module 'smallvit.data' has no attribute {name!r}")
