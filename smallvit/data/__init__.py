"""From files to batches: sources, splits, audit, cache and loader.

`load_data` finds images whatever form they have, `audit` says what is wrong with them, `preview`
shows what a model will see, and a `Loader` gives out batches. Names load on first use: what decodes
and fits images needs no PyTorch.
"""

from typing import TYPE_CHECKING

from smallvit.extras import on_first_use

if TYPE_CHECKING:
    from smallvit.data.auditing import OVERRIDES, Audit, Finding, audit
    from smallvit.data.dataset import Dataset
    from smallvit.data.fit import FILL, fit_image
    from smallvit.data.images import UnreadableError, read_image, to_channels
    from smallvit.data.loader import Batch, Loader
    from smallvit.data.loading import load_data
    from smallvit.data.previews import preview
    from smallvit.data.samples import Samples
    from smallvit.data.tensors import fit_tensor
    from smallvit.sizes import Fit

__all__ = [
    "FILL",
    "OVERRIDES",
    "Audit",
    "Batch",
    "Dataset",
    "Finding",
    "Fit",
    "Loader",
    "Samples",
    "UnreadableError",
    "audit",
    "fit_image",
    "fit_tensor",
    "load_data",
    "preview",
    "read_image",
    "to_channels",
]

__getattr__ = on_first_use(
    __name__,
    {
        "auditing": ("OVERRIDES", "Audit", "Finding", "audit"),
        "dataset": ("Dataset",),
        "fit": ("FILL", "Fit", "fit_image"),
        "images": ("UnreadableError", "read_image", "to_channels"),
        "loader": ("Batch", "Loader"),
        "loading": ("load_data",),
        "previews": ("preview",),
        "samples": ("Samples",),
        "tensors": ("fit_tensor",),
    },
)
