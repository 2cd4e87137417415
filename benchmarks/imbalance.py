"""Balanced weights on and off, on images whose classes are made imbalanced.

    python -m benchmarks.imbalance cifar10.npz --out results/imbalance
    python -m benchmarks.imbalance cifar10.npz --out results/imbalance --cell 1:100 2 on
    python -m benchmarks.imbalance --out results/imbalance --json results/imbalance.json

DATA is any form that `smallvit train` takes; an .npz has images, labels and, for the test images,
split. 1:10 and 1:100 have numbers of images that fall geometrically from the first class to the
last; "one" has a fifth of the classes with a single image and the others whole. Which class is rare
changes with the seed. Everything else is what `auto` plans without weights: only `loss.balanced`
differs between the two runs of a pair. There is no validation, so nothing is chosen, and the test
images are the same for all.

Balanced accuracy is the mean recall over the classes. Accuracy is that of images distributed as the
training images are, the recalls weighted by their shares: on a balanced test split both would be
the same number.

Each cell is a file in --out, so that a command that is repeated goes on; without DATA only the
table is printed. Beside busy neighbours set GOMP_SPINCOUNT=2000, as `smallvit` does by itself.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import machine
from smallvit.data import Dataset, load_data
from smallvit.files import write_json
from smallvit.recipes import plan
from smallvit.runs.changes import changes_of, layered
from smallvit.training import train

KINDS = ("1:10", "1:100", "one")
WEIGHTS = ("off", "on")


def class_counts(kind: str, classes: int, most: int) -> list[int]:
    """Images of each class, the largest first."""
    if kind == "one":
        single = max(1, classes // 5)
        return [most] * (classes - single) + [1] * single
    ratio = int(kind.partition(":")[2])
    return [max(1, round(most * ratio ** (-k / (classes - 1)))) for k in range(classes)]


def imbalanced(data: Dataset, kind: str, seed: int, most: int, path: Path) -> np.ndarray:
    """Writes such a dataset as an .npz; returns the training images of each class."""
    random = np.random.default_rng(seed)
    labels, classes = data.labels("train"), len(data.classes)
    most = min(most, int(np.bincount(labels, minlength=classes).min()))
    counts = np.empty(classes, int)
    counts[random.permutation(classes)] = class_counts(kind, classes, most)
    chosen = np.concatenate(
        [random.permutation(np.flatnonzero(labels == k))[: counts[k]] for k in range(classes)]
    )
    parts = {"train": chosen, "test": np.arange(len(data.labels("test")))}
    pixels = [np.array(data.pixels(name)[indices]) for name, indices in parts.items()]
    np.savez(
        path,
        images=np.concatenate(pixels).transpose(0, 2, 3, 1),
        labels=np.concatenate([data.labels(name)[indices] for name, indices in parts.items()]),
        split=np.repeat(list(parts), [len(indices) for indices in parts.values()]),
        classes=np.array(data.classes),
    )
    return counts


def run_cell(data: Dataset, cell: tuple[str, int, str], args: argparse.Namespace) -> dict[str, Any]:
    """Trains once, and says how good it is."""
    kind, seed, weights = cell
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "imbalanced.npz"
        counts = imbalanced(data, kind, seed, args.most, source)
        fixed = {
            "seed": seed,
            # Duplicates and conflicts are those of the benchmark that it was made from.
            "data": {"source": str(source), "val": 0.0, "allow": ["leaks", "conflicts"]},
            "schedule": {"steps": args.steps},
            "loss": {"balanced": weights == "on"},
            "loop": {"compiled": args.compiled, "device": args.device},
        }
        config = plan(changes=layered(fixed, changes_of(args.set))).config
        started = time.monotonic()
        run = train(config, out=Path(folder) / "run", shown=False)
        seconds, evaluation = time.monotonic() - started, run.evaluation()
        assert evaluation is not None
        recalls = np.array([row.recall.value for row in evaluation.per_class])
    rarest = counts == counts.min()
    return {
        "kind": kind,
        "seed": seed,
        "weights": weights,
        "balanced_accuracy": float(recalls.mean()),
        "accuracy": float((recalls * counts).sum() / counts.sum()),
        "rarest_recall": float(recalls[rarest].mean()),
        "most_predicted": max(row.predicted for row in evaluation.per_class) / evaluation.count,
        "counts": counts.tolist(),
        "recalls": recalls.tolist(),
        "model": config.model.name,
        "steps": run.info["steps"],
        "batch_size": run.config.loop.batch_size,
        "seconds": round(seconds, 1),
        **machine(),
        "command": " ".join(["python -m benchmarks.imbalance", *sys.argv[1:]]),
    }


def summarise(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per kind: means over the seeds that have both runs, and the differences of the pairs."""
    rows = []
    for kind in KINDS:
        by = {(each["seed"], each["weights"]): each for each in cells if each["kind"] == kind}
        seeds = sorted(seed for seed, weights in by if weights == "on" and (seed, "off") in by)
        if not seeds:
            continue
        row: dict[str, Any] = {"kind": kind, "seeds": seeds}
        for name in ("balanced_accuracy", "accuracy", "rarest_recall"):
            off, on = ([by[seed, w][name] for seed in seeds] for w in WEIGHTS)
            changes = [b - a for a, b in zip(off, on, strict=True)]
            row[name] = {
                "off": statistics.mean(off),
                "on": statistics.mean(on),
                "change": statistics.mean(changes),
                "std": statistics.stdev(changes) if len(changes) > 1 else None,
            }
        rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The summary as Markdown; changes in points with their standard deviation over seeds."""
    lines = [
        "| images | seeds | balanced accuracy, off | on | change | accuracy, off | on | change "
        "| recall of the rarest, off | on |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        texts = [row["kind"], str(len(row["seeds"]))]
        for name in ("balanced_accuracy", "accuracy", "rarest_recall"):
            cell = row[name]
            texts += [f"{100 * cell['off']:.1f}", f"{100 * cell['on']:.1f}"]
            if name != "rarest_recall":
                std = "" if cell["std"] is None else f" ± {100 * cell['std']:.1f}"
                texts.append(f"{100 * cell['change']:+.1f}{std}")
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", help="an .npz with images, labels and split")
    parser.add_argument("--out", type=Path, required=True, help="folder of the cells")
    parser.add_argument(
        "--cell", nargs=3, metavar=("KIND", "SEED", "on|off"), help="one cell alone"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--most", type=int, default=5000, help="images of the largest class")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compiled", action="store_true", help="pays for long runs on a GPU")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--json", type=Path, help="write cells and summary here")
    args = parser.parse_args(argv)
    cells = [(k, seed, w) for k in KINDS for seed in range(args.seeds) for w in WEIGHTS]
    if args.cell:
        kind, seed, weights = args.cell
        if kind not in KINDS or weights not in WEIGHTS or not seed.isdecimal():
            parser.error(f"--cell is {' '.join(args.cell)}: expected {'|'.join(KINDS)} SEED on|off")
        cells = [(kind, int(seed), weights)]
    args.out.mkdir(parents=True, exist_ok=True)
    data = load_data(args.data, val=0) if args.data else None
    for kind, seed, weights in cells if data else ():
        path = args.out / f"{kind.replace(':', '-')}_seed-{seed}_{weights}.json"
        if not path.exists():
            result = run_cell(data, (kind, seed, weights), args)
            write_json(path, result)
            print(
                f"{kind}, seed {seed}, weights {weights}: balanced accuracy "
                f"{100 * result['balanced_accuracy']:.1f} %, accuracy "
                f"{100 * result['accuracy']:.1f} %, {result['seconds']:.0f} s",
                flush=True,
            )
    known = [json.loads(path.read_text()) for path in sorted(args.out.glob("*_seed-*.json"))]
    rows = summarise(known)
    print(table(rows))
    if args.json:
        write_json(args.json, {"summary": rows, "cells": known})


if __name__ == "__main__":
    main()
