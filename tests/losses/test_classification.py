"""Cross-entropy with soft targets: the oracle, torch's own, and weights that balance classes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from smallvit.losses import balanced_weights, soft_cross_entropy
from tests.arrays import noise
from tests.oracles import classification as oracle


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_loss(weighted, scale):
    logits, targets = scale * noise(6, 5), noise(6, 5, seed=2).softmax(1)
    weights = torch.tensor([0.2, 3.0, 1.0, 0.0, 1.5], dtype=logits.dtype) if weighted else None
    expected = oracle.loss(
        logits.tolist(), targets.tolist(), weights.tolist() if weighted else None
    )
    ours = soft_cross_entropy(logits, targets, weights)
    assert ours.item() == pytest.approx(expected, rel=1e-10)
    theirs = F.cross_entropy(logits, targets, weight=weights)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-10)


def test_a_certain_and_right_prediction_costs_nothing():
    targets = torch.eye(4)
    assert soft_cross_entropy(1e4 * targets, targets) == 0
    assert soft_cross_entropy(torch.zeros(4, 4), targets).item() == pytest.approx(np.log(4))


def test_balanced_weights():
    weights = balanced_weights(np.repeat([0, 1, 2], [1024, 243, 32]), 3)
    ratios = torch.tensor([1 / 4, 1 / 3, 1 / 2])
    torch.testing.assert_close(weights, ratios * 1299 / (1024 / 4 + 243 / 3 + 32 / 2))


def test_a_class_of_one_image_does_not_outweigh_the_others():
    labels = np.repeat([0, 1, 2], [1_000, 499, 1])
    weights = balanced_weights(labels, 3)
    assert weights[2] / weights[0] == pytest.approx((1_000 / (0.04 * 500)) ** 0.2)
    assert weights[labels[labels == 2]].sum() < 0.02 * weights[labels].sum()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_rarer_classes_weigh_more_and_images_one_on_average(labels):
    labels = np.array(labels)
    weights, counts = balanced_weights(labels, 6).numpy(), np.bincount(labels, minlength=6)
    assert weights[labels].mean() == pytest.approx(1.0, rel=1e-5)
    for a in np.unique(labels):
        for b in np.unique(labels):
            assert (weights[a] >= weights[b]) or counts[a] > counts[b]
            # A larger class counts for as much in all, or more: balance never goes the other way.
            assert counts[a] * weights[a] >= counts[b] * weights[b] * 0.999 or counts[a] < counts[b]
    assert all(weights[k] == 1 for k in set(range(6)) - set(labels.tolist()))
