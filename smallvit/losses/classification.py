"""Cross-entropy with soft targets, and weights that balance classes."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def soft_cross_entropy(
    logits: Float[Tensor, "B K"],
    targets: Float[Tensor, "B K"],
    class_weights: Float[Tensor, " K"] | None = None,
) -> Float[Tensor, ""]:
    """−Σ weight · target · log probability over the classes, mean over the images.

    Args:
        logits: One per class and image.
        targets: The share of each class per image, which add up to 1: smoothed or mixed labels.
        class_weights: One per class; None weighs all classes equally.
    """
    weighted = targets if class_weights is None else targets * class_weights
    return -(weighted * logits.log_softmax(1)).sum(1).mean()


def balanced_weights(labels: Int[np.ndarray, " N"], num_classes: int) -> Float[Tensor, " K"]:
    """Weights inverse to the number of images per class; their mean over all images is 1."""
    counts = np.bincount(labels, minlength=num_classes)
    present = counts > 0
    weights = np.where(present, len(labels) / (np.maximum(counts, 1) * present.sum()), 1.0)
    return torch.tensor(weights, dtype=torch.float32)
