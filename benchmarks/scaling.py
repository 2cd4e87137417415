"""What training costs against tokens, batch, images and processes.

    python -m benchmarks.scaling [--axes tokens,batch,images,processes] [--model vit_9_p4+spt+lsa]
                                 [--json out.json]

- tokens: milliseconds of the whole step, and memory, at 32, 48, 64, 96 and 128 pixels a side, which
  is (side / 4)² tokens, with the fused kernels and without; batch 128, on a CPU 16;
- batch: the same at 32 pixels, from 32 images to 2,048, on a CPU to 128;
- images: seconds to read, audit and load data sets of 1,000 to 64,000 images as .npz, each with an
  empty cache and again with a filled one;
- processes: images per second of `smallvit train` with 1, 2 and 4 processes, no more than there are
  GPUs, or cores; the batch of all together stays the same.

*power* is the slope of the logarithms since the row above: 1 is proportional, 0 is free.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu import run_all
from benchmarks.machine import machine
from benchmarks.train_step import DEVICE, prepare
from smallvit.data import audit, load_data

ON_GPU = DEVICE.type == "cuda"
SIDES = (32, 48, 64, 96, 128) if ON_GPU else (32, 64)
BATCHES = (32, 64, 128, 256, 512, 1024, 2048) if ON_GPU else (16, 32, 64, 128)
IMAGES = (1_000, 4_000, 16_000, 64_000)
PROCESSES = (1, 2, 4)
AXES = ("tokens", "batch", "images", "processes")


def write_data(path, count, side=32):
    pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    np.savez(path, images=pixels, labels=np.arange(count) % 100)
    return str(path)


def steps(folder, jobs):
    """Milliseconds and gigabytes of steps; jobs are (model, side, batch, row) by label."""
    sources = {
        side: write_data(folder / f"side{side}.npz", 4096 if ON_GPU else 1000, side)
        for side in {job[1] for job in jobs.values()}
    }
    for side, source in sources.items():
        load_data(source, val=0, image_size=side).pixels("train")  # once, for all processes
    arguments = {
        label: (sources[side], f"{model}@{side}", batch, row, False)
        for label, (model, side, batch, row) in jobs.items()
    }
    return run_all(prepare, arguments, patience=600)


def tokens(folder, model):
    batch = 128 if ON_GPU else 16
    rows = ("fused", "plain") if ON_GPU else ("fused",)
    jobs = {
        f"{(side // 4) ** 2} {row}": (model, side, batch, row) for row in rows for side in SIDES
    }
    return steps(folder, jobs)


def batch(folder, model):
    rows = ("fused",)
    jobs = {f"{size} {row}": (model, 32, size, row) for row in rows for size in BATCHES}
    return steps(folder, jobs)


def images(folder, _):
    results = {}
    for count in IMAGES:
        source = write_data(folder / f"images{count}.npz", count)
        for state in ("empty", "filled"):
            began = time.perf_counter()
            dataset = load_data(source)
            audit(dataset)
            for split in dataset.splits:
                dataset.pixels(split)
            results[f"{count} {state}"] = {"ms": 1e3 * (time.perf_counter() - began)}
    return dict(sorted(results.items(), key=lambda item: item[0].split(" ")[1]))


def processes(folder, model):
    source, results = write_data(folder / "processes.npz", 4096), {}
    most = torch.cuda.device_count() if ON_GPU else os.cpu_count()
    size = 1024 if ON_GPU else 64
    for number in (n for n in PROCESSES if n <= most):
        out = folder / f"run{number}"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={number}"),
            *("--standalone", "-m", "smallvit", "train", source, "--model", model),
            *("--out", str(out), "--recipe", "spt-lsa", "--set", f"loop.batch_size={size}"),
            *("--set", f"schedule.steps={200 if ON_GPU else 8}"),
            *("--set", f"loop.every={100 if ON_GPU else 4}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            results[f"{number} train"] = {"failed": (done.stdout + done.stderr)[-1500:]}
            continue
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        rate = [line["images_per_second"] for line in lines if line["kind"] == "train"][-1]
        results[f"{number} train"] = {"ms": 1e3 * size / rate, "images_per_second": rate}
    return results


def table(axis, results):
    """One line for each point; powers between neighbours of the same row."""
    print(f"\n| {axis} | row | ms | power | images/s | GB |\n|--:|---|--:|--:|--:|--:|")
    last = {}
    for label, found in results.items():
        at, row = label.split(" ")
        if "ms" not in found:
            print(f"| {int(at):,} | {row} | failed: {found.get('failed', '')[-200:]!r} | | | |")
            continue
        power = None
        if row in last:
            before, ms = last[row]
            power = math.log(found["ms"] / ms) / math.log(int(at) / before)
        last[row] = int(at), found["ms"]
        found["power"] = power
        others = (power, ".2f"), (found.get("images_per_second"), ",.0f")
        others += ((found.get("gigabytes"), ".1f"),)
        cells = [f"{int(at):,}", row, f"{found['ms']:,.1f}"]
        cells += ["–" if value is None else format(value, form) for value, form in others]
        print(f"| {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--model", default="vit_9_p4+spt+lsa", help="its patches are 4 pixels wide")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    facts = {**machine(), "model": args.model}
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    measures = {"tokens": tokens, "batch": batch, "images": images, "processes": processes}
    results = {}
    for axis in args.axes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SMALLVIT_CACHE"] = folder
            results[axis] = measures[axis](Path(folder), args.model)
        table(axis, results[axis])
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
