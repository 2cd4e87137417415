from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallvit.data import load_data
from smallvit.data.splits import assign, deal, hold_out


def digests(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 16), np.uint8)


def choose(labels: np.ndarray, marks: np.ndarray, **options: object) -> np.ndarray:
    return hold_out(labels, (marks,), **{"fraction": 0.2, "seed": 0, "split": "test", **options})


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6), st.floats(0.01, 0.9), st.integers(0, 9)
)
def test_every_class_gives_its_share(sizes: list[int], fraction: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    chosen = choose(labels, digests(len(labels)), fraction=fraction, seed=seed)
    for label, size in enumerate(sizes):
        taken = chosen[labels == label].sum()
        if size == 1:
            assert taken == 0
        else:
            assert 1 <= taken < size
            assert abs(taken - size * fraction) <= 1


@given(st.integers(20, 80), st.integers(1, 15), st.integers(0, 9))
def test_equal_images_stay_together_whatever_their_label(size: int, pairs: int, seed: int) -> None:
    """The first images come again, with another label."""
    marks = digests(size)
    marks = np.concatenate([marks, marks[:pairs]])
    labels = np.concatenate([np.arange(size) % 3, (np.arange(pairs) + 1) % 3])
    chosen = choose(labels, marks, seed=seed)
    assert (chosen[:pairs] == chosen[size:]).all()
    assert all((~chosen[labels == label]).any() for label in range(3))
    folds = deal(labels, (marks,), folds=4, seed=seed)
    assert (folds[:pairs] == folds[size:]).all()
    order = np.random.default_rng(seed).permutation(len(labels))
    assert (deal(labels[order], (marks[order],), folds=4, seed=seed) == folds[order]).all()


def test_order_does_not_matter_and_seeds_do() -> None:
    labels, marks = np.arange(60) % 3, digests(60)
    chosen = choose(labels, marks)
    order = np.random.default_rng(0).permutation(60)
    assert (choose(labels[order], marks[order]) == chosen[order]).all()
    assert (choose(labels, marks, seed=1) != chosen).any()
    assert (choose(labels, marks, split="val") != chosen).any()


def test_a_split_hardly_changes_when_images_are_added() -> None:
    labels, marks = np.zeros(1000, np.int64), digests(1000)
    before = choose(labels[:900], marks[:900])
    after = choose(labels, marks)[:900]
    assert (before != after).mean() < 0.04


def test_what_belongs_together_stays_together() -> None:
    labels = np.zeros(100, np.int64)
    exact = digests(100)
    near = exact.copy()
    near[1::2] = near[::2]
    for seed in range(5):
        chosen = hold_out(labels, (near, exact), fraction=0.2, seed=seed, split="val")
        assert (chosen[1::2] == chosen[::2]).all()
        assert 18 <= chosen.sum() <= 22


def test_a_class_of_one_scene_is_divided_all_the_same_but_not_its_copies() -> None:
    labels, exact = np.zeros(20, np.int64), digests(20)
    one_scene = np.broadcast_to(exact[:1], exact.shape).copy()
    chosen = hold_out(labels, (one_scene, exact), fraction=0.2, seed=0, split="val")
    assert chosen.sum() == 4
    assert hold_out(labels, (one_scene, one_scene), fraction=0.2, seed=0, split="val").sum() == 0


def test_shares_are_of_all_training_images() -> None:
    labels, marks = np.zeros(1000, np.int64), digests(1000)
    splits, held_out, _ = assign(labels, marks, marks, [""] * 1000, {"test": None, "val": 0.4}, 0)
    assert {name: len(indices) for name, indices in splits.items()} == {
        "train": 400,
        "val": 400,
        "test": 200,
    }
    assert held_out == {"test": 0.2, "val": 0.4}


def test_shares_that_leave_nothing(folder: Path) -> None:
    with pytest.raises(ValueError, match="something must be left to train on"):
        load_data(folder, val=0.9)
    with pytest.raises(ValueError, match=r"val is 0\.1 of .* choose less for one of them"):
        load_data(folder, test=0.95)
    with pytest.raises(ValueError, match="a share from 0 up to below 1"):
        load_data(folder, test=1.5)
