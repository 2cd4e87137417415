"""Dense relative localization restated literally in float64."""

import math

import numpy as np

from tests.oracles.attention import linear, softmax


def pooled(tokens, grid, stride):
    """Average of every stride×stride cell; cells at the far edges may be smaller."""
    rows, columns = grid
    image = tokens.reshape(rows, columns, -1)
    return np.array(
        [
            [
                image[r : r + stride[0], c : c + stride[1]].mean((0, 1))
                for c in range(0, columns, stride[1])
            ]
            for r in range(0, rows, stride[0])
        ]
    )


def overlapped(tokens, grid, stride):
    """Average of what lies less than a stride away from every stride-th row and column."""
    rows, columns = grid
    image = tokens.reshape(rows, columns, -1)
    result = []
    for r in range(0, rows, stride[0]):
        line = []
        for c in range(0, columns, stride[1]):
            near = [
                image[i, j]
                for i in range(rows)
                for j in range(columns)
                if abs(i - r) < stride[0] and abs(j - c) < stride[1]
            ]
            line.append(np.mean(near, 0))
        result.append(line)
    return np.array(result)


def loss(grids, pairs, weights, mode, *, normalised=True, layers=1, classes=None):
    """Mean over images and pairs; grids (B, h, w, D), pairs (2, B, m) token numbers.

    With `classes` there is a spare linear layer, and so many classes per axis.
    """
    rows, columns = grids.shape[1:3]
    total = 0.0
    for image, grid in enumerate(grids):
        for a, b in zip(pairs[0][image], pairs[1][image], strict=True):
            (i, j), (p, h) = divmod(int(a), columns), divmod(int(b), columns)
            both = np.concatenate([grid[i, j], grid[p, h]])
            hidden = both
            for layer in range(layers):
                hidden = np.maximum(linear(hidden, weights, f"perceptron.{2 * layer}"), 0)
            if classes and mode != "l1":
                hidden = linear(hidden, weights, f"perceptron.{2 * layers}")
            output = linear(hidden, weights, "predict")
            offsets = (abs(i - p), abs(j - h))
            total += _pair(output, offsets, (rows, columns), mode, normalised, classes)
    return total / pairs[0].size


def _pair(output, offsets, grid, mode, normalised, classes):
    if mode == "l1":
        sides = grid if normalised else (1, 1)
        return sum(abs(output[axis] - offsets[axis] / sides[axis]) for axis in (0, 1)) / 2
    result = 0.0
    first = (classes or grid)[0]
    for axis, logits in enumerate((output[:first], output[first:])):
        chance = softmax(logits)
        if mode == "ce":
            result -= math.log(chance[offsets[axis]])
        else:
            mean = sum(k * c for k, c in enumerate(chance))
            variance = sum(c * (k - mean) ** 2 for k, c in enumerate(chance)) + 1e-8
            result += (mean - offsets[axis]) ** 2 / variance + 0.001 * math.log(variance)
    return result
