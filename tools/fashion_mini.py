"""Draws the embedded dataset `fashion-mini` from Fashion-MNIST.

    apt-get install dataset-fashion-mnist
    python tools/fashion_mini.py /usr/share/datasets/fashion-mnist

400 training and 100 test images per class, drawn with a fixed seed from the training and the test
split, each image at most once.
"""

import gzip
import sys
from pathlib import Path

import numpy as np

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
COUNTS = {"train": ("train", 400), "test": ("t10k", 100)}
TARGET = Path(__file__).parents[1] / "smallvit" / "data" / "bundled" / "fashion-mini.npz"


def read(path: Path, header: int) -> np.ndarray:
    """The values of an IDX file."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def main(source: Path) -> None:
    """Draws, and writes the package's file."""
    random = np.random.default_rng(0)
    seen: set[bytes] = set()
    images, labels, splits = [], [], []
    for split, (prefix, count) in COUNTS.items():
        originals = read(source / f"{prefix}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
        targets = read(source / f"{prefix}-labels-idx1-ubyte.gz", 8)
        for label in range(len(CLASSES)):
            chosen = []
            for index in random.permutation(np.flatnonzero(targets == label)):
                if (content := originals[index].tobytes()) not in seen and len(chosen) < count:
                    seen.add(content)
                    chosen.append(index)
            images.append(originals[sorted(chosen)])
            labels += [label] * count
            splits += [split] * count
    np.savez_compressed(
        TARGET,
        images=np.concatenate(images),
        labels=np.array(labels, np.uint8),
        split=np.array(splits),
        classes=np.array(CLASSES),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
