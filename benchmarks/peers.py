"""Our models beside the same ones elsewhere: `train_step --peers` and `inference --peers`.

vit-pytorch has CCT, ViT and a ViT for small datasets, timm has ViT, Swin and PiT of these shapes;
its CaiT has another width of heads, and neither has the T2T of the paper. The sizes are the same;
parameters may differ by a norm, a bias or positions (the file has all counts). A
training step is forward, cross-entropy, backward and AdamW on a batch of ready images; ours is
also timed as `smallvit train` runs it, from bytes to new weights, unaugmented (*whole*). Inference
is the forward pass without gradients, in bf16 with the weights of all cast to it. Rounds of ours
and theirs alternate, so that what else runs on the machine meets all; ratios are medians of the
ratios of the rounds.
"""

import importlib.util
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import smallvit
from benchmarks.machine import machine

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLASSES, SIZE = 100, 32
OURS = ("ours", "whole")


def their_cct():
    from vit_pytorch.cct import CCT

    return CCT(
        img_size=SIZE,
        embedding_dim=256,
        n_conv_layers=1,
        kernel_size=3,
        stride=1,
        padding=1,
        num_layers=7,
        num_heads=4,
        mlp_ratio=2.0,
        num_classes=CLASSES,
        positional_embedding="learnable",
    )


def their_vit():
    from vit_pytorch import ViT

    return ViT(**_VIT)


def their_small_vit():
    from vit_pytorch.vit_for_small_dataset import ViT

    return ViT(**_VIT)


_VIT = {
    "image_size": SIZE,
    "patch_size": 4,
    "num_classes": CLASSES,
    "dim": 192,
    "depth": 9,
    "heads": 12,
    "dim_head": 16,
    "mlp_dim": 384,
}


_TIMM = {"img_size": SIZE, "num_classes": CLASSES, "mlp_ratio": 2.0, "drop_path_rate": 0.1}


def timm_vit():
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(patch_size=4, embed_dim=192, depth=9, num_heads=12, **_TIMM)


def timm_swin():
    from timm.models.swin_transformer import SwinTransformer

    stages = {"depths": (2, 6, 4), "num_heads": (3, 6, 12), "window_size": 4}
    return SwinTransformer(patch_size=2, embed_dim=96, **stages, **_TIMM)


def timm_pit():
    from timm.models.pit import PoolingVisionTransformer

    stem = {"patch_size": 2, "stride": 2, "stem_type": "plain"}
    stages = {"base_dims": (48, 48, 48), "depth": (2, 6, 4), "heads": (2, 4, 8)}
    return PoolingVisionTransformer(**stem, **stages, **_TIMM)


#: By our name: what makes the same model in another library, by the name of its module.
PEERS = {
    "cct_7_3x1": {"vit_pytorch": their_cct},
    "vit_9_p4": {"vit_pytorch": their_vit, "timm": timm_vit},
    "vit_9_p4+spt+lsa": {"vit_pytorch": their_small_vit},
    "swin_tiny_p2": {"timm": timm_swin},
    "pit_tiny_p2": {"timm": timm_pit},
}


def installed():
    """Which of the libraries are there; says which are not."""
    libraries = sorted({library for makers in PEERS.values() for library in makers})
    there = {name for name in libraries if importlib.util.find_spec(name)}
    for name in libraries:
        if name not in there:
            package = name.replace("_", "-")
            print(
                f"{package} is not installed (pip install {package}): nothing is compared with it"
            )
    return there


def autocast(precision):
    return torch.autocast(
        DEVICE.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False
    )


def training(model, batch, precision, compiled):
    """A function that takes one step."""
    model = model.to(DEVICE).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images = torch.randn(batch, 3, SIZE, SIZE, device=DEVICE)
    labels = torch.arange(batch, device=DEVICE) % CLASSES

    def loss():
        with autocast(precision):
            logits = model(images)
        return F.cross_entropy(logits.float(), labels)

    compute = torch.compile(loss, dynamic=False) if compiled else loss

    def step():
        optimiser.zero_grad(set_to_none=True)
        compute().backward()
        optimiser.step()

    return step


def inference(model, batch, precision, compiled, cast=False):
    """A function that answers once."""
    model = model.to(DEVICE).eval()
    images = torch.randn(batch, 3, SIZE, SIZE, device=DEVICE)
    if cast:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        model, images, precision = model.to(dtype), images.to(dtype), "fp32"
    compute = torch.compile(model, dynamic=False) if compiled else model

    def answer():
        with torch.inference_mode(), autocast(precision):
            return compute(images)

    return answer


