"""How many images a pass without gradients should have on a CPU.

    OMP_NUM_THREADS=1 python -m benchmarks.passes [--json out.json]

`logits_of` as tests and `evaluate` call it, in float32, with passes of several sizes in alternating
rounds; the best rate of each, in images per second of processor time, so that other processes
disturb little. The last column is what `images_per_pass` chooses.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.machine import machine
from smallvit.devices import images_per_pass
from smallvit.evaluation import logits_of
from smallvit.models.build import make_model

MODELS = [
    ("hct2_s_p4", 32),
    ("cct_2_3x2", 32),
    ("vit_9_p4+spt+lsa", 32),
    ("swin_tiny_p2", 32),
    ("hct2_s_p16", 128),
    ("resnet18", 224),
]
SIZES = [8, 16, 32, 64, 128, 256]
GREY = {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}


def rates(model: nn.Module, side: int, rounds: int) -> dict[int, float]:
    """Images per second of processor time for each size of a pass."""
    pixels = np.random.default_rng(0).integers(0, 256, (SIZES[-1], 3, side, side), np.uint8)
    best = dict.fromkeys(SIZES, 0.0)
    for _ in range(rounds):
        for size in SIZES:
            started = time.process_time()
            logits_of(model, pixels, **GREY, batch_size=size)
            best[size] = max(best[size], len(pixels) / (time.process_time() - started))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = []
    print("| images a pass | pixels |" + "".join(f" {size} |" for size in SIZES) + " chosen |")
    for name, side in MODELS:
        model = make_model(name, num_classes=10, image_size=(side, side), in_channels=3)
        if any(isinstance(m, nn.Conv2d) and m.kernel_size > m.stride for m in model.modules()):
            model = model.to(memory_format=torch.channels_last)  # as training leaves it
        measured = rates(model, side, args.rounds)
        chosen = images_per_pass(torch.device("cpu"), (side, side))
        cells = "".join(f" {rate:,.0f} |" for rate in measured.values())
        print(f"| `{name}` | {side} |{cells} {chosen} |", flush=True)
        found.append({"model": name, "side": side, "rates": measured, "chosen": chosen})
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "models": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
