"""Images a second of the whole training step of every family, attention fused and plain.

    python -m benchmarks.train_step [--models vit_9_p4+spt+lsa,…] [--batches 128,1024]
                                    [--rows fused,plain,…] [--profile] [--json out.json]
    python -m benchmarks.train_step --peers [--models cct_7_3x1,…] [--json out.json]

A step is that of `smallvit train` with the family's recipe: gather, augment, mix, forward,
backward, AdamW (Muon for HCT). The images are noise of 32×32 pixels, or of those after an @ in the
name, 100 classes. Rows:

- fused: as it runs by default;
- regional: `loop.regional=true`, blocks that are alike compiled once;
- recompute: `loop.recompute=true`, wide activations computed again instead of kept;
- narrow: `loop.narrow=true`, tokens between blocks in bf16;
- plain: `loop.fused=false`, torch's own attention;
- unaugmented, uncaptured, uncompiled: the default without that (uncompiled is uncaptured too);
- captured: captured, but not compiled.

Every row is compiled in a process of its own, all at once, and measured while the others wait:
medians of repeats. Memory is the peak that torch allocated. `--profile` adds the share of each
kind of kernel in the first row. On a CPU there is one row to compare: compiled or not. `--peers`
instead times the steps of some models beside those of vit-pytorch and timm at batch 64, see
`benchmarks/peers.py`.
"""

import argparse
import collections
import json
import math
import os
import re
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu import run_all
from benchmarks.machine import machine
from benchmarks.peers import compare
from smallvit.augment import PRESETS, AugmentConfig
from smallvit.data import load_data
from smallvit.runs.config import DataConfig, LoopConfig, ModelConfig, OptimConfig, RunConfig
from smallvit.training.budget import make_loader
from smallvit.training.distributed import World
from smallvit.training.objective import make_objective
from smallvit.training.start import build_model
from smallvit.training.step import Stepper

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MODELS = {
    "cait_24_p4+spt+lsa": "spt_cifar",
    "cct_7_3x1": "compact_cifar100",
    "vit_9_p4+spt+lsa": "spt_cifar",
    "swin_tiny_p2+spt+lsa": "spt_cifar",
    "pit_tiny_p2+spt+lsa": "spt_cifar",
    "t2t_12+spt+lsa": "spt_cifar",
}
ROWS = {
    "fused": {},
    "regional": {"regional": True},
    "recompute": {"recompute": True},
    "narrow": {"narrow": True},
    "plain": {"fused": False},
    "unaugmented": {},
    "uncaptured": {"captured": False},
    "uncompiled": {"compiled": False, "captured": False},
    "captured": {"compiled": False},
    "compiled": {"compiled": True},
}
_REPEATS = 3
#: Kinds of kernels by their names, the first that fits; the rest is elementwise.
KINDS = {
    "attention": r"^(forward|backward(_tiled)?)$|^talking_|flash|fmha|attention|aten::_softmax",
    "optimiser": r"multi_tensor_apply|adam",
    "convolution": r"conv|cudnn|wgrad2d|dgrad2d|nchw|nhwc",
    "matmul": r"gemm|nvjet|cutlass|cublas|splitk|_mm|::(add)?b?mm",
    "norm": r"norm",
    "pool": r"pool",
}


def config_of(source, name, batch, row):
    """The run's config of one row."""
    name, _, side = name.partition("@")
    muon = name.startswith(("hct_", "hct2_"))
    full = RunConfig(
        data=DataConfig(source=source, val=0, image_size=int(side or 32)),
        model=ModelConfig(name=name),
        augment=PRESETS[MODELS.get(name, "spt_cifar")],
        optim=OptimConfig(optimizer="muon", ema=0.999) if muon else OptimConfig(),
        loop=LoopConfig(batch_size=batch, **ROWS[row]),
    )
    return replace(full, augment=AugmentConfig()) if row == "unaugmented" else full


