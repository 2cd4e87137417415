"""What a self-supervised start changes in any recipe."""

from collections.abc import Mapping
from typing import Any

from smallvit.runs.config import layered


def pretraining(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run that learns from images alone, labelled or not; see `MaskedImages`.

    Crops and mirroring are the recipe's. What the recipe adds for labels (policies, mixing,
    smoothing) is left out, and so is the average of weights.
    """
    gentle = {"policy": "none", "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0, "smoothing": 0.0}
    start = {
        "loss": {"objective": "masked"},
        "data": {"unlabelled": True},
        "augment": gentle,
        "optim": {"ema": 0.0},
    }
    return layered(start, settings)
