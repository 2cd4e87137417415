"""Images a second of a training step (forward and backward), each add-on side by side.

    python benchmarks/step.py [--device cuda] [--batch 1024] [--compile] [--names vit_9_p4,…]

One process measures every variant in turns, several rounds, and prints medians: only the ratios
mean anything across machines.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

import smallvit
from smallvit.models.names import MODELS


def make_step(name, args):
    torch._dynamo.reset()
    size = args.size or MODELS[name.partition("+")[0]].image_size
    model = smallvit.create_model(name, num_classes=100, image_size=size).to(args.device)
    images = torch.randn(args.batch, 3, size, size, device=args.device)
    labels = torch.randint(100, (args.batch,), device=args.device)

    def loss():
        with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
            return F.cross_entropy(model(images).float(), labels)

    measured = torch.compile(loss) if args.compile else loss

    def step():
        model.zero_grad(set_to_none=True)
        measured().backward()

    return step


def seconds(step, args):
    if args.device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(args.steps):
        step()
    if args.device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / args.steps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", default="vit_9_p4,vit_9_p4+spt,vit_9_p4+lsa,vit_9_p4+spt+lsa")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=0, help="image size; 0 for the paper's")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()

    names = args.names.split(",")
    steps = {name: make_step(name, args) for name in names}
    times = {name: [] for name in names}
    for step in steps.values():
        step()
        step()
    for _ in range(args.rounds):
        for name, step in steps.items():
            times[name].append(seconds(step, args))
    first = statistics.median(times[names[0]])
    mode = "compiled" if args.compile else "eager"
    print(f"torch {torch.__version__}, {args.device}, batch {args.batch}, {mode}, bf16={args.bf16}")
    print(f"{'model':28} {'images/s':>10} {'time':>8}")
    for name in names:
        median = statistics.median(times[name])
        print(f"{name:28} {args.batch / median:10,.0f} {median / first:7.2f}×")


if __name__ == "__main__":
    main()
