"""Muon restated literally, one matrix and one step at a time, in float64."""

import numpy as np


def newton_schulz(matrix, rounds=5):
    """x ← a x + b (x xᵀ) x + c (x xᵀ)² x from a matrix of Frobenius norm 1."""
    x = matrix / (np.sqrt((matrix**2).sum()) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.T
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    return x


def steps(weight, gradients, lr, decay, momentum=0.95):
    """A weight after steps with these gradients; a convolution is a matrix of its outputs."""
    average = np.zeros_like(weight)
    for gradient in gradients:
        average = momentum * average + (1 - momentum) * gradient
        ahead = momentum * average + (1 - momentum) * gradient
        rows = len(weight)
        turned = newton_schulz(ahead.reshape(rows, -1)).reshape(weight.shape)
        scale = max(1.0, rows / (weight.size / rows)) ** 0.5
        weight = weight * (1 - lr * decay) - lr * scale * turned
    return weight
