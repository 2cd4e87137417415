"""The long test: kills, damaged files, mutated images and many clients. Not part of CI.

    python tools/soak.py                    # everything, under an hour on two cores
    python tools/soak.py kills --count 20   # one part, and how much of it

It prints one row per part for docs/reliability.md, and ends with 1 if anything broke.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch: processes are forked from this one
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from tests.soak.clients import soak_overload, soak_requests
from tests.soak.fuzz import soak_fuzz
from tests.soak.images import soak_images
from tests.soak.kills import soak_kills
from tests.soak.result import Result

PARTS: dict[str, tuple[str, Callable[[int, Path], Result], int]] = {
    "kills": ("kill and go on to the same bits", soak_kills, 100),
    "fuzz": ("damaged run folders, checkpoints, caches, configs", soak_fuzz, 2_000),
    "images": ("mutated images", soak_images, 5_000),
    "requests": ("requests of 32 clients", soak_requests, 10_000),
    "overload": ("the same with 4 places at the model", soak_overload, 2_000),
}


def main() -> int:
    """Runs all parts, or those that are named; returns 1 if anything broke."""
    parser = argparse.ArgumentParser(description="The long test.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--count", type=int, help="instead of the full count of each part")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # of thousands of damaged files
    warnings.filterwarnings("ignore", module="PIL")
    worst = 0
    print("| attack | tried | broke | seconds | |\n|---|--:|--:|--:|---|", flush=True)
    for name in options.parts or PARTS:
        title, attack, count = PARTS[name]
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SMALLVIT_CACHE"] = f"{folder}/cache"
            result = attack(options.count or count, Path(folder))
        seconds, broke = time.monotonic() - started, len(result.broken)
        print(f"| {title} | {result.tried:,} | {broke} | {seconds:.0f} | {result.note} |")
        for sentence in result.broken[:20]:
            print(f"BROKE: {sentence}", flush=True)
        sys.stdout.flush()
        worst = max(worst, broke)
    return int(worst > 0)


if __name__ == "__main__":
    raise SystemExit(main())
