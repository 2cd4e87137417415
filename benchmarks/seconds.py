"""CIFAR-10 to 94, 95 and 96 % with a transformer: how many seconds of steps that takes on a GPU.

    python -m benchmarks.seconds DATA [--cases 94 95 96] [--seeds 5] [--held-out] [--json out.json]

DATA holds train.npz and test.npz. A case is a model, passes over the training images and what is
set beside `auto`'s choice: one of those named in CASES, or the same written out, as in
"hct_m_p4 18 augment.padding=2". It trains on all 50,000 images and is tested once, after the last
step. With --held-out a tenth of them is kept back and tested instead: so cases are chosen.

*steps* is seconds from the end of the first step to the end of the last, as the run's log has them;
*rest* is everything else of the call: audit, building, compiling, the first step, the test.
Trainings follow each other in one process, so only the first compiles from nothing.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import yaml

import smallvit
from smallvit.evaluation import logits_of

#: More convolutions than hct2_xl_p4 has by itself, and the whole step compiled.
_DEEPER = (
    "loop.regional=false loop.batch_size=1024 optim.muon_lr=0.02 optim.muon_decay=1 "
    "model.options.merge_residuals=1 model.options.activation=gelu augment.policy=none "
    "augment.mixup=0"
)
_ERASED = "augment.erasing=0.5 augment.erasing_area=[0.1,0.2]"
CASES = {
    "94": f"hct2_xl_p4 19 {_DEEPER} augment.cutmix=0 augment.padding=2",
    "95": f"hct2_xl_p4 43 {_DEEPER} augment.cutmix=0 augment.padding=2 {_ERASED}",
    "96": f"hct2_xl_p4 99 {_DEEPER} augment.cutmix=1.0 augment.mix_probability=0.5 "
    f"augment.padding=4 {_ERASED}",
}


def changes(settings, held_out):
    """What is set, nested as a config file has it."""
    whole = {"data": {"allow": ["leaks", "conflicts"], **({} if held_out else {"val": 0})}}
    for text in settings:
        path, _, value = text.partition("=")
        *rooms, name = path.split(".")
        inner = whole
        for room in rooms:
            inner = inner.setdefault(room, {})
        inner[name] = yaml.safe_load(value)
    return whole


def accuracy(run, dataset, held_out, flip):
    """Of the images that are tested."""
    split, card = "val" if held_out else "test", run.card
    pixels, labels = dataset.pixels(split), dataset.labels(split)
    logits = logits_of(run.model(), pixels, mean=card.mean, std=card.std, device="auto", flip=flip)
    return float((logits.argmax(1) == labels).mean())


def train(data, case, seed, held_out):
    """One training: seconds, and accuracy with and without the mirror image of each."""
    model, epochs, *settings = CASES.get(case, case).split()
    began = time.perf_counter()
    plan = smallvit.plan(
        data, model=model, epochs=float(epochs), seed=seed, changes=changes(settings, held_out)
    )
    with tempfile.TemporaryDirectory() as folder:
        run = smallvit.train(
            plan.config, out=f"{folder}/run", dataset=plan.dataset, audited=plan.audit, shown=False
        )
        whole = time.perf_counter() - began
        log = [
            json.loads(line) for line in Path(f"{folder}/run/log.jsonl").read_text().splitlines()
        ]
        accuracies = [accuracy(run, plan.dataset, held_out, flip) for flip in (False, True)]
    steps = sum(line["seconds"] for line in log if line["kind"] == "train")
    others = sum(line.get("seconds", 0) for line in log if line["kind"] != "train")
    return {
        "case": case,
        "settings": CASES.get(case, case),
        "seed": seed,
        "held_out": held_out,
        "accuracy": accuracies[0],
        "flip_averaged": accuracies[1],
        "steps": round(steps, 2),
        "rest": round(whole - steps - others, 2),
        "images": max(line["images"] for line in log if line["kind"] == "train"),
    }


def table(results):
    """A row for each case: means over seeds, and the spread of the accuracies."""
    print("| case | seeds | accuracy | flip averaged | seconds of steps | rest | images seen |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    results = sorted(results, key=lambda r: (r["case"], r["seed"]))
    for case in dict.fromkeys(r["case"] for r in results):
        rows = [r for r in results if r["case"] == case]
        texts = []
        for key in ("accuracy", "flip_averaged"):
            values = [100 * r[key] for r in rows]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            texts.append(f"{statistics.mean(values):.2f}{spread}")
        steps = statistics.mean(r["steps"] for r in rows)
        rest = f"{min(r['rest'] for r in rows):.0f} to {max(r['rest'] for r in rows):.0f}"
        name = (
            rows[0]["settings"] if case == rows[0]["settings"] else f"{case}: {rows[0]['settings']}"
        )
        print(
            f"| {name} | {len(rows)} | {' | '.join(texts)} | {steps:.1f} | {rest} | "
            f"{rows[0]['images']:,} |"
        )


def kept(path, facts):
    """The results of an earlier call, which are not repeated."""
    if not path or not Path(path).exists():
        return []
    earlier = json.loads(Path(path).read_text())
    if {name: earlier.get(name) for name in facts} != facts:
        raise SystemExit(f"{path} is of {earlier.get('device')}, torch {earlier.get('torch')}")
    return earlier["results"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--held-out", action="store_true", help="test a tenth of what is trained on"
    )
    parser.add_argument(
        "--json", help="write all results here, after each training; those it has are not repeated"
    )
    args = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    facts = {"device": device, "torch": torch.__version__}
    results = kept(args.json, facts)
    done = {(r["settings"], r["seed"], r["held_out"]) for r in results}
    for case in args.cases:
        for seed in range(args.seeds):
            if (CASES.get(case, case), seed, args.held_out) in done:
                continue
            results.append(train(args.data, case, seed, args.held_out))
            print(json.dumps(results[-1]), flush=True)
            if args.json:
                Path(args.json).write_text(json.dumps({**facts, "results": results}, indent=1))
    print(f"\n{device}, torch {torch.__version__}\n")
    table(results)


if __name__ == "__main__":
    main()
