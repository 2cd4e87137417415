"""`smallvit train DATA --minutes M` beside a plain CNN in equal wall-clock, on two CPU cores.

    python -m benchmarks.budgets choose --data DIR cifar10-5k      # size, stem, learning rate
    python -m benchmarks.budgets cell --data DIR cifar10-5k 1 0 auto
    python -m benchmarks.budgets list                              # the cells, one to a line
    python -m benchmarks.budgets table

DIR holds photos10/ and imagenette10/ (folders of images), cifar10/ and cifar100/ (train.npz and
test.npz). A cell is a dataset, minutes, a seed and what is trained: auto, resnet10t or resnet18
(benchmarks/plain_cnn.py). What is done already is not done again. Seed s of photos10 is fold s of
five. The CNN's size, stem and learning rate are chosen once per dataset, in one minute each with
resnet10t, on a tenth of the training images. Keep the cores free of everything else.
"""

import argparse
import csv
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results" / "budgets.jsonl"
PHOTOS = ("photos10", "imagenette10")
DATASETS = (*PHOTOS, "cifar10", "cifar10-5k", "cifar100", "fashion-mini")
LONG = ("photos10", "imagenette10", "cifar10")
#: Options of the plain CNN that are tried; those of thumbnails keep their size.
LARGE = [["--size", str(size), "--lr", lr] for size in (64, 96, 128) for lr in ("1e-3", "3e-3")]
THUMBNAILS = [["--stem", stem, "--lr", lr] for stem in ("usual", "fine") for lr in ("1e-3", "3e-3")]


def cells():
    """Every cell: dataset, minutes, seed, what is trained."""
    for name in DATASETS:
        for seed in range(3):
            yield from ((name, 1, seed, arm) for arm in ("auto", "resnet10t"))
        yield from ((name, 3, 0, arm) for arm in ("auto", "resnet10t"))
        if name in LONG:
            yield from ((name, 8, 0, arm) for arm in ("auto", "resnet10t", "resnet18"))


def source(root, name, seed, folder):
    """Where the data of a cell lies; made where it has to be."""
    if name == "fashion-mini":
        return name
    if name == "photos10":
        return photos(Path(root) / name, seed % 5, folder)
    if name != "cifar10-5k":
        return str(Path(root) / name)
    made = Path(folder) / name
    made.mkdir()
    train, test = (np.load(Path(root) / "cifar10" / f"{split}.npz") for split in ("train", "test"))
    np.savez(made / "train.npz", images=train["images"][:5000], labels=train["labels"][:5000])
    np.savez(made / "test.npz", images=test["images"], labels=test["labels"])
    return str(made)


def photos(root, fold, folder):
    """A table of a folder of classes; every fifth image of each is tested."""
    path = Path(folder) / f"fold{fold}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        for kind in sorted(p for p in root.resolve().iterdir() if p.is_dir()):
            for number, image in enumerate(sorted(kind.iterdir())):
                split = "test" if number % 5 == fold else "train"
                writer.writerow([str(image), kind.name, split])
    return str(path)


