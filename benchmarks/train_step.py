"""Images a second of the whole training step, and what its parts cost.

    python -m benchmarks.train_step --model vit_9_p4+spt+lsa --recipe spt_cifar

Random images; every row is the same step with something left out, all in one run.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from smallvit.augment import PRESETS, AugmentConfig
from smallvit.data import load_data
from smallvit.runs.config import DataConfig, LoopConfig, ModelConfig, RunConfig
from smallvit.training.budget import make_loader
from smallvit.training.distributed import World
from smallvit.training.objective import make_objective
from smallvit.training.step import Stepper
from smallvit.training.train import build_model

_WARM = 20


def rate(config: RunConfig, steps: int, device: torch.device) -> float:
    """Images a second of a number of steps."""
    dataset = load_data(config.data.source, val=0)
    world = World(0, 1, device)
    model, _ = build_model(config, dataset)
    loader = make_loader(config, dataset, world)
    stepper = Stepper(config, make_objective(config, model, dataset, world), world)
    for step in range(_WARM + steps):
        if step == _WARM:
            stepper.take_means()
            started = time.perf_counter()
        stepper(loader.batch(step), step, lr=1e-3, mixed=config.augment.mixed)
    stepper.take_means()
    return steps * config.loop.batch_size / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_9_p4+spt+lsa")
    parser.add_argument("--recipe", default="spt_cifar", choices=PRESETS)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "noise.npz"
        shape = (max(4096, 2 * args.batch), args.side, args.side, 3)
        np.savez(
            source,
            images=random.integers(0, 256, shape, dtype=np.uint8),
            labels=np.arange(shape[0], dtype=np.int64) % 100,
        )
        full = RunConfig(
            data=DataConfig(source=str(source), val=0),
            model=ModelConfig(name=args.model),
            augment=PRESETS[args.recipe],
            loop=LoopConfig(batch_size=args.batch),
        )
        rows = {
            "whole step": full,
            "without augmentation": replace(full, augment=AugmentConfig()),
            "not captured": replace(full, loop=replace(full.loop, captured=False)),
            "nor compiled": replace(full, loop=replace(full.loop, captured=False, compiled=False)),
        }
        if device.type == "cpu":
            rows = dict(list(rows.items())[:2])
        print(f"{args.model}, {args.recipe}, batch {args.batch}, {args.side} px, {device.type}")
        first = 0.0
        for name, config in rows.items():
            value = rate(config, args.steps, device)
            first = first or value
            print(f"{name:24s} {value:10,.0f} images/s  {first / value:5.2f}× the time", flush=True)


if __name__ == "__main__":
    main()
