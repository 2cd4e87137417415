"""Seconds from the command `smallvit train` to its first step, to its last, and to its end.

    python -m benchmarks.end_to_end [--runs vit_9,cct_7] [--rows default,regional,uncompiled]
                                    [--epochs 2] [--data FOLDER] [--json out.json]

Each run is the command itself in a process of its own, with its recipe's model, augmentation and
batches: imports, reading, audit, compiling, real epochs, validation and the test. Every row runs
twice, one after the other with nothing beside it: with empty caches, and with what the first run
left there. By default the images are noise in the shape of CIFAR-100, 50,000 to train on and 10,000
to test on, as .npz; --images takes fewer.

Times are those at which a line of the command arrives; `lines` in the file has all of them, so that
it can be seen what was waited for.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import machine

RUNS = {
    "vit_9": ["--recipe", "spt-lsa", "--model", "vit_9_p4+spt+lsa"],
    "cct_7": ["--recipe", "compact", "--model", "cct_7_3x1"],
    "cait_24": ["--recipe", "spt-lsa", "--model", "cait_24_p4+spt+lsa"],
}
ROWS = {
    "default": [],
    "regional": ["--set", "loop.regional=true"],
    "uncompiled": ["--set", "loop.compiled=false"],
}
_BATCH = 128
#: What the lines begin with that stand for an event; the last that does is taken.
EVENTS = {
    "started": r".* parameters, on ",
    "compiling": r"compiling the step",
    "first_step": r"the first step took",
    "last_step": r"epoch ",
}


def write_data(folder, images):
    """Noise in the shape of CIFAR-100."""
    random = np.random.default_rng(0)
    for split, count in {"train": images, "test": max(images // 5, 100)}.items():
        pixels = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        np.savez(folder / f"{split}.npz", images=pixels, labels=np.arange(count) % 100)


def run(command, environment):
    """The lines of a command with the seconds at which they came, and how it ended."""
    began, lines = time.perf_counter(), []
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout:
            lines.append((round(time.perf_counter() - began, 2), line.rstrip()))
    found = {"returned": process.returncode, "end": round(time.perf_counter() - began, 2)}
    for name, pattern in EVENTS.items():
        times = [seconds for seconds, line in lines if re.match(pattern, line)]
        found[name] = times[-1] if times else None
    return {**found, "lines": lines}


def measure(name, row, caches, source, args):
    """One run of the command; `caches` is the folder in which everything is kept."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    }
    environment |= {"SMALLVIT_CACHE": str(caches), "PYTHONUNBUFFERED": "1"}
    steps = max(1, round(args.epochs * args.images / _BATCH))
    with tempfile.TemporaryDirectory() as folder:
        return run(
            [
                *(sys.executable, "-m", "smallvit", "train", str(source), *RUNS[name], *ROWS[row]),
                *("--out", f"{folder}/run", "--set", f"schedule.steps={steps}"),
                *("--set", f"loop.batch_size={_BATCH}", *args.set),
            ],
            environment,
        )


def table(results):
    columns = ("started", "first_step", "last_step", "end")
    print("| run | row | caches | " + " | ".join(f"{name}, s" for name in columns) + " |")
    print("|---|---|---|" + "--:|" * len(columns))
    for label, found in results.items():
        cells = ["–" if found[name] is None else f"{found[name]:.1f}" for name in columns]
        print(f"| {' | '.join([*label.split(' '), *cells])} |")
        if found["returned"]:
            print("\n".join(f"    {line}" for _, line in found["lines"][-15:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", default="vit_9,cct_7")
    parser.add_argument("--rows", default="default,regional,uncompiled")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--images", type=int, help="of the training split; 50,000 are made up")
    parser.add_argument("--data", help="what to train on instead; --images says how many that are")
    parser.add_argument("--set", nargs="*", default=[], help="more options of the command")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if args.data and not args.images:
        parser.error("--data needs --images, the number of its training images")
    args.images = args.images or 50_000
    args.set = [word for value in args.set for word in ("--set", value)]
    facts = {**machine(), "epochs": args.epochs, "images": args.images}
    print(", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(args.data) if args.data else Path(folder) / "noise"
        if not args.data:
            source.mkdir()
            write_data(source, args.images)
        for name in args.runs.split(","):
            for row in args.rows.split(","):
                caches = Path(folder) / f"caches-{name}-{row}"
                for state in ("empty", "warm"):
                    results[f"{name} {row} {state}"] = found = measure(
                        name, row, caches, source, args
                    )
                    print(f"{name} {row} {state}: {found['end']} s", flush=True)
    table(results)
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