def prepare(source, name, batch, row, profiled):
    """Compiles; returns a function that captures and measures."""
    config, began = config_of(source, name, batch, row), time.perf_counter()
    dataset = load_data(source, val=0, image_size=config.data.image_size)
    world = World(0, 1, DEVICE)
    model, _ = build_model(config, dataset)
    loader = make_loader(config, dataset, world)
    stepper = Stepper(config, make_objective(config, model, dataset, world), world)
    # What a graph captures stays allocated, and all processes share one GPU: capture later.
    captured, stepper.captured = stepper.captured, False
    done = 0

    def take(steps):
        nonlocal done
        began = time.perf_counter()
        for _ in range(steps):
            stepper(loader.batch(done), done, lr=1e-3, mixed=config.augment.mixed)
            done += 1
        stepper.take_means()  # waits for the device
        return time.perf_counter() - began

    take(2)
    found = {"first_steps_seconds": time.perf_counter() - began}
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()

    def measure():
        if DEVICE.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        compiled, stepper.captured = stepper.compiled, captured
        take(2)
        steps = max(2, math.ceil(0.2 / (take(3) / 3)))
        seconds = [take(steps) / steps for _ in range(_REPEATS)]
        if (stepper.accumulation, stepper.captured, stepper.compiled) != (1, captured, compiled):
            raise RuntimeError("the step ran out of memory, or could not be captured")
        found["ms"] = 1e3 * statistics.median(seconds)
        found["spread"] = (max(seconds) - min(seconds)) / statistics.median(seconds)
        found["images_per_second"] = batch / statistics.median(seconds)
        if DEVICE.type == "cuda":
            found["gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
        if profiled:
            found["profile"] = profile(lambda: take(3), 3)
        return found

    return measure


def profile(function, steps):
    """Milliseconds and number of kernels of a step, by kind, and the longest kernels.

    On a CPU kernels are what torch calls, each without what it calls in turn, and there are the
    floating-point operations of a second beside those of one large matrix product.
    """
    activity = torch.profiler.ProfilerActivity
    on_gpu = DEVICE.type == "cuda"
    with torch.profiler.profile(activities=[activity.CUDA if on_gpu else activity.CPU]) as profiler:
        function()
    kinds, kernels = collections.Counter(), 0
    names, calls = collections.Counter(), collections.Counter()
    for event in profiler.events():
        if not on_gpu or event.device_type == torch.autograd.DeviceType.CUDA:
            text = event.name.lower()
            kind = next(
                (kind for kind, has in KINDS.items() if re.search(has, text)), "elementwise"
            )
            took = event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total
            took /= 1e3 * steps
            kinds[kind] += took
            names[event.name[:120]] += took
            calls[event.name[:120]] += 1
            kernels += 1
    return {
        **({} if on_gpu else operations(function, steps)),
        "ms": dict(kinds.most_common()),
        "kernels": kernels / steps,
        "longest": {
            name: {"ms": took, "calls": calls[name] / steps} for name, took in names.most_common(30)
        },
    }


def operations(function, steps):
    """Floating-point operations of a step's products, and a second's of one large product."""
    with FlopCounterMode(display=False) as counter:
        function()
    found = {"operations": counter.get_total_flops() / steps}
    for precision in (torch.float32, torch.bfloat16):
        x = torch.randn(4096, 1024, dtype=precision)
        y = torch.randn(1024, 1024, dtype=precision)
        seconds = []
        for _ in range(10):
            began = time.perf_counter()
            torch.mm(x, y)
            seconds.append(time.perf_counter() - began)
        name = str(precision).removeprefix("torch.")
        found[f"operations_per_second_{name}"] = 2 * 4096 * 1024**2 / statistics.median(seconds)
    return found


def table(results, rows):
    """One line for each model and batch, the rows side by side."""
    print("| model | batch | " + " | ".join(f"{row}, images/s" for row in rows), end=" | ")
    print("ratio | GB | first steps, s |\n|---|--:|" + "--:|" * (len(rows) + 3))
    lines = collections.defaultdict(dict)
    for label, found in results.items():
        name, batch, row = label.split(" ")
        lines[name, batch][row] = found
    for (name, batch), found in lines.items():
        rates = [found.get(row, {}).get("images_per_second") for row in rows]
        first = found.get(rows[0], {})
        last = next((rate for rate in rates[1:] if rate), None)
        texts = ["–" if rate is None else f"{rate:,.0f}" for rate in rates]
        texts.append(f"{rates[0] / last:.2f}" if rates[0] and last else "–")
        texts += [f"{first.get(key, math.nan):.1f}" for key in ("gigabytes", "first_steps_seconds")]
        print(f"| {name} | {int(batch):,} | {' | '.join(texts)} |")
    for label, found in results.items():
        if "profile" in found:
            kinds, kernels = found["profile"]["ms"], found["profile"]["kernels"]
            shares = ", ".join(f"{kind} {took:.2f}" for kind, took in kinds.items())
            print(f"{label}: {kernels:.0f} kernels, {sum(kinds.values()):.2f} ms: {shares}")
            for key, value in found["profile"].items():
                if key.startswith("operations"):
                    print(f"  {key}: {value / 1e9:,.1f} billion")
        if "failed" in found:
            print(f"{label} failed: {found['failed'][-300:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    on_gpu = DEVICE.type == "cuda"
    parser.add_argument("--models")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--batches", default="128,1024" if on_gpu else "64")
    parser.add_argument("--rows", default="fused,plain" if on_gpu else "fused,compiled")
    parser.add_argument("--patience", type=float, default=600, help="seconds to compile in")
    parser.add_argument("--precisions", default="fp32,bf16", help="of --peers")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if args.peers:
        models = args.models and args.models.split(",")
        compare("train", models=models, precisions=args.precisions, path=args.json)
        return
    rows, batches = args.rows.split(","), [int(batch) for batch in args.batches.split(",")]
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        source = str(Path(folder) / "noise.npz")
        images = random.integers(0, 256, (max(4096, 2 * max(batches)), 32, 32, 3), dtype=np.uint8)
        np.savez(source, images=images, labels=np.arange(len(images)) % 100)
        os.environ["SMALLVIT_CACHE"] = folder
        load_data(source, val=0).pixels("train")  # once, for all processes
        jobs = {}
        for name in args.models.split(",") if args.models else MODELS:
            for batch in sorted(batches, reverse=True):
                for row in rows:
                    profiled = args.profile and row == rows[0]
                    jobs[f"{name} {batch} {row}"] = (source, name, batch, row, profiled)
        results = run_all(prepare, jobs, patience=args.patience)
    facts = {**machine(), "processes_compiling_at_once": len(jobs)}
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    table(results, rows)
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
