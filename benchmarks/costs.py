"""Images a second of the whole training step of HCT's sizes: the table in recipes/speed.py.

    python -m benchmarks.costs [hct_s_p4@32 hct_s_p8@64 …]

Random images of ten classes, crop and flip, on a GPU if there is one. Only the ratios mean anything
across machines.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.train_step import rate
from smallvit.augment import AugmentConfig
from smallvit.runs.config import DataConfig, LoopConfig, ModelConfig, RunConfig

CELLS = (
    *(f"hct_{size}_p4@32" for size in ("xs", "s", "m", "l")),
    *("hct_s_p8@32", "hct_s_p8@64", "hct_l_p8@64", "hct_s_p16@128", "hct_l_p16@128"),
)


def main() -> None:
    """Prints a row per cell."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, steps = (256, 300) if device.type == "cuda" else (64, 10)
    random = np.random.default_rng(0)
    for cell in sys.argv[1:] or CELLS:
        name, _, side = cell.partition("@")
        with tempfile.TemporaryDirectory() as folder:
            source, shape = Path(folder) / "noise.npz", (1024, int(side), int(side), 3)
            images = random.integers(0, 256, shape, dtype=np.uint8)
            np.savez(source, images=images, labels=np.arange(1024) % 10)
            config = RunConfig(
                data=DataConfig(source=str(source), val=0),
                model=ModelConfig(name=name),
                augment=AugmentConfig(flip=0.5, padding=int(side) // 8, smoothing=0.1),
                loop=LoopConfig(batch_size=batch),
            )
            print(f"{cell:16s} {rate(config, steps, device):10,.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
