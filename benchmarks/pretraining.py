"""A self-supervised start beside training from scratch, at equal numbers of images seen.

    python -m benchmarks.pretraining DATA [--limit 0.1] [--images 200000] [--share 0.5]
                                     [--seeds 3] [--model hct2_s_p4] [--set PATH=VALUE …]
                                     --out FOLDER [--json out.json]

Labels are those of --limit of the training images; the start learns from all of them without
labels. Scratch sees the labelled images --images times in all, one by one; the other arms spend
--share of these on the start and the rest on labelled images. A step without labels costs about as
much as one with them. Arms:

- scratch: what `auto` plans;
- begun: `train --pretrained RUN`, as it plans that.

Each run is an ordinary run folder in --out, so that a command that is repeated goes on. Nothing is
chosen on test images, which are seen once at the end of each run.
"""

import argparse
import json
import statistics
from pathlib import Path

from benchmarks.machine import machine
from smallvit.config_io import nested
from smallvit.recipes import plan
from smallvit.recipes.recipes import pretraining
from smallvit.runs import Run
from smallvit.runs.changes import changes_of, layered
from smallvit.training import resume, train

ARMS = ("scratch", "begun")


def finished(folder: Path, changes: dict) -> Run:
    """A run of these settings, done now or before."""
    if folder.exists():
        run = Run.open(folder)
        return run if run.finished else resume(folder, shown=False)
    planned = plan(changes=changes)
    return train(
        planned.config,
        out=folder,
        dataset=planned.dataset,
        audited=planned.audit,
        shown=False,
    )


def passes(images: float, count: int) -> dict:
    return nested("schedule.epochs", max(images / count, 0.01))


def cell(args: argparse.Namespace, seed: int) -> dict[str, float]:
    """Accuracy of every arm."""
    data = changes_of([f"data.source={args.data}", f"seed={seed}", *args.set])
    few = layered(data, changes_of([f"data.limit={args.limit}", f"data.limit_seed={seed}"]))
    fresh, out = nested("model.name", args.model), args.out / f"seed-{seed}"
    labelled, whole = (
        len(plan(changes=layered(which, fresh, passes(1, 1))).dataset.split("train"))
        for which in (few, data)
    )
    scratch = finished(out / "scratch", layered(few, fresh, passes(args.images, labelled)))
    unlabelled = layered(data, fresh, passes(args.share * args.images, whole))
    start = finished(out / "start", pretraining(unlabelled))
    rest = passes((1 - args.share) * args.images, labelled)
    begun = layered(few, rest, nested("model.pretrained", str(start.folder)))
    found = {"scratch": scratch, "begun": finished(out / "begun", begun)}
    accuracy = {arm: run.evaluation().accuracy.value for arm, run in found.items()}
    return {**accuracy, "labelled": labelled, "images": whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--limit", type=float, default=0.1)
    parser.add_argument("--images", type=float, default=200_000)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", default="hct2_s_p4")
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    cells = []
    for seed in range(args.seeds):
        cells.append(cell(args, seed))
        print(f"seed {seed}: {cells[-1]}", flush=True)
    print(
        f"| {args.model}, {cells[0]['labelled']:,} labels | accuracy | − scratch |\n|---|--:|--:|"
    )
    for arm in ARMS:
        values = [100 * c[arm] for c in cells]
        gains = [100 * (c[arm] - c["scratch"]) for c in cells]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        print(f"| {arm} | {statistics.mean(values):.1f}{spread} | {statistics.mean(gains):+.1f} |")
    if args.json:
        facts = {
            "data": Path(args.data).name,
            "model": args.model,
            "limit": args.limit,
            "images_seen": args.images,
            "share": args.share,
            "settings": args.set,
            **machine(),
        }
        Path(args.json).write_text(json.dumps({**facts, "seeds": cells}, indent=1) + "\n")


if __name__ == "__main__":
    main()
