"""The script that everybody writes first: a plain CNN, trained for a fixed time. See budgets.py.

    python -m benchmarks.plain_cnn DATA --minutes 1 [--model resnet10t] [--size 64] [--lr 3e-3]

timm's network, crop and flip, AdamW, cosine, label smoothing 0.1, bf16 where the CPU has it,
channels-last, all training images. The time counts from the start of Python to the result. Images
are read by smallvit, from its cache if they are there. `--val` trains on nine tenths and tests on
the last tenth of the training images, to choose `--size`, `--stem` and `--lr`.
"""

# ruff: noqa: E402 (the clock starts before the imports)
import time

BEGAN = time.monotonic()

import argparse
import json
import math

import timm
import torch
import torch.nn.functional as F

from smallvit.data import load_data
from smallvit.devices import choose_device, prefers_bf16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--model", default="resnet10t")
    parser.add_argument("--size", type=int)
    parser.add_argument("--stem", choices=["usual", "fine"], default="usual")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--val", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = choose_device("auto")
    dataset = load_data(args.data, image_size=args.size, val=0.1 if args.val else 0)
    tested = "val" if args.val else "test"
    (x, y), (tx, ty) = (
        (torch.from_numpy(dataset.pixels(split)[:].copy()), torch.from_numpy(dataset.labels(split)))
        for split in ("train", tested)
    )
    mean, std = (torch.tensor(v, device=device).view(1, -1, 1, 1) for v in dataset.statistics)
    side = max(dataset.image_size)
    batch, pad = 128 if side <= 40 else 64, side // 8

    model = timm.create_model(
        args.model, num_classes=len(dataset.classes), in_chans=dataset.channels
    )
    if args.stem == "fine":  # no stride and no pool before the first block, as is usual for CIFAR
        first = next(m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
        first.stride, model.maxpool = (1, 1), torch.nn.Identity()
    model = model.to(device, memory_format=torch.channels_last)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    )

    def forward(images):
        images = images.to(device).float().div(255)
        images = images.sub(mean).div(std).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=prefers_bf16(device)):
            return model(images).float()

    def test():
        model.eval()
        with torch.inference_mode():
            hits = sum(
                (forward(tx[i : i + 256]).argmax(1).cpu() == ty[i : i + 256]).sum().item()
                for i in range(0, len(tx), 256)
            )
        model.train()
        return hits / len(tx)

    model.eval()
    with torch.inference_mode():
        forward(tx[:256])
        began = time.monotonic()
        forward(tx[:256])
    per_image = (time.monotonic() - began) / min(256, len(tx))
    model.train()
    started = time.monotonic()
    until = BEGAN + 60 * args.minutes - 1.1 * per_image * len(tx) - 0.5
    seen, order = 0, torch.randperm(len(x))
    while (now := time.monotonic()) < until:
        part = (now - started) / (until - started)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(part / 0.05, 0.5 + 0.5 * math.cos(math.pi * part))
        if seen % len(x) + batch > len(x):
            order, seen = torch.randperm(len(x)), -(-seen // len(x)) * len(x)
        index = order[seen % len(x) :][:batch]
        seen += batch
        images = x[index]
        images = F.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1)
        top, left = torch.randint(0, 2 * pad + 1, (2, len(images), 1, 1))
        rows, columns = top + torch.arange(side)[:, None], left + torch.arange(side)
        images = images[torch.arange(len(images))[:, None, None], rows, columns]
        flipped = torch.rand(len(images)) < 0.5
        images[flipped] = images[flipped].flip(2)
        images = images.permute(0, 3, 1, 2)
        loss = F.cross_entropy(forward(images), y[index].to(device), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = test()
    took = time.monotonic() - BEGAN
    print(json.dumps({"accuracy": accuracy, "tested": len(tx), "images": seen, "seconds": took}))


if __name__ == "__main__":
    main()
