"""Exported graphs beside eager PyTorch: how fast, and whether they say the same.

    OMP_NUM_THREADS=2 python -m benchmarks.inference [--json out.json]
    python -m benchmarks.inference --agreement PHOTOS --count 200
    OMP_NUM_THREADS=2 python -m benchmarks.inference --peers [--json out.json]

Everything takes decoded images of 240 × 320 pixels, so resizing and normalising are part of the
time. Rounds of all three alternate in one process; latency is the median over all rounds, the rate
that of the best one. With --agreement nothing is timed: each family, untrained, looks at photos of
a folder of class folders in their own sizes, and answers are compared with eager and with what
`evaluate` computes from the cache. With --peers forward passes are timed beside those of the same
models of vit-pytorch and timm at batch 64, see `benchmarks/peers.py`.
"""

import argparse
import io
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.machine import machine
from benchmarks.peers import compare
from smallvit.data import Dataset, load_data, read_image
from smallvit.evaluation import logits_of
from smallvit.formats import Shipped
from smallvit.formats.onnx import onnx_bytes
from smallvit.formats.shipped import traced
from smallvit.inference import Card
from smallvit.models import create_model
from smallvit.models.names import find_variant

MEAN, STD = (0.48, 0.45, 0.40), (0.26, 0.25, 0.27)
TIMED = ["cct_2_3x2", "vit_9_p4+spt+lsa", "swin_tiny_p2", "cct_14_7x2"]
FAMILIES = [
    *("vit_9_p4", "vit_lite_7_p4", "compact_vit_7_p4", "cct_7_3x1", "cait_24_p4"),
    *("pit_tiny_p2", "swin_tiny_p2", "t2t_12", "t2t_14", "cvt_13"),
]
Answer = Callable[[np.ndarray], np.ndarray]


def ship(name: str) -> Shipped:
    """An untrained model whose answers differ from image to image."""
    torch.manual_seed(0)
    size = find_variant(name).image_size
    model = create_model(name, num_classes=10, image_size=size)
    torch.nn.init.normal_(model.head.weight)
    card = Card(
        classes=tuple("abcdefghij"),
        image_size=(size, size),
        channels=3,
        fit="letterbox",
        mean=MEAN,
        std=STD,
        versions={"smallvit": "benchmark", "torch": torch.__version__},
    )
    shipped = Shipped(model, card).eval()
    shipped.card = card
    return shipped


def answers(shipped: Shipped) -> dict[str, Answer]:
    """Eager, pt2 and ONNX as functions of images to logits."""
    import onnxruntime

    memory = io.BytesIO()
    torch.export.save(traced(shipped), memory)
    memory.seek(0)
    module = torch.export.load(memory).module()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(
        onnx_bytes(shipped, shipped.card), options, providers=["CPUExecutionProvider"]
    )

    def torchs(call: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Answer:
        def answer(images: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                return call(torch.from_numpy(images))[0].numpy()

        return answer

    return {
        "eager": torchs(shipped),
        "pt2": torchs(module),
        "ONNX": lambda images: session.run(["logits"], {"images": images})[0],
    }


def seconds(answer: Answer, images: np.ndarray) -> float:
    started = time.perf_counter()
    answer(images)
    return time.perf_counter() - started


def timing(names: list[str], rounds: int, path: str) -> None:
    results: dict[str, dict[str, float]] = {}
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (32, 240, 320, 3), np.uint8)
    print(f"{torch.get_num_threads()} threads, {os.cpu_count()} cores, torch {torch.__version__}")
    print("| model | | latency, batch 1 (ms) | images/s, batch 32 |\n|---|---|--:|--:|")
    for name in names:
        ways = answers(ship(name))
        single: dict[str, list[float]] = {way: [] for way in ways}
        many: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds + 1):
            for way, answer in ways.items():
                times = [seconds(answer, images[:1]) for _ in range(10)]
                batch = seconds(answer, images)
                if number:  # the first round warms up
                    single[way] += times
                    many[way].append(batch)
        for way in ways:
            latency, rate = 1e3 * statistics.median(single[way]), 32 / statistics.median(many[way])
            results[f"{name} {way}"] = {"latency_ms": latency, "images_per_second": rate}
            print(f"| {name} | {way} | {latency:.1f} | {rate:,.0f} |", flush=True)
    if path:
        Path(path).write_text(json.dumps({**machine(), "results": results}, indent=1) + "\n")


def agreement(names: list[str], photos: Path, count: int) -> None:
    print(
        "| model | largest logit | pt2 − eager | ONNX − eager | first class as cached | classes |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    for name in names:
        shipped = ship(name)
        ways = answers(shipped)
        data: Dataset = load_data(photos, image_size=shipped.size, val=0.0, test=0.0)
        places = np.linspace(0, len(data.split("train")) - 1, count).astype(int)
        files = [photos / data.split("train").names[place] for place in places]
        pixels = data.pixels("train")[places]
        logits = logits_of(shipped.model, pixels, mean=MEAN, std=STD, batch_size=32)
        bias = logits.mean(0)  # taken off, so that no class of an untrained model wins everywhere
        cached = (logits - bias).argmax(1)
        found = {
            way: np.concatenate([answer(_colour(read_image(file))[None]) for file in files])
            for way, answer in ways.items()
        }
        eager = found["eager"]
        apart = [f"{np.abs(found[way] - eager).max():.1e}" for way in ("pt2", "ONNX")]
        first = [((found[way] - bias).argmax(1) == cached).mean() for way in ("pt2", "ONNX")]
        cells = [name, f"{np.abs(eager).max():.1f}", *apart, f"{100 * min(first):.1f} %"]
        cells.append(str(len(set(cached))))
        print(f"| {' | '.join(cells)} |", flush=True)


def _colour(image: np.ndarray) -> np.ndarray:
    return np.array(image) if image.shape[2] == 3 else np.repeat(image, 3, axis=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--agreement", type=Path, metavar="PHOTOS")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--precisions", default="fp32,bf16", help="of --peers")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    if arguments.peers:
        chosen = {"models": arguments.models, "precisions": arguments.precisions}
        compare("inference", **chosen, path=arguments.json)
        return
    if arguments.agreement:
        agreement(arguments.models or FAMILIES, arguments.agreement, arguments.count)
    else:
        timing(arguments.models or TIMED, arguments.rounds, arguments.json)


if __name__ == "__main__":
    main()
