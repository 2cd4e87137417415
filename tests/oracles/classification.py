"""Cross-entropy restated literally in float64."""

import math


def loss(logits, targets, weights=None):
    """Mean over images; logits and targets are rows of numbers per class."""
    total = 0.0
    for scores, shares in zip(logits, targets, strict=True):
        norm = math.log(math.fsum(math.exp(score - max(scores)) for score in scores))
        for k, (score, share) in enumerate(zip(scores, shares, strict=True)):
            weight = 1.0 if weights is None else weights[k]
            total -= weight * share * (score - max(scores) - norm)
    return total / len(logits)
