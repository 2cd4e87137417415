"""Images per second: our cache and audit against plain Pillow and torchvision.io.

    python benchmarks/decode.py [FOLDER] [--count 3000] [--size 64] [--rounds 5]

FOLDER holds JPEGs at any depth and is tiled to `count` files. Without it photo-like JPEGs of the
size of Caltech-101's (300 pixels, 15 kB) are made. Every way decodes each file at full resolution
and resizes it with an antialiased filter to size × size; the ways take turns, and the median of the
rounds counts. Ours also hashes and fits each file and writes the result to disk.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from smallvit.data import audit, cache, load_data
from smallvit.data.parallel import cores


def photo(seed: int) -> Image.Image:
    """Noise of all scales, which compresses as photos do."""
    random = np.random.default_rng(seed)
    height, width = int(random.integers(200, 301)), 300
    total = np.zeros((height, width, 3))
    for scale in (4, 8, 16, 32, 64, 128, 256):
        grain = random.normal(0, 400 / scale, (scale, scale, 3)).clip(-127, 127) + 128
        coarse = Image.fromarray(grain.astype(np.uint8))
        total += np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)) - 128.0
    return Image.fromarray((total + 128).clip(0, 255).astype(np.uint8))


def make(source: Path | None, target: Path, count: int) -> list[Path]:
    """`count` files in two class folders."""
    files = sorted(source.rglob("*.jpg")) if source else []
    paths = [target / "ab"[number % 2] / f"{number}.jpg" for number in range(count)]
    for folder in (target / "a", target / "b"):
        folder.mkdir(parents=True)
    for number, path in enumerate(paths):
        if files:
            shutil.copyfile(files[number % len(files)], path)
        elif number < 300:
            photo(number).save(path, quality=80)
        else:
            shutil.copyfile(paths[number % 300], path)
    return paths


def ways(paths: list[Path], folder: Path, size: int) -> dict[str, Callable[[], object]]:
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms.v2.functional import resize

    def pillow(path: Path) -> np.ndarray:
        with Image.open(path) as image:
            small = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(small)

    def torchvision(path: Path) -> torch.Tensor:
        image = decode_jpeg(read_file(str(path)), ImageReadMode.RGB)
        return resize(image, [size, size], antialias=True)

    def threaded(function: Callable[[Path], object]) -> None:
        with ThreadPoolExecutor(cores()) as pool:
            for start in range(0, len(paths), 512):
                list(pool.map(function, paths[start : start + 512]))

    def survey() -> None:
        cache.clear()
        audit(load_data(folder))

    def build() -> None:
        cache.clear()
        load_data(folder, image_size=size, val=0, test=0).pixels("train")

    dataset = load_data(folder, image_size=size, val=0, test=0)

    def decode() -> None:
        cache.clear()
        dataset.pixels("train")

    return {
        "Pillow": lambda: [pillow(path) for path in paths],
        "torchvision.io": lambda: [torchvision(path) for path in paths],
        f"Pillow, {cores()} threads": lambda: threaded(pillow),
        f"torchvision.io, {cores()} threads": lambda: threaded(torchvision),
        "smallvit: cache": decode,
        "smallvit: load_data + cache": build,
        "smallvit: load_data + audit": survey,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        os.environ["SMALLVIT_CACHE"] = f"{name}/cache"
        paths = make(options.folder, Path(name) / "data", options.count)
        kilobytes = statistics.mean(path.stat().st_size for path in paths) / 1000
        rates: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for way, function in ways(paths, Path(name) / "data", options.size).items():
                started = time.perf_counter()
                function()
                rates.setdefault(way, []).append(len(paths) / (time.perf_counter() - started))
    table = Table(
        "images per second",
        "median",
        "lowest",
        "highest",
        title=f"{len(paths):,} JPEGs of {kilobytes:.0f} kB to {options.size}×{options.size}, "
        f"{cores()} cores, {options.rounds} rounds",
    )
    for way, measured in rates.items():
        table.add_row(way, *(f"{f(measured):,.0f}" for f in (statistics.median, min, max)))
    Console().print(table)


if __name__ == "__main__":
    main()
