"""What each part of HCT2 brings in equal minutes: the model as it is, and without one part.

    python -m benchmarks.parts DATA --minutes 1 --seed 0

Every arm is `smallvit train DATA --model hct2_s_p4 --minutes M` from start to tested result, one
after the other, each in a process of its own. To choose by it, let DATA's test images be training
images of the dataset that are held out. Keep the cores free of everything else.
"""

import argparse
import json
import subprocess
import sys
import tempfile

import smallvit
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


def train(arguments):
    """Trains one arm and prints its numbers."""
    take_away(arguments.arm)
    changes = {
        "model": {"options": ARMS[arguments.arm]},
        "data": {"allow": ["leaks", "conflicts"]},
    }
    options = {"minutes": arguments.minutes, "seed": arguments.seed, "device": arguments.device}
    config = smallvit.plan(arguments.data, model=arguments.model, changes=changes, **options).config
    with tempfile.TemporaryDirectory() as folder:
        run = smallvit.train(config, out=f"{folder}/run")
        evaluation = run.evaluation()
        result = {
            "arm": arguments.arm,
            "seed": arguments.seed,
            "accuracy": evaluation.accuracy.value,
            "tested": evaluation.count,
            "images": (run.config.schedule.steps or 0) * run.config.loop.batch_size,
            "parameters": run.info["parameters"],
        }
    print(json.dumps(result), flush=True)


def main():
    """Every arm, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="hct2_s_p4")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--arm", choices=ARMS)
    arguments = parser.parse_args()
    if arguments.arm:
        train(arguments)
        return
    print("| | accuracy | images seen | parameters |\n|---|--:|--:|--:|", flush=True)
    for arm in ARMS:
        command = [sys.executable, "-m", "benchmarks.parts", *sys.argv[1:], "--arm", arm]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        result = json.loads(output.splitlines()[-1])
        print(
            f"| {arm} | {result['accuracy']:.1%} | {result['images']:,} "
            f"| {result['parameters']:,} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
