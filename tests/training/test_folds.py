"""Cross-validation: every image is tested exactly once."""

import numpy as np
import pytest

from smallvit.data import load_data
from smallvit.runs.config import DataConfig
from smallvit.runs.dataset import open_data


@pytest.fixture
def data(tmp_path):
    """Sixty different images, and four that nearly are four of them."""
    images = np.random.default_rng(3).integers(0, 256, (64, 16, 16, 3)).astype(np.uint8)
    labels = np.arange(64) % 4
    images[60:] = images[:4]
    images[60:, 0, 0] ^= 1
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    return tmp_path / "a.npz"


def folds_of(data, count=5, **options):
    config = {"source": str(data), "folds": count, **options}
    return [open_data(DataConfig(**config, fold=fold)) for fold in range(count)]


@pytest.mark.parametrize("count", [2, 5])
def test_every_image_is_tested_once(data, count):
    folds = folds_of(data, count)
    tested = [name for fold in folds for name in fold.split("test").names]
    assert len(tested) == 64
    assert set(tested) == set(load_data(data, val=0, test=0).split("train").names)
    for fold in folds:
        train, test = set(fold.split("train").names), set(fold.split("test").names)
        assert not train & test
        assert len(train | test) == 64
        assert "val" not in fold.splits
        assert fold.record()["made"] == {"test": 1 / count}


def test_classes_are_spread_evenly(data):
    for fold in folds_of(data):
        counts = np.bincount(fold.labels("test"), minlength=4)
        assert counts.min() >= 2
        assert counts.max() <= 5


def test_near_duplicates_stay_together(data):
    place = {
        name: number
        for number, fold in enumerate(folds_of(data))
        for name in fold.split("test").names
    }
    for number in range(4):
        assert place[f"a[{number}]"] == place[f"a[{60 + number}]"]


def test_the_seed_decides(data):
    def names(**options):
        return [fold.split("test").names for fold in folds_of(data, **options)]

    assert names() == names()
    assert names() != names(seed=1)


def test_validation_comes_from_what_is_not_tested(data):
    for fold in folds_of(data, val=0.2):
        parts = [set(fold.split(name).names) for name in ("train", "val", "test")]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 64
        assert 6 <= len(parts[1]) <= 16


def test_folds_that_cannot_be(data):
    whole = load_data(data, val=0, test=0)
    with pytest.raises(ValueError, match="fold is 5: allowed is 0 to 4"):
        whole.fold(5, 5)
    with pytest.raises(ValueError, match="folds is 65: allowed is 2 up to the 64 images"):
        whole.fold(0, 65)
