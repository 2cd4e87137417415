from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from smallvit.data import Dataset, fit_image, load_data, preview
from smallvit.data.previews import label_font


def opened(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_the_sheet_shows_the_fitted_pixels(dataset: Dataset, tmp_path: Path) -> None:
    preview(dataset, tmp_path / "sheet.png", columns=3)
    sheet = opened(tmp_path / "sheet.png")
    items = dataset.splits["train"]
    scale = 6  # of 16 pixels to a cell of 96
    shown = 0
    for index in range(len(items)):
        pixels = fit_image(items.read(index, 3), (16, 16), "letterbox")
        large = pixels.repeat(scale, 0).repeat(scale, 1)
        windows = np.lib.stride_tricks.sliding_window_view(sheet[:, :, 0], (1, 96))[:, :, 0]
        rows, columns = np.nonzero((windows == large[48, :, 0]).all(-1))
        shown += any(
            (sheet[r - 48 : r + 48, c : c + 96] == large).all()
            for r, c in zip(rows, columns, strict=True)
        )
    assert shown == 6


def test_augmentation_stands_beside_the_image(dataset: Dataset, tmp_path: Path) -> None:
    calls: list[tuple[torch.Size, list[int]]] = []

    def inverted(images: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        calls.append((images.shape, positions.tolist()))
        return 255 - images

    preview(dataset, tmp_path / "sheet.png", columns=4, augment=inverted)
    assert calls == [(torch.Size([2, 3, 16, 16]), [0, 1]), (torch.Size([2, 3, 16, 16]), [2, 3])]
    preview(dataset, tmp_path / "plain.png", columns=4)
    assert opened(tmp_path / "sheet.png").shape == opened(tmp_path / "plain.png").shape


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_any_number_of_channels_is_shown(tmp_path: Path, channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 12, channels), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(20) % 2)
    preview(load_data(tmp_path / "a.npz"), tmp_path / "sheet.png")
    assert opened(tmp_path / "sheet.png").shape[2] == 3


def test_unreadable_images_and_strange_names_are_no_obstacle(folder: Path, tmp_path: Path) -> None:
    (folder / "cats" / "0.png").write_bytes(b"")
    (folder / "cats").rename(folder / ("日本 and a very long name that goes on" + "\u202e"))
    preview(load_data(folder), tmp_path / "sheet.png", classes=1)
    assert len(opened(tmp_path / "sheet.png")) < 200


def dark(pixels: np.ndarray) -> np.ndarray:
    """Where text is, without the margins around it."""
    ink = pixels.min(axis=-1) < 128
    rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def written(text: str) -> np.ndarray:
    image = Image.new("RGB", (400, 40), (250, 250, 250))
    ImageDraw.Draw(image).text((8, 20), text, (30, 30, 30), label_font(13), anchor="lm")
    return dark(np.asarray(image))


@pytest.mark.parametrize("name", ["Löwenzahn größe × é", "Ελλάδα Москва ½ → ≤"])
def test_letters_beyond_ascii_are_drawn(folder: Path, tmp_path: Path, name: str) -> None:
    box = written("\u0378")  # no font has this letter, for there is none
    for letter in set(name) - {" "}:
        assert written(letter).shape != box.shape or (written(letter) != box).any(), letter
    (folder / "cats").rename(folder / name)
    preview(load_data(folder, image_size=96), tmp_path / "sheet.png", columns=1)
    sheet = opened(tmp_path / "sheet.png")
    top = 46 + list(load_data(folder).classes).index(name) * 104
    label = sheet[top : top + 96, : sheet.shape[1] - 104]  # a cell and its gap
    assert np.array_equal(dark(label), written(name))
