from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smallvit.data import Dataset, load_data

HERE = Path(__file__).parent
Save = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache of smallvit"
    monkeypatch.setenv("SMALLVIT_CACHE", str(folder))
    monkeypatch.delenv("SMALLVIT_DATA", raising=False)
    return folder


@pytest.fixture
def noise() -> Callable[..., np.ndarray]:
    """Images that look like nothing and like no other, a function of their number."""

    def make(number: int, height: int = 24, width: int = 32, channels: int = 3) -> np.ndarray:
        random = np.random.default_rng(number)
        coarse = random.integers(0, 256, (6, 6, channels), np.uint8)
        rows, columns = np.arange(height) * 6 // height, np.arange(width) * 6 // width
        return coarse[rows][:, columns]

    return make


@pytest.fixture
def save(noise: Callable[..., np.ndarray]) -> Save:
    """Writes an image, of noise unless pixels are given."""

    def write(path: Path, number: int = 0, pixels: np.ndarray | None = None, **how: object) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = noise(number) if pixels is None else pixels
        Image.fromarray(pixels.squeeze()).save(path, **how)
        return path

    return write


@pytest.fixture
def folder(tmp_path: Path, save: Save) -> Path:
    """Two classes of ten images."""
    for number in range(20):
        save(tmp_path / "data" / ("cats" if number < 10 else "dogs") / f"{number}.png", number)
    return tmp_path / "data"


@pytest.fixture
def dataset(folder: Path) -> Dataset:
    return load_data(folder, image_size=16)


@pytest.fixture(scope="session")
def digits() -> tuple[np.ndarray, np.ndarray]:
    with np.load(HERE / "digits.npz") as stored:
        return stored["images"], stored["labels"].astype(np.int64)


@pytest.fixture(scope="session")
def photos() -> tuple[np.ndarray, np.ndarray]:
    sheet = np.asarray(Image.open(HERE / "photos.jpg"))
    tiles = sheet.reshape(10, 32, 40, 32, 3).transpose(0, 2, 1, 3, 4).reshape(400, 32, 32, 3)
    return np.ascontiguousarray(tiles), np.repeat(np.arange(10), 40)


@pytest.fixture(params=["tall", "wide", "square"])
def photo(request: pytest.FixtureRequest) -> Iterator[Path]:
    return HERE / "photos" / f"{request.param}.jpg"