def read():
    """All results so far."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def done(**wanted):
    """The result of a cell or a trial, if there is one."""
    matches = [r for r in read() if all(r.get(key) == value for key, value in wanted.items())]
    return matches[-1] if matches else None


def record(result):
    """Adds a result, in one write."""
    RESULTS.parent.mkdir(exist_ok=True)
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    result |= {"cpu": cpu, "cores": len(os.sched_getaffinity(0))}
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result), flush=True)


def plain(data, options):
    """What the plain CNN printed."""
    command = [sys.executable, "-m", "benchmarks.plain_cnn", data, *options]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def auto(data, minutes, seed, folder):
    """The same numbers of our own command."""
    command = [sys.executable, "-m", "smallvit", "train", data, "--minutes", str(minutes)]
    command += ["--seed", str(seed), "--out", f"{folder}/run", "--allow", "leaks,conflicts"]
    began = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if ended.returncode:
        raise SystemExit(ended.stdout + ended.stderr)
    from smallvit.runs import Run

    run = Run.open(f"{folder}/run")
    evaluation, config = run.evaluation(), run.config
    return {
        "accuracy": evaluation.accuracy.value,
        "tested": evaluation.count,
        "images": (config.schedule.steps or 0) * config.loop.batch_size,
        "seconds": seconds,
        "model": config.model.name,
        "size": config.data.image_size,
    }


def choose(root, name):
    """Trials of the plain CNN on validation, and the best of them."""
    tried = {}
    for options in LARGE if name in PHOTOS else THUMBNAILS:
        text = " ".join(options)
        result = done(trial=name, options=text)
        if result is None:
            with tempfile.TemporaryDirectory() as folder:
                data = source(root, name, 0, folder)
                result = plain(data, ["--minutes", "1", "--val", *options])
            record({"trial": name, "options": text, **result})
        tried[text] = result["accuracy"]
    return max(tried, key=tried.__getitem__)


def chosen(name):
    """The best options of those that were tried."""
    trials = [r for r in read() if r.get("trial") == name]
    if len(trials) < len(LARGE if name in PHOTOS else THUMBNAILS):
        raise SystemExit(f"first: python -m benchmarks.budgets choose --data DIR {name}")
    return max(trials, key=lambda r: r["accuracy"])["options"].split()


def cell(root, name, minutes, seed, arm):
    """Runs one cell."""
    key = {"dataset": name, "minutes": minutes, "seed": seed, "arm": arm}
    if done(**key):
        print(f"done already: {key}")
        return
    with tempfile.TemporaryDirectory() as folder:
        data = source(root, name, seed, folder)
        if arm == "auto":
            result = auto(data, minutes, seed, folder)
        else:
            options = ["--minutes", str(minutes), "--seed", str(seed), "--model", arm]
            result = plain(data, [*options, *chosen(name)])
            result["options"] = " ".join(chosen(name))
    record({**key, **result})


def interval(results):
    """Half of a 95 % interval of a mean accuracy, in points: by images, and by seeds if larger."""
    values = [r["accuracy"] for r in results]
    mean = statistics.mean(values)
    by_images = math.sqrt(mean * (1 - mean) / sum(r["tested"] for r in results))
    by_seeds = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return 196 * max(by_images, by_seeds)


def table():
    """A row for each dataset and time."""
    print("| dataset | minutes | seeds | auto | resnet10t | resnet18 | ahead by | model, pixels |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    gains, results = [], read()
    for name, minutes in dict.fromkeys((name, minutes) for name, minutes, _, _ in cells()):
        arms = {
            arm: [
                r
                for r in results
                if (r.get("dataset"), r.get("minutes"), r.get("arm")) == (name, minutes, arm)
            ]
            for arm in ("auto", "resnet10t", "resnet18")
        }
        if not arms["auto"] or not arms["resnet10t"]:
            continue
        means = {
            arm: 100 * statistics.mean(r["accuracy"] for r in found)
            for arm, found in arms.items()
            if found
        }
        texts = [
            f"{means[arm]:.1f} ± {interval(arms[arm]):.1f}" if arm in means else "" for arm in arms
        ]
        gain = means["auto"] - max(v for arm, v in means.items() if arm != "auto")
        gains.append(gain)
        last = arms["auto"][-1]
        print(
            f"| {name} | {minutes} | {len(arms['auto'])} | {' | '.join(texts)} | {gain:+.1f} | "
            f"{last['model']}, {last['size']} |"
        )
    if gains:
        late = max(
            r["seconds"] / r["minutes"] / 60 for r in results if r.get("arm") and "seconds" in r
        )
        print(f"\nMean {statistics.mean(gains):+.1f}; the latest end took {late:.1%} of its time.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["choose", "cell", "list", "table"])
    parser.add_argument("cell", nargs="*", help="dataset, minutes, seed, what is trained")
    parser.add_argument("--data", default="data")
    args = parser.parse_intermixed_args()
    if args.what == "choose":
        print(choose(args.data, args.cell[0]))
    elif args.what == "cell":
        name, minutes, seed, arm = args.cell
        cell(args.data, name, int(minutes), int(seed), arm)
    elif args.what == "list":
        for parts in cells():
            print(*parts)
    else:
        table()


if __name__ == "__main__":
    main()
