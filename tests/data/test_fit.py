from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from smallvit.data import FILL, fit_image, fit_tensor, load_data, read_image
from smallvit.data.fit import place
from smallvit.data.images import as_array
from smallvit.sizes import as_size

SIDES = st.integers(1, 600)
FITS = ["letterbox", "stretch", "crop", "imagenet"]


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [(32, 32), (64, 48), (224, 224), (400, 500)])
def test_the_torch_form_gives_the_same_bytes(photo: Path, fit: str, size: tuple[int, int]) -> None:
    image = read_image(photo)
    ours = fit_image(image, size, fit)
    torchs = fit_tensor(torch.from_numpy(image.copy()).permute(2, 0, 1)[None], size, fit)
    assert (ours == torchs[0].permute(1, 2, 0).numpy()).all()
    assert ours.shape == (*size, 3)


@pytest.mark.parametrize("fit", FITS)
@given(sides=st.tuples(*[st.integers(1, 90)] * 4), seed=st.integers(0, 2**31))
def test_the_torch_form_gives_the_same_bytes_for_every_shape(
    fit: str, sides: tuple[int, int, int, int], seed: int
) -> None:
    height, width, *size = sides
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 2), np.uint8)
    torchs = fit_tensor(torch.from_numpy(image).permute(2, 0, 1)[None], tuple(size), fit)
    assert (fit_image(image, tuple(size), fit) == torchs[0].permute(1, 2, 0).numpy()).all()


@given(SIDES, SIDES, SIDES, SIDES)
def test_letterbox_keeps_the_whole_image_and_its_shape(
    h: int, w: int, rows: int, columns: int
) -> None:
    box, inner, offset = place(h, w, (rows, columns), "letterbox")
    assert box == (0, 0, h, w)
    assert inner[0] == rows or inner[1] == columns
    assert all(o + i <= side for o, i, side in zip(offset, inner, (rows, columns), strict=True))
    scale = min(rows / h, columns / w)
    assert abs(inner[0] - h * scale) <= 0.5 or inner[0] == 1
    assert abs(inner[1] - w * scale) <= 0.5 or inner[1] == 1


@given(SIDES, SIDES, SIDES, SIDES)
def test_crop_takes_the_largest_part_of_the_right_shape(
    h: int, w: int, rows: int, columns: int
) -> None:
    (top, left, height, width), inner, offset = place(h, w, (rows, columns), "crop")
    assert inner == (rows, columns)
    assert offset == (0, 0)
    assert height == h or width == w
    assert 0 <= top <= h - height
    assert 0 <= left <= w - width
    assert abs(2 * top + height - h) <= 1
    assert abs(2 * left + width - w) <= 1


def test_bars_are_grey_and_in_the_middle() -> None:
    wide = np.full((10, 40, 3), 255, np.uint8)
    fitted = fit_image(wide, (32, 32), "letterbox")
    assert (fitted[12:20] == 255).all()
    assert (fitted[:12] == FILL).all()
    assert (fitted[20:] == FILL).all()


def test_an_image_of_the_right_size_is_left_alone(photo: Path) -> None:
    image = read_image(photo)
    for fit in FITS:
        assert (fit_image(image, image.shape[:2], fit) == image).all()


@pytest.mark.parametrize("side", [48, 56, 224])
@pytest.mark.parametrize("shape", [(32, 32), (28, 28), (500, 667), (501, 333), (64, 90)])
def test_imagenet_is_torchvisions_resize_and_centre_crop(side, shape) -> None:
    from torchvision.transforms import CenterCrop, InterpolationMode, Resize

    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    resize = Resize(int(256 / 224 * side), InterpolationMode.BICUBIC)
    theirs = CenterCrop(side)(resize(Image.fromarray(pixels)))
    ours = fit_image(pixels, (side, side), "imagenet")
    assert np.abs(ours.astype(int) - np.asarray(theirs).astype(int)).max() <= 1


def test_what_is_seen_of_an_image() -> None:
    for fit, seen in (
        ("letterbox", (0, 0, 60, 90)),
        ("crop", (0, 15, 60, 60)),
        ("imagenet", (4, 19, 53, 53)),
    ):
        assert place(60, 90, (224, 224), fit).seen((224, 224)) == seen


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [(32, 32), (50, 20), (400, 500)])
def test_pixels_and_pillows_images_come_out_alike(
    photo: Path, fit: str, size: tuple[int, int]
) -> None:
    for mode in ("RGB", "L"):
        with Image.open(photo) as image:
            plain = image.convert(mode)
        assert (fit_image(plain, size, fit) == fit_image(as_array(plain), size, fit)).all()


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_channels_are_resized_independently(photo: Path, channels: int) -> None:
    image = read_image(photo)
    many = np.dstack([image[..., k % 3] for k in range(channels)])
    fitted, plain = fit_image(many, (40, 40)), fit_image(image, (40, 40))
    for k in range(channels):
        assert (fitted[..., k] == plain[..., k % 3]).all()


def test_sizes_and_fits_are_checked() -> None:
    assert as_size(32) == (32, 32)
    assert as_size([48, 64]) == (48, 64)
    for wrong in (0, (32, 32, 3), (32, -1)):
        with pytest.raises(ValueError, match="one positive number, or two"):
            as_size(wrong)
    with pytest.raises(ValueError, match="allowed are letterbox, stretch, crop, imagenet"):
        place(10, 10, (8, 8), "squash")


def test_crops_are_cut_out_of_whole_images(tmp_path: Path) -> None:
    """With "imagenet", tests lack the edges of images, and crops for training do not."""
    images = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(24) % 2)
    for size, uncut in ((32, (16, 16)), (16, (16, 16)), (8, (8, 8))):
        dataset = load_data(tmp_path / "a.npz", image_size=size, fit="imagenet")
        assert dataset.image_size == (size, size)
        assert dataset.uncut.image_size == uncut
        assert dataset.uncut.fit == "crop"
    plain = load_data(tmp_path / "a.npz", image_size=32)
    assert plain.uncut is plain
