"""Whatever is handed to a public function, mistakes end in a sentence of ours.

One table: for each function a call that works, and for its arguments values that cannot work. Each
ends in a ValueError, TypeError or OSError that this package raises itself, with a sentence; what
Python or PyTorch would say is no answer.
"""

import dataclasses
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import smallvit
from smallvit.augment import PRESETS, Augmentation, AugmentConfig
from smallvit.data import Loader, fit_image, preview, read_image, to_channels
from smallvit.evaluation import fit_temperature, logits_of, measure
from smallvit.experiments import (
    ablate_set,
    begin,
    compare_set,
    conduct,
    curve_set,
    read_outcomes,
    reproduce_set,
)
from smallvit.explaining.overlays import overlay
from smallvit.inference import Card, Predictor, write_rows
from smallvit.models.build import make_model
from smallvit.server import Limits
from smallvit.transfer.start import start_from
from smallvit.watching import watch
from tests.untrained import photo, untrained

pytestmark = pytest.mark.compiled  # wrong shapes are handed over on purpose

PACKAGE = str(Path(smallvit.__file__).parent)
HUGE = 10**12
NAN, INFINITE = float("nan"), float("inf")
NO_NAMES = (None, 3, 2.5, b"x", [], {}, object())
NO_PATHS = (None, 3, 2.5, [], {}, object(), "", "no\0name")
NO_COUNTS = (None, -1, 0, 2.5, "3", NAN, [], object(), HUGE)
NO_NUMBERS = (None, "x", [], NAN, object())
DIGITS = {"data": {"source": "fashion-mini"}, "schedule": {"epochs": 1}}
NO_TENSORS = (None, "x", 3, [[1.0]], np.zeros((1, 3, 32, 32), np.float32), object())


