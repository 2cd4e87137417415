"""Properties of the augmentations: what may change does, what must not does not."""

import jax
import numpy as np
import pytest

from smallvit.flax import augment

KEY = jax.random.PRNGKey(0)
IMAGES = np.random.RandomState(1).uniform(1, 2, (64, 12, 16, 2)).astype(np.float32)
TARGETS = np.eye(5, dtype=np.float32)[np.arange(64) % 5]


def draw(function, *arrays, **options):
    """Compiled: one by one the operations take seconds."""
    compiled = jax.jit(function, static_argnames=tuple(options))
    return jax.tree.map(np.asarray, compiled(KEY, *arrays, **options))


def test_flip_mirrors_about_half_and_leaves_the_rest():
    out = draw(augment.flip, IMAGES)
    mirrored = np.array([np.array_equal(a, b[:, ::-1]) for a, b in zip(out, IMAGES, strict=True)])
    kept = np.array([np.array_equal(a, b) for a, b in zip(out, IMAGES, strict=True)])
    assert np.all(mirrored ^ kept)
    assert 20 < mirrored.sum() < 44


def test_crop_moves_each_image_within_the_padding():
    out = draw(augment.crop, IMAGES, padding=2)
    padded = np.pad(IMAGES, ((0, 0), (2, 2), (2, 2), (0, 0)))
    places = []
    for image, wide in zip(out, padded, strict=True):
        found = [
            (r, c)
            for r in range(5)
            for c in range(5)
            if np.array_equal(image, wide[r : r + 12, c : c + 16])
        ]
        assert len(found) == 1
        places += found
    rows, columns = zip(*places, strict=True)
    assert set(rows) == set(columns) == set(range(5))


def test_erase_blanks_one_rectangle_of_the_asked_area():
    out = draw(augment.erase, IMAGES, 1.0, area=(0.1, 0.3), aspect=0.5)
    for image, original in zip(out, IMAGES, strict=True):
        blank = (image == 0).all(-1)
        rows, columns = np.flatnonzero(blank.any(1)), np.flatnonzero(blank.any(0))
        assert blank[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert blank.sum() == len(rows) * len(columns)
        assert 0.07 < blank.mean() < 0.34  # sides are whole pixels
        np.testing.assert_array_equal(image[~blank], original[~blank])


def test_erase_leaves_the_share_it_is_told_to():
    untouched = np.all(
        draw(augment.erase, IMAGES, 0.25, area=(0.1, 0.3), aspect=0.5) == IMAGES, (1, 2, 3)
    )
    assert 36 < untouched.sum() < 60


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_targets_are_mixed_as_the_images_are(name):
    share = draw(getattr(augment, name), IMAGES)
    assert share.min() >= 0
    assert share.max() <= 1
    # Images that carry their target as their colour say what was really mixed.
    colours = np.broadcast_to(TARGETS[:, None, None], (64, 12, 16, 5))
    mixed, targets = draw(augment.blend, colours, TARGETS, share)
    np.testing.assert_allclose(mixed.mean((1, 2)), targets, atol=1e-5)
    np.testing.assert_allclose(targets.sum(1), 1, atol=1e-5)
    whole = np.all((share == 0) | (share == 1))
    assert whole == (name == "cutmix")


def test_mix_spares_the_images_it_is_told_to():
    images, targets = draw(augment.mix, IMAGES, TARGETS, 0.5)
    same = np.all(images == IMAGES, (1, 2, 3))
    assert 18 < same.sum() < 46
    np.testing.assert_array_equal(targets[same], TARGETS[same])
    images, targets = draw(augment.mix, IMAGES, TARGETS, 0.0)
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(targets, TARGETS)


def test_mixup_draws_beta():
    share = draw(augment.mixup, np.ones((4096, 1, 1, 1), np.float32), alpha=0.5)
    assert share.mean() == pytest.approx(0.5, abs=0.03)
    assert share.var() == pytest.approx(1 / 8, abs=0.01)
