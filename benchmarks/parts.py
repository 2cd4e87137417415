"""What each part of HCT2 brings in equal minutes: the model as it is, and without one part.

    python -m benchmarks.parts DATA --minutes 1 --seeds 3 --json FILE

Every arm is `smallvit train DATA --model hct2_s_p4 --minutes M` from start to tested result, one
after the other, each in a process of its own. What FILE has already is not done again. To choose by
it, let DATA's test images be training images of the dataset that are held out. Keep the cores free
of everything else.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import smallvit
from benchmarks.machine import machine
from smallvit.layers import MeanPool
from smallvit.models import hct
from smallvit.models.base import Backbone

#: Options of the model, by arm; three arms take away what is no option (see `take_away`).
ARMS = {
    "as it is": {},
    "without the mask": {"masked": False},
    "without the temperature": {"temperature": False},
    "without both (no LSA)": {"masked": False, "temperature": False},
    "without positions": {"position": "none"},
    "without the depthwise convolution": {},
    "mean instead of SeqPool": {},
    "without its block of attention": {},
    "with SPT": {"spt": True},
}


class _Mean(MeanPool):
    """The mean of all tokens, made as SeqPool is."""

    def __init__(self, dim: int) -> None:
        super().__init__()


def take_away(arm):
    """Changes the family for the rest of this process."""
    if arm == "mean instead of SeqPool":
        hct.SeqPool = _Mean
    if arm == "without its block of attention":
        hct.HCT._stack = lambda *_: hct.Stack()
    if arm == "without the depthwise convolution":
        make = Backbone.make_block
        hct.HCT.make_block = lambda self, *parts, grid: make(self, *parts)


def train(args):
    """Trains one arm and prints its numbers."""
    take_away(args.arm)
    changes = {
        "model": {"options": ARMS[args.arm]},
        "data": {"allow": ["leaks", "conflicts"]},
    }
    options = {"minutes": args.minutes, "seed": args.seed, "device": args.device}
    config = smallvit.plan(args.data, model=args.model, changes=changes, **options).config
    with tempfile.TemporaryDirectory() as folder:
        run = smallvit.train(config, out=f"{folder}/run")
        evaluation = run.evaluation()
        result = {
            "arm": args.arm,
            "seed": args.seed,
            "accuracy": evaluation.accuracy.value,
            "tested": evaluation.count,
            "images": (run.config.schedule.steps or 0) * run.config.loop.batch_size,
            "parameters": run.info["parameters"],
        }
    print(json.dumps(result), flush=True)


def table(results):
    """Means over the seeds, and the differences from the model as it is."""
    print("| | accuracy | points | images seen | parameters |\n|---|--:|--:|--:|--:|")
    whole = {r["seed"]: r["accuracy"] for r in results if r["arm"] == next(iter(ARMS))}
    for arm in ARMS:
        rows = [r for r in results if r["arm"] == arm and r["seed"] in whole]
        if not rows:
            continue
        values = [100 * r["accuracy"] for r in rows]
        gains = [100 * (r["accuracy"] - whole[r["seed"]]) for r in rows]
        spread, spread_of_gains = (
            f" ± {statistics.stdev(each):.1f}" if len(rows) > 1 else "" for each in (values, gains)
        )
        print(
            f"| {arm} | {statistics.mean(values):.1f}{spread} "
            f"| {statistics.mean(gains):+.1f}{spread_of_gains} "
            f"| {statistics.mean(r['images'] for r in rows):,.0f} | {rows[0]['parameters']:,} |"
        )


def main():
    """Every arm with every seed, or one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--model", default="hct2_s_p4")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, default=Path("parts.json"))
    parser.add_argument("--arm", choices=ARMS, help="this one alone, with --seed")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.arm:
        train(args)
        return
    about = {"data": Path(args.data).name, "minutes": args.minutes, "model": args.model}
    results = json.loads(args.json.read_text())["results"] if args.json.exists() else []
    done = {(r["arm"], r["seed"]) for r in results}
    for seed in range(args.seeds):
        for arm in ARMS:
            if (arm, seed) in done:
                continue
            command = [sys.executable, "-m", "benchmarks.parts", args.data, "--arm", arm]
            command += ["--seed", str(seed), "--minutes", str(args.minutes)]
            command += ["--model", args.model, "--device", args.device]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results.append(json.loads(output.splitlines()[-1]))
            print(json.dumps(results[-1]), flush=True)
            args.json.write_text(
                json.dumps({**about, **machine(), "results": results}, indent=1) + "\n"
            )
    table(results)


if __name__ == "__main__":
    main()
