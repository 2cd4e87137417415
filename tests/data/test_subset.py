"""Fewer training images: nested, stratified, copies kept together, the test split untouched."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallvit.data import load_data
from smallvit.data.splits import keep
from smallvit.runs.config import DataConfig
from smallvit.runs.dataset import open_data


def digests(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 16), np.uint8)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5), st.floats(0.01, 1.0), st.integers(0, 9)
)
def test_every_class_keeps_its_share_and_smaller_lies_in_larger(
    sizes: list[int], fraction: float, seed: int
) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    marks = digests(len(labels))
    kept = keep(labels, (marks, marks), fraction=fraction, seed=seed)
    for label, size in enumerate(sizes):
        taken = kept[labels == label].sum()
        assert taken >= 1
        assert abs(taken - size * fraction) <= 1
    smaller = keep(labels, (marks, marks), fraction=fraction / 2, seed=seed)
    assert (kept | ~smaller).all()


def test_copies_stay_together_and_seeds_choose_differently() -> None:
    labels, exact = np.arange(80) % 2, digests(80)
    near = exact.copy()
    near[2::4], near[3::4] = near[::4], near[1::4]
    choices = [keep(labels, (near, exact), fraction=0.3, seed=seed) for seed in range(4)]
    for kept in choices:
        assert (kept[2::4] == kept[::4]).all()
        assert (kept[3::4] == kept[1::4]).all()
        assert 22 <= kept.sum() <= 26
    assert len({kept.tobytes() for kept in choices}) == 4
    order = np.random.default_rng(0).permutation(80)
    again = keep(labels[order], (near[order], exact[order]), fraction=0.3, seed=0)
    assert (again == choices[0][order]).all()


def test_a_class_of_one_scene_can_be_cut_all_the_same() -> None:
    labels, exact = np.zeros(20, np.int64), digests(20)
    one_scene = np.broadcast_to(exact[:1], exact.shape).copy()
    assert keep(labels, (one_scene, exact), fraction=0.25, seed=0).sum() == 5


def make(path: Path) -> Path:
    """200 images of two classes, in twenty pairs equal to each other."""
    images = np.random.default_rng(1).integers(0, 256, (200, 8, 8, 3), np.uint8)
    images[40:80:2] = images[:40:2]
    np.savez(path, images=images, labels=np.arange(200) % 2)
    return path


def test_a_dataset_with_fewer_images(tmp_path: Path) -> None:
    whole = load_data(make(tmp_path / "two.npz"))
    assert {name: len(each) for name, each in whole.splits.items()} == {
        "train": 140,
        "val": 20,
        "test": 40,
    }
    quarter, half = whole.subset(0.25), whole.subset(0.5)
    for name, count in (("train", 35), ("val", 5), ("test", 40)):
        assert abs(len(quarter.split(name)) - count) <= 2
        assert set(quarter.split(name).names) <= set(half.split(name).names)
    assert quarter.split("test") is whole.split("test")
    assert abs(quarter.labels("train").mean() - 0.5) < 0.05
    kept = {digest.tobytes() for digest in quarter.split("train").survey.digests}
    names = set(quarter.split("train").names)
    everywhere = zip(whole.split("train").names, whole.split("train").survey.digests, strict=True)
    assert {name for name, digest in everywhere if digest.tobytes() in kept} == names
    assert whole.subset(1.0).fingerprint == whole.fingerprint
    assert whole.subset(140).fingerprint == whole.fingerprint
    assert len(whole.subset(28).split("train")) == len(whole.subset(0.2).split("train"))
    assert whole.subset(0.25, seed=1).fingerprint != quarter.fingerprint
    for limit in (0.0, -1.0, 141.0):
        with pytest.raises(ValueError, match="limit is"):
            whole.subset(limit)


def test_a_config_may_limit_the_images(tmp_path: Path) -> None:
    source = str(make(tmp_path / "two.npz"))
    config = DataConfig(source=source, limit=0.5, limit_seed=3)
    expected = load_data(source).subset(0.5, seed=3)
    assert open_data(config).fingerprint == expected.fingerprint
    fold = open_data(DataConfig(source=source, limit=0.5, folds=4))
    assert abs(len(fold.split("train")) - 75) <= 4
    assert 40 <= len(fold.split("test")) <= 60