def whole_step(name, batch, precision, compiled):
    """A function that takes one step as `smallvit train` does, unaugmented."""
    import numpy as np

    from smallvit.data import load_data
    from smallvit.runs.config import DataConfig, LoopConfig, ModelConfig, RunConfig
    from smallvit.training.budget import make_loader
    from smallvit.training.distributed import World
    from smallvit.training.objective import make_objective
    from smallvit.training.start import build_model
    from smallvit.training.step import Stepper

    source = Path(os.environ["SMALLVIT_CACHE"]) / "noise.npz"
    if not source.exists():
        pixels = np.random.default_rng(0).integers(0, 256, (1000, SIZE, SIZE, 3), dtype=np.uint8)
        np.savez(source, images=pixels, labels=np.arange(1000) % CLASSES)
    config = RunConfig(
        data=DataConfig(source=str(source), val=0),
        model=ModelConfig(name=name),
        loop=LoopConfig(batch_size=batch, precision=precision, compiled=compiled),
    )
    dataset, world = load_data(str(source), val=0), World(0, 1, DEVICE)
    model, _ = build_model(config, dataset)
    loader = make_loader(config, dataset, world)
    stepper = Stepper(config, make_objective(config, model, dataset, world), world)
    done = 0

    def step():
        nonlocal done
        stepper(loader.batch(done), done, lr=1e-4, mixed=False)
        done += 1

    return step


def timed(function, times):
    began = time.perf_counter()
    for _ in range(times):
        function()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def side_by_side(ways, rounds, seconds=1.0):
    """Median milliseconds of each way, and of each of ours the medians of theirs over it."""
    for function in ways.values():
        function()  # compiles
    times = max(1, round(seconds / timed(ways["ours"], 2)))
    taken = {label: [] for label in ways}
    for _ in range(rounds):
        for label, function in ways.items():
            taken[label].append(timed(function, times))
    ratios = {
        label: {
            peer: statistics.median(b / a for a, b in zip(taken[label], theirs, strict=True))
            for peer, theirs in taken.items()
            if peer not in OURS
        }
        for label in taken
        if label in OURS
    }
    ms = {label: 1e3 * statistics.median(mine) for label, mine in taken.items()}
    return {"ms": ms, "ratio": ratios}


def compare(kind, *, batch=64, rounds=5, models=None, precisions="fp32,bf16", path=""):
    """Prints and writes all rows of one kind, "train" or "inference"."""
    there = installed()
    if not there:
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SMALLVIT_CACHE"] = folder
        _compare(kind, batch, rounds, models or PEERS, precisions.split(","), there, path)


def _compare(kind, batch, rounds, models, precisions, there, path):
    results = {}
    print(
        f"{DEVICE.type}, {torch.get_num_threads()} threads, {os.cpu_count()} cores, torch "
        f"{torch.__version__}, batch {batch}, {rounds} rounds; load {os.getloadavg()[0]:.1f}"
    )
    print(f"| {kind} | | ways, ms | theirs ÷ ours |\n|---|---|---|---|")
    for name in models:
        makers = {library: make for library, make in PEERS[name].items() if library in there}
        for precision in precisions if makers else ():
            for compiled in (False, True):
                torch._dynamo.reset()
                torch.manual_seed(0)
                ours = smallvit.create_model(name, num_classes=CLASSES, image_size=SIZE)
                built = {"ours": ours} | {library: make() for library, make in makers.items()}
                args, ways = (batch, precision, compiled), {}
                for label, model in built.items():
                    if kind == "train":
                        ways[label] = training(model, *args)
                    else:
                        ways[label] = inference(model, *args, cast=precision == "bf16")
                if kind == "train":
                    ways["whole"] = whole_step(name, *args)
                counts = {
                    label: sum(p.numel() for p in model.parameters())
                    for label, model in built.items()
                }
                found = side_by_side(ways, rounds) | {"parameters": counts}
                row = f"{precision}, {'compiled' if compiled else 'eager'}"
                results[f"{name} {row}"] = found
                ms = ", ".join(f"{label} {value:.1f}" for label, value in found["ms"].items())
                ratio = ", ".join(
                    f"{peer} ÷ {label} {value:.2f}"
                    for label, values in found["ratio"].items()
                    for peer, value in values.items()
                )
                print(f"| {name} | {row} | {ms} | {ratio} |", flush=True)
    if path:
        facts = {**machine(), "batch": batch}
        Path(path).write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")
