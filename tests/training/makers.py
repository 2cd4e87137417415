"""Small images, small configs, and runs read back for comparison."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from smallvit.data import load_data
from smallvit.runs.changes import changes_of
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run
from smallvit.training.budget import make_loader
from smallvit.training.distributed import World
from smallvit.training.log import TIMED
from smallvit.training.objective import make_objective
from smallvit.training.start import build_model
from smallvit.training.step import Stepper

#: A transformer of 2 layers and 32 channels.
TINY = (
    "model.name=vit_lite_2_p4",
    "model.options.dim=32",
    "model.options.num_heads=2",
    "optim.lr=2e-3",
)
#: A hybrid instead, with batch norm, of 3 layers and up to 32 channels.
HYBRID = (
    "model.name=hct_xs_p4",
    *(f"model.options.{name}=16" for name in ("stem_dim", "narrow_dim", "merge_dim")),
)
#: Everything random at once.
RANDOM = (
    "augment.mixup=0.8",
    "augment.cutmix=1.0",
    "augment.mix_group=8",
    "augment.flip=0.5",
    "augment.padding=2",
    "augment.smoothing=0.1",
    "model.options.drop_path=0.2",
    "optim.clip=1.0",
)


def make_images(count: int, *, classes: int = 3, size: int = 16, seed: int = 0):
    """Noise with a colour that tells the class, and the classes in turn."""
    random = np.random.default_rng(seed)
    tints = np.random.default_rng(99).integers(0, 256, (classes, 1, 1, 3))
    coarse = random.integers(0, 256, (count, 4, 4, 3))
    images = coarse.repeat(size // 4, axis=1).repeat(size // 4, axis=2)
    labels = np.arange(count) % classes
    return (0.6 * images + 0.4 * tints[labels]).astype(np.uint8), labels


def arrays(
    path: Path,
    *,
    train: int = 64,
    val: int = 24,
    test: int = 24,
    classes: int = 3,
    size: int = 16,
    seed: int = 0,
) -> Path:
    """Such images in an .npz of given splits."""
    images, labels = make_images(train + val + test, classes=classes, size=size, seed=seed)
    split = ["train"] * train + ["val"] * val + ["test"] * test
    np.savez(path, images=images, labels=labels, split=np.array(split))
    return path


def folder_of_images(folder: Path, count: int = 30) -> Path:
    """Such images as files, in one folder per class."""
    images, labels = make_images(count)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / f"class {label}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


def tiny(source: Path | str, *assignments: str, steps: int = 6, batch: int = 32) -> RunConfig:
    """A config whose run takes a second."""
    fixed = [f"schedule.steps={steps}", f"loop.batch_size={batch}", "loop.device=cpu"]
    fixed.append("loop.precision=fp32")  # the same numbers on every CPU
    changes = changes_of([*TINY, *fixed, *assignments])
    changes.setdefault("data", {})["source"] = str(source)
    return RunConfig().changed(changes)


class Clock:
    """Shows the time it is set to; every reading takes `tick` seconds."""

    def __init__(self, now: float = 0.0, tick: float = 0.0) -> None:
        self.now, self.tick = now, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now

    def passes(self, patch, seconds) -> None:
        """Has every step of training take `seconds(step)` on this clock, and nothing else."""
        real = Stepper.__call__

        def call(stepper, batch, step, **named):
            real(stepper, batch, step, **named)
            self.now += seconds(step)

        patch.setattr(Stepper, "__call__", call)


def assemble(config: RunConfig):
    """Dataset, loader and stepper of a config, in one process on the CPU."""
    dataset, world = load_data(config.data.source), World(0, 1, torch.device("cpu"))
    model, _ = build_model(config, dataset)
    objective = make_objective(config, model, dataset, world)
    return dataset, make_loader(config, dataset, world), Stepper(config, objective, world)


def untimed(run: Run | Path) -> list[dict]:
    """The log without what no two runs share."""
    return [
        {key: value for key, value in line.items() if key not in TIMED}
        for line in Run.open(run).log()
    ]


def losses(run: Run | Path, kind: str = "train") -> list[float]:
    return [line["loss"] for line in Run.open(run).log() if line["kind"] == kind]


def weights(run: Run | Path, name: str = "weights") -> dict[str, torch.Tensor]:
    return load_file(Run.open(run).folder / f"{name}.safetensors")


def evaluation(run: Run) -> dict:
    return json.loads((run.folder / "evaluation.json").read_text())


def assert_same_run(ours: Run | Path, theirs: Run | Path) -> None:
    """Weights to the last bit, and logs but for the time."""
    ours, theirs = Run.open(ours), Run.open(theirs)
    files = ["weights.safetensors", "last.safetensors"]
    tested = [(run.folder / "evaluation.json").exists() for run in (ours, theirs)]
    assert tested[0] == tested[1], "evaluation.json"
    if tested[0]:  # a model that was trained on all images has none
        files.append("evaluation.json")
    for name in files:
        assert (ours.folder / name).read_bytes() == (theirs.folder / name).read_bytes(), name
    assert untimed(ours) == untimed(theirs), "log.jsonl"
    assert ours.info["best_step"] == theirs.info["best_step"], "best_step"