class Things:
    """What the calls that work are made of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = untrained(folder / "run").folder
        self.predictor = Predictor.open(self.run, "cpu")
        self.model = smallvit.create_model(
            "vit_9_p4", num_classes=3, image_size=16, dim=16, num_heads=2, depth=1
        ).eval()
        self.images = torch.zeros(2, 3, 16, 16)
        self.features = self.model.forward_features(self.images)
        self.dataset = smallvit.load_data("fashion-mini")
        self.evaluation = measure(np.eye(3), np.arange(3), ["a", "b", "c"], split="test")
        photo(1).save(folder / "a.png")
        self.image = folder / "a.png"


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Things]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("misuse")
        patch.chdir(folder)
        patch.setenv("SMALLVIT_CACHE", str(folder / "cache"))
        yield Things(folder)


Call = Callable[..., object]
Wrong = dict[str, tuple[Any, ...]]


def config(**changes: Any) -> object:
    return smallvit.RunConfig.from_dict(changes)


def augmentation(things: Things, **changes: Any) -> Augmentation:
    arguments: dict[str, Any] = {
        "config": PRESETS["spt_cifar"],
        "image_size": (16, 16),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.2, 0.2, 0.2),
        "num_classes": 3,
    }
    return Augmentation(**{**arguments, **changes})


def augmented(things: Things, **changes: Any) -> object:
    arguments = {
        "images": torch.zeros(8, 3, 16, 16, dtype=torch.uint8),
        "labels": torch.zeros(8, dtype=torch.int64),
        "step": torch.tensor(0),
        "positions": torch.arange(8),
    }
    return augmentation(things)(**{**arguments, **changes})


def loader(things: Things, **changes: Any) -> Loader:
    arguments = {"pixels": np.zeros((9, 3, 4, 4), np.uint8), "labels": np.zeros(9, np.int64)}
    return Loader(**{**arguments, "batch_size": 3, **changes})


def card(things: Things, **changes: Any) -> Card:
    return dataclasses.replace(things.predictor.card, **changes)


def using(function: Callable[..., object], **arguments: Any) -> Call:
    """A call with these arguments, some of which may be attributes of `Things`."""

    def call(things: Things, **changes: Any) -> object:
        found = {
            name: getattr(things, value[1:]) if str(value)[:1] == "@" else value
            for name, value in arguments.items()
        }
        return function(**{**found, **changes})

    return call


TABLE: dict[str, tuple[Call, Wrong]] = {
    "create_model": (
        using(smallvit.create_model, name="cct_2_3x2", num_classes=3, image_size=32),
        {
            "name": (*NO_NAMES, "", "x", "cct_2_3x2+", "+spt", "vit_9_p4+lsa+spt"),
            "num_classes": (None, -1, 2.5, "3", NAN, [], HUGE, True),
            "image_size": (*NO_COUNTS, (1,), (1, 2, 3), (32, -1), ("a", "b"), 31.5, np.zeros(3)),
            "in_channels": (*NO_COUNTS, True),
            "drop_path": (None, -1, 1, "x", NAN, []),
            "dim": NO_COUNTS,
            "depth": NO_COUNTS,
            "num_heads": (*NO_COUNTS, 7),
            "position": (None, 3, "x", []),
            "nothing": (1,),
        },
    ),
    "make_model": (
        using(make_model, name="resnet18", num_classes=3, image_size=32),
        {
            "name": (*NO_NAMES, "", "x", "resnet18+spt", "timm/", "timm/x"),
            "num_classes": (None, -1, 2.5, "3", HUGE),
            "image_size": NO_COUNTS,
            "in_channels": NO_COUNTS,
            "options": ([1], 3, "x", {"nothing": 1}, {3: 4}, {"num_classes": 3}, {"width": -1}),
        },
    ),
    "list_models": (using(smallvit.list_models, pattern="*"), {"pattern": (None, 3, [], b"x")}),
    "model": (
        lambda things, images: things.model(images),
        {
            "images": (
                *NO_TENSORS,
                torch.zeros(1, 3, 16, 16, dtype=torch.uint8),
                torch.zeros(1, 3, 16, 16, dtype=torch.int64),
                torch.zeros(3, 16, 16),
                torch.zeros(1, 1, 16, 16),
                torch.zeros(1, 3, 16, 20),
                torch.zeros(1, 3, 0, 0),
            )
        },
    ),
    "resized": (
        lambda things, image_size: things.model.resized(image_size),
        {"image_size": (*NO_COUNTS, 17)},
    ),
    "localize": (
        using(smallvit.localize, model="@model"),
        {"model": (None, 3, "x", torch.nn.Linear(2, 2)), "start": (None, "x", 3)},
    ),
    "load_reference": (
        using(smallvit.load_reference, source={}, model="vit_9_p4", image_size=32),
        {
            "source": (None, 3, [], {}, {"a": 1}, {1: torch.zeros(1)}, "", "gone.pth", "a.png"),
            "model": (*NO_NAMES, "", "x"),
        },
    ),
    "start_from": (
        using(start_from, source="@run", num_classes=3, image_size=32, in_channels=3),
        {
            "source": (*NO_PATHS, "gone.pth", "vit_9_p4"),
            "name": (3, [], "x", "+x", "vit_9_p4"),
            "num_classes": (None, -1, "3", HUGE),
            "image_size": NO_COUNTS,
            "in_channels": NO_COUNTS,
        },
    ),
    "LSA": (
        using(smallvit.LSA, dim=16, num_heads=2),
        {"dim": (*NO_COUNTS, 15), "num_heads": (*NO_COUNTS, 3), "head_dim": (-1, 0, "x", HUGE)},
    ),
    "SPT": (
        using(smallvit.SPT, in_channels=3, dim=16, patch_size=4),
        {
            "in_channels": NO_COUNTS,
            "dim": NO_COUNTS,
            "patch_size": NO_COUNTS,
            "shift": (None, 0, -1, "x", NAN, INFINITE),
            "directions": (None, "x", 3, []),
        },
    ),
    "SeqPool": (using(smallvit.SeqPool, dim=16), {"dim": NO_COUNTS}),
    "DRLoc": (
        using(smallvit.DRLoc, dim=16, grid=(4, 4)),
        {
            "dim": NO_COUNTS,
            "grid": (None, 3, (), (1,), (1, 2, 3), (0, 4), (-1, 4), (2.5, 4), "ab", (HUGE, HUGE)),
            "mode": (None, "x", 3, []),
            "pairs": NO_COUNTS,
            "hidden": NO_COUNTS,
            "hidden_layers": NO_COUNTS,
        },
    ),
    "DRLoc of": (
        lambda things, features: smallvit.DRLoc(16, (4, 4))(features),
        {
            "features": (
                None,
                3,
                torch.zeros(2, 16, 16),
                smallvit.Features(torch.zeros(2, 9, 16), (3, 3), torch.zeros(2, 16)),
                smallvit.Features(torch.zeros(2, 9, 16), (4, 4), torch.zeros(2, 16)),
                smallvit.Features(torch.zeros(2, 16, 9), (4, 4), torch.zeros(2, 9)),
                smallvit.Features(torch.zeros(2, 16), (4, 4), torch.zeros(2, 9)),
            )
        },
    ),
    "explain": (
        using(smallvit.explain, model="@model", images="@images"),
        {
            "model": (None, 3, "x", torch.nn.Linear(2, 2)),
            "images": (
                *NO_TENSORS,
                torch.zeros(0, 3, 16, 16),
                torch.zeros(3, 16, 16),
                torch.zeros(2, 1, 16, 16),
                torch.zeros(2, 3, 16, 16, dtype=torch.uint8),
            ),
            "target": (-1, 3, "x", 2.5, [0], [0, 9], [None, 1], HUGE),
        },
    ),
    "overlay": (
        using(overlay, image=np.zeros((4, 4, 3), np.uint8), heat=np.zeros((2, 2))),
        {
            "image": (None, 3, np.zeros((4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)),
            "heat": (None, 3, np.zeros(3), np.zeros((0, 2)), np.full((2, 2), NAN)),
            "strength": (None, -1, 2, NAN, "x"),
        },
    ),
    "load_data": (
        using(smallvit.load_data, spec="fashion-mini"),
        {
            "spec": (*NO_PATHS, " ", "gone", "a.png", "fashion-mini:x", "fashion"),
            "image_size": ("x", 0, -1, (1,), (1, 2, 3), 2.5, HUGE),
            "fit": (None, "", "x", 3, []),
            "channels": ("x", 0, -1, 2.5, [], HUGE),
            "classes": ("ab", 3, [3, 4], ["a", "a"], ["Bag"], [""], object()),
            "val": ("x", -1, NAN, INFINITE, [], 1.0, 2.5),
            "test": ("x", -1, NAN, INFINITE, [], 1.0, 2.5),
            "seed": (None, "x", 2.5, []),
            "root": (3, [], object()),
        },
    ),
    "sized": (
        lambda things, **k: things.dataset.sized(**{"image_size": 16, **k}),
        {"image_size": NO_COUNTS, "fit": ("x", 3, [])},
    ),
    "split": (
        lambda things, name: things.dataset.split(name),
        {"name": (None, "", "x", 3, [])},
    ),
    "pixels": (
        lambda things, split: things.dataset.pixels(split),
        {"split": (None, "", "x", 3, [])},
    ),
    "fold": (
        lambda things, **k: things.dataset.fold(**{"number": 0, "folds": 3, **k}),
        {
            "number": (None, -1, 3, "x", 0.5),
            "folds": (None, -1, 0, 1, "x", 2.5, HUGE),
            "val": (None, -1, 1, "x", NAN),
        },
    ),
    "audit": (
        using(smallvit.audit, dataset="@dataset"),
        {"dataset": (None, "x", 3, {}, object()), "patch_size": NO_COUNTS},
    ),
    "preview": (
        using(preview, dataset="@dataset", path="p.png"),
        {
            "dataset": (None, "x", 3),
            "path": (*NO_PATHS, "gone/p.png"),
            "split": (None, "x", 3),
            "augment": ("x", 3),
            "classes": (None, -1, 0, "x", 2.5),
            "columns": (None, -1, 0, "x", 2.5),
            "seed": (None, "x", 2.5),
        },
    ),
    "Loader": (
        loader,
        {
            "pixels": (None, "x", 3, [[1]], np.zeros(9, np.uint8), np.zeros((9, 3, 4, 4))),
            "labels": (None, "x", 3, np.zeros(8, np.int64), np.zeros(9), np.zeros((9, 1), int)),
            "batch_size": NO_COUNTS,
            "seed": (None, "x", 2.5),
            "rank": (None, -1, 1, "x", 0.5),
            "world_size": (None, -1, 0, 2, "x", 1.5),
            "device": (None, "", "x", 3, "cuda:99", "tpu"),
            "repeats": (None, -1, 0, 2, "x"),
            "ahead": (None, -1, "x", 2.5),
        },
    ),
    "batch": (
        lambda things, step: loader(things).batch(step),
        {"step": (None, -1, "x", 2.5)},
    ),
    "read_image": (
        using(read_image, source="a.png"),
        {"source": (None, 3, [], "", "gone.png", b"", b"x", "no\0name", object(), ".")},
    ),
    "to_channels": (
        using(to_channels, image=np.zeros((4, 4, 3), np.uint8), channels=1),
        {
            "image": (None, 3, "x", b"x", np.zeros(3), np.zeros((4, 4, 2), np.uint8)),
            "channels": (None, -1, 0, 2, "x", 2.5),
        },
    ),
    "fit_image": (
        using(fit_image, image=np.zeros((4, 4, 3), np.uint8), size=(8, 8)),
        {
            "image": (None, 3, "x", np.zeros(3), np.zeros((0, 4, 3), np.uint8)),
            "size": (None, (0, 4), (-1, 4), (1,), "ab", (HUGE, HUGE), (2.5, 4)),
            "fit": (None, "x", 3),
        },
    ),
    "AugmentConfig": (
        using(AugmentConfig),
        {
            "padding": (None, -1, "x", 2.5, HUGE),
            "resized_crop": (3, (0, 1), (0.5,), "ab", (NAN, 1), (0.9, 0.1)),
            "aspect": (None, 3, (0, 1), (2, 1), "ab"),
            "flip": (None, -1, 2, "x", NAN),
            "policy": (None, "x", 3, []),
            "magnitude": (None, -1, 11, "x", NAN),
            "magnitude_std": (None, -1, "x", NAN),
            "layers": (None, 0, -1, "x", 2.5, HUGE),
            "erasing": (None, -1, 2, "x", NAN),
            "erasing_area": (None, 3, (0, 1), (0.5,), "ab"),
            "erasing_aspect": (None, 0, 2, "x", NAN),
            "mixup": (None, -1, "x", NAN, INFINITE),
            "cutmix": (None, -1, "x", NAN, INFINITE),
            "mix_group": (None, 0, 1, 3, "x", 2.5),
            "smoothing": (None, -1, 2, "x", NAN),
        },
    ),
    "Augmentation": (
        augmentation,
        {
            "config": (None, "spt_cifar", {}, 3),
            "image_size": (None, 0, -1, "x", (1,), (0, 4), HUGE),
            "mean": (None, 3, "x", (), (0.5,), (NAN,) * 3, ("a",) * 3),
            "std": (None, 3, "x", (), (0.5,), (0, 1, 1), (NAN,) * 3, (-1, 1, 1)),
            "num_classes": NO_COUNTS,
            "seed": (None, "x", 2.5, 2**70),
        },
    ),
    "augmented": (
        augmented,
        {
            "images": (
                *(None, "x", 3, torch.zeros(8, 3, 16, 16)),
                torch.zeros(8, 1, 16, 16, dtype=torch.uint8),
                torch.zeros(3, 16, 16, dtype=torch.uint8),
            ),
            "labels": (None, 3, torch.zeros(8), torch.zeros(7, dtype=torch.int64)),
            "step": (None, 3, "x"),
            "positions": (None, 3, torch.arange(7), torch.arange(8) + 1),
        },
    ),
    "logits_of": (
        using(
            logits_of,
            model="@model",
            pixels=np.zeros((2, 3, 16, 16), np.uint8),
            mean=(0.5,) * 3,
            std=(0.5,) * 3,
        ),
        {
            "model": (None, "x", 3),
            "pixels": (None, "x", np.zeros((0, 3, 16, 16), np.uint8), np.zeros((2, 3, 16, 16))),
            "mean": (None, 3, (), (0.5,), ("a",) * 3),
            "std": (None, 3, (), (0.5,), (0,) * 3),
            "batch_size": NO_COUNTS[1:-1],
            "device": (None, "", "x", 3, "cuda:99"),
            "precision": ("x", 3, []),
        },
    ),
    "measure": (
        using(
            measure, logits=np.eye(3), labels=np.arange(3), classes=["a", "b", "c"], split="test"
        ),
        {
            "logits": (None, "x", np.zeros(3), np.zeros((3, 2)), np.full((3, 3), NAN), [[1.0]]),
            "labels": (None, "x", np.arange(2), np.arange(3) + 5, np.zeros(3), [0, 1, 2]),
            "classes": (None, 3, "abc", ["a"], [1, 2, 3]),
            "split": (None, 3),
            "temperature": (None, 0, -1, NAN, "x", INFINITE),
            "names": (3, "abc", ["a"]),
            "replicates": (None, -1, 0, "x", 2.5),
            "seed": (None, -1, "x", 2.5),
        },
    ),
    "fit_temperature": (
        using(fit_temperature, logits=np.eye(3), labels=np.arange(3)),
        {
            "logits": (None, "x", np.zeros(3), np.zeros((0, 3)), np.full((3, 3), NAN)),
            "labels": (None, "x", np.arange(2), np.arange(3) + 5, np.zeros(3)),
        },
    ),
    "Evaluation.from_json": (
        using(smallvit.Evaluation.from_json, text="{}"),
        {"text": (None, 3, "", "x", "[]", "{}", '{"format": 99}', "[" * 20_000, '{"format": "x"}')},
    ),
    "Predictor.open": (
        using(Predictor.open, source="@run", device="cpu"),
        {
            "source": (*NO_PATHS, "gone", "gone.onnx", "a.png", "."),
            "device": (None, 3, "", "x", "cuda:99", "cpu:x", []),
        },
    ),
    "Predictor.predict": (
        lambda things, **k: things.predictor.predict(**{"images": [], **k}),
        {"images": (None, 3, "x", photo(1), np.zeros((4, 4, 3), np.uint8), [None], ["a.png"])},
    ),
    "Predictor.logits_of_prepared": (
        lambda things, pixels: things.predictor.logits_of_prepared(pixels),
        {
            "pixels": (
                *(None, "x", 3, [], np.zeros((1, 32, 32, 3))),
                np.zeros((32, 32, 3), np.uint8),
                np.zeros((1, 16, 16, 3), np.uint8),
                np.zeros((1, 32, 32, 1), np.uint8),
            )
        },
    ),
    "predict": (
        using(smallvit.predict, source="@run", paths="a.png"),
        {
            "source": (*NO_PATHS, "gone", "a.png"),
            "paths": (None, 3, 2.5, [None], [3]),
            "top": NO_COUNTS[:-1],
            "batch_size": NO_COUNTS[1:-1],
            "device": (None, 3, "", "x"),
        },
    ),
    "write_rows": (
        using(write_rows, rows=[], path="out.csv", top=1),
        {
            "rows": (None, 3, [3], ["x"]),
            "path": (*NO_PATHS, "out.doc", "gone/out.csv", "."),
            "top": NO_COUNTS,
        },
    ),
    "evaluate": (
        using(smallvit.evaluate, run="@run", data="fashion-mini"),
        {
            "run": (*NO_PATHS, "gone", "a.png"),
            "data": ("", "gone", 3, [], "fashion-mini"),
            "split": (None, "x", 3),
            "device": (None, 3, "", "x"),
            "batch_size": NO_COUNTS[1:-1],
        },
    ),
    "export": (
        using(smallvit.export, run="@run", format="safetensors"),
        {
            "run": (*NO_PATHS, "gone", "a.png"),
            "out": (3, [], "", "x.doc", "no\0name.safetensors", object()),
            "format": (None, "", "x", 3, []),
        },
    ),
    "report": (
        using(smallvit.report, runs="@run"),
        {
            "runs": (*NO_PATHS, "gone", "a.png", [None], [[]], ["gone"]),
            "out": (3, [], "", "gone/x.html", ".", "no\0name", object()),
        },
    ),
    "serve": (
        using(smallvit.serve, source="@predictor", port=0),
        {
            "source": (*NO_PATHS, "gone", "a.png"),
            "host": (None, 3, "", "no host", "256.0.0.1", "a\0b"),
            "port": (None, -1, 65_536, "x", 2.5, HUGE),
            "allow_hosts": (None, 3, "x", [3], [""]),
            "limits": (3, "x", {}),
        },
    ),
    "watch": (
        using(watch, runs=".", port=-1),
        {
            "runs": (*NO_PATHS,),
            "port": (None, -1, 65_536, "x", 2.5, HUGE),
            "browser": (None, 3, "x"),
        },
    ),
    "Limits": (
        using(Limits),
        {
            "upload": NO_COUNTS[:-1],
            "pixels": NO_COUNTS,
            "queue": NO_COUNTS[:-1],
            "requests": NO_COUNTS[:-1],
            "seconds": (None, 0, -1, "x", NAN, INFINITE),
            "head_seconds": (None, 0, -1, "x", NAN, INFINITE),
        },
    ),
    "plan": (
        using(smallvit.plan, data="fashion-mini"),
        {
            "data": (None, "", 3, [], "gone", "a.png"),
            "recipe": ("x", 3, []),
            "model": ("x", 3, []),
            "epochs": ("x", -1, NAN, INFINITE, []),
            "minutes": ("x", -1, 0, NAN, INFINITE, []),
            "pretrained": (3, []),
            "drloc": ("x", -1, NAN, []),
            "seed": ("x", 2.5, []),
            "device": ("x", 3, ""),
            "changes": (3, "x", [1], {"x": 1}, {"data": 3}, {"optim": {"lr": "x"}}),
        },
    ),
    "compare_set": (
        using(compare_set, settings=DIGITS, models=["cct_2_3x2", "vit_9_p4"]),
        {
            "settings": (None, 3, "x", [1], {"x": 1}, {"data": 3}, {"data": {"source": "gone"}}),
            "models": (None, 3, "cct_2_3x2", [], [3], [""], ["x"], ["cct_2_3x2", "cct_2_3x2"]),
            "seeds": NO_COUNTS,
            "command": (None, 3),
        },
    ),
    "ablate_set": (
        using(ablate_set, settings=DIGITS),
        {
            "settings": (None, 3, "x", {"model": {"name": "resnet18"}}, {"model": 3}),
            "seeds": NO_COUNTS,
        },
    ),
    "curve_set": (
        using(curve_set, settings=DIGITS),
        {
            "settings": (None, 3, "x", {"x": 1}),
            "models": (None, 3, "vit_9_p4", [3], ["x"]),
            "shares": (None, 3, "x", ["x"], [0.5], [0, 0.5, 1], [NAN] * 3, [0.1, 0.2, 3]),
            "seeds": NO_COUNTS,
        },
    ),
    "reproduce_set": (
        using(reproduce_set, key="cifar100/sl-vit"),
        {"key": (None, 3, "", "x", []), "settings": (3, "x"), "seeds": NO_COUNTS},
    ),
    "begin": (
        using(begin, folder=Path("set"), wanted=None),
        {"folder": (None, 3, [], Path("gone"), Path("a.png")), "wanted": (3, "x", {})},
    ),
    "read_outcomes": (
        using(read_outcomes, folder=Path("set")),
        {"folder": (None, 3, "", [], Path("gone"), Path("a.png"))},
    ),
    "conduct": (
        using(conduct, folder=Path("gone")),
        {"folder": (None, 3, "", [], Path("gone"))},
    ),
    "RunConfig.from_dict": (
        using(smallvit.RunConfig.from_dict, data={}),
        {
            "data": (
                *(None, 3, "x", [], {"x": 1}, {3: 4}, {"data": 3}, {"seed": "x"}),
                {"optim": {"lr": -1}},
                {"optim": {"lr": NAN}},
                {"data": {"image_size": [1, 2, 3]}},
                {"data": {"allow": "x"}},
            )
        },
    ),
    "Card": (
        card,
        {
            "classes": (None, 3, "ab", [3]),
            "image_size": (None, 3, (1,), (0, 4), "ab", (1, 2, 3), (HUGE, 4)),
            "channels": (None, -1, "x", 2.5),
            "fit": (None, "x", 3),
            "mean": ((0.5,), None, 3, ("a", "b", "c")),
            "std": ((0.5,), None, 3, (0, 1, 1), (NAN,) * 3),
            "temperature": (0, -1, NAN, None, "x", INFINITE),
            "model": (None, 3, "x"),
        },
    ),
    "Card.from_json": (
        using(Card.from_json, text="{}", source="it"),
        {
            "text": (
                *(None, "", 3, "x", "[]", "{}", '{"format": 1}', '{"format": "x"}'),
                "[" * 20_000,
            )
        },
    ),
    "Card.prepare": (
        lambda things, image: things.predictor.card.prepare(image),
        {"image": (None, 3, "x", b"x", np.zeros(3), np.zeros((0, 4, 3), np.uint8))},
    ),
    "Run.open": (
        using(smallvit.Run.open, folder="@run"),
        {"folder": ("", "no\0name", "gone", "a.png", ".", *NO_PATHS[:-2])},
    ),
    "resume": (
        using(smallvit.resume, folder="@run", shown=False),
        {
            "folder": ("", "no\0name", "gone", "a.png", *NO_PATHS[:-2]),
            "config": (3, "x", {}),
        },
    ),
    "train": (
        using(smallvit.train, config=smallvit.RunConfig(), shown=False),
        {
            "config": (smallvit.RunConfig(), None, 3, "x", {}, []),
            "out": (3, [], object(), "", "no\0name"),
            "dataset": (3, "x", {}),
        },
    ),
}


def short(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"{kind}{tuple(value.shape)}{value.dtype}"
    return repr(value)[:40] if type(value).__module__ == "builtins" and kind != "object" else kind


def cases() -> Iterator[Any]:
    for name, (call, wrong) in TABLE.items():
        for argument, values in wrong.items():
            for value in values:
                title = f"{name}({argument}={short(value)})"
                yield pytest.param(call, {argument: value}, id=title)


def test_every_public_function_is_in_the_table() -> None:
    titles = {name.partition(".")[0].partition(" ")[0] for name in TABLE}
    assert set(smallvit.__all__) - titles == {"Features"}  # a tuple that checks nothing
    assert len(list(cases())) > 1_200


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "wrong"), list(cases()))
def test_misuse_ends_in_a_sentence(call: Call, wrong: dict[str, Any], things: Things) -> None:
    with pytest.raises((ValueError, TypeError, OSError)) as caught:
        call(things, **wrong)
    if isinstance(caught.value, OSError) and caught.value.errno:
        assert caught.value.filename  # the system's own: no such file, and which
        return
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert frame.filename.startswith(PACKAGE), f"{caught.value!r} comes from {frame.filename}"
    assert (frame.line or "").startswith("raise"), f"{caught.value!r} was nobody's sentence"
    assert len(str(caught.value).split()) >= 4
