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


_POWER = 0.2
_RAREST = 0.04  # of an average class: rarer classes weigh as if they had that many images


def balanced_weights(labels: Int[np.ndarray, " N"], num_classes: int) -> Float[Tensor, " K"]:
    """Weights by one over the fifth root of a class's number of images; 1 in the mean of images.

    One over the number itself would have a class of one image weigh as much as one of a thousand,
    and the model predict it everywhere. The higher the root, the less accuracy a rare class costs
    the others: this one was chosen on held-out images so that it is at most a point
    (docs/experiments.md). What has fewer than a twenty-fifth of the images of an average class
    weighs as if it had that many.
    """
    counts = np.bincount(labels, minlength=num_classes)
    present = counts > 0
    average = len(labels) / present.sum()
    weights = np.maximum(counts, _RAREST * average) ** -_POWER
    weights *= len(labels) / (weights * counts).sum()
    return torch.tensor(np.where(present, weights, 1.0), dtype=torch.float32)
