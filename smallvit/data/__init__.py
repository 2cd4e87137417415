"""From files to batches: sources, splits, audit, cache and loader.

`load_data` finds pictures whatever form they have, `audit` says what is wrong with them, `preview`
shows what a model will see, and a `Loader` gives out batches.
"""

from smallvit.data.auditing import OVERRIDES, Audit, audit, render
from smallvit.data.dataset import Dataset, load_data
from smallvit.data.findings import Finding
from smallvit.data.fit import FILL, Fit, fit_image, fit_tensor
from smallvit.data.items import Items
from smallvit.data.loader import Batch, Loader
from smallvit.data.pictures import UnreadableError, read_image, to_channels
from smallvit.data.previews import preview

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
