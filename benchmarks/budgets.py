"""`smallvit train DATA --minutes M` beside a plain CNN in equal wall-clock, on two CPU cores.

    python -m benchmarks.budgets choose --data DIR cifar10-5k      # size, stem, learning rate
    python -m benchmarks.budgets cell --data DIR cifar10-5k 1 0 auto
    python -m benchmarks.budgets list                              # the cells, one to a line
    python -m benchmarks.budgets table

DIR holds photos10/ and imagenette10/ (folders of images), cifar10/ and cifar100/ (train.npz and
test.npz). A cell is a dataset, minutes, a seed and what is trained: auto, resnet10t or resnet18
(benchmarks/plain_cnn.py). What is done already is not done again. Seed s of photos10 is fold s of
five. The CNN's size or stem and then its learning rate are chosen once per dataset on this machine,
in one minute each with resnet10t, on a tenth of the training images. Keep the cores free of
everything else.
"""

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import commit, processor
from smallvit.evaluation.intervals import t_within

RESULTS = Path(__file__).parent / "results" / "budgets.jsonl"
PHOTOS = ("photos10", "imagenette10")
DATASETS = (*PHOTOS, "cifar10", "cifar10-5k", "cifar100", "fashion-mini")
LONG = ("photos10", "imagenette10", "cifar10")
#: What is tried of the plain CNN, all with the first learning rate and the best with the others;
#: thumbnails keep their size.
LARGE = [f"--size {size}" for size in (64, 96, 128)]
THUMBNAILS = [f"--stem {stem}" for stem in ("usual", "fine")]
RATES = ("3e-3", "1e-3", "1e-2")


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
    cores = len(os.sched_getaffinity(0))
    result |= {"cpu": processor(), "cores": cores, "commit": commit()}
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


def choose(name, trial):
    """The best options of the plain CNN; `trial` gives the accuracy of some on validation."""
    shapes = LARGE if name in PHOTOS else THUMBNAILS
    shape = max(shapes, key=lambda each: trial(f"{each} --lr {RATES[0]}"))
    return max((f"{shape} --lr {rate}" for rate in RATES), key=trial)


def tried(root, name):
    """A trial of some options, unless this machine has made it already."""

    def trial(options):
        result = done(trial=name, options=options, cpu=processor())
        if result is None:
            with tempfile.TemporaryDirectory() as folder:
                data = source(root, name, 0, folder)
                result = plain(data, ["--minutes", "1", "--val", *options.split()])
            record({"trial": name, "options": options, **result})
        return result["accuracy"]

    return trial


def chosen(name):
    """The best options of those that were tried."""

    def known(options):
        result = done(trial=name, options=options, cpu=processor())
        if result is None:
            raise SystemExit(f"first: python -m benchmarks.budgets choose --data DIR {name}")
        return result["accuracy"]

    return choose(name, known).split()


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
    mean, count = statistics.mean(values), len(values)
    # Seeds test the same images, but those of photos10 are folds.
    tested = sum(r["tested"] for r in results) / (
        1 if results[0]["dataset"] == "photos10" else count
    )
    by_images = 1.96 * math.sqrt(mean * (1 - mean) / tested)
    by_seeds = 0.0
    if count > 1:
        by_seeds = t_within(count - 1) * statistics.stdev(values) / math.sqrt(count)
    return 100 * max(by_images, by_seeds)


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
        if not arms["auto"] or not (arms["resnet10t"] or arms["resnet18"]):
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
        print(choose(args.cell[0], tried(args.data, args.cell[0])))
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
