"""Advice follows from the curves, and from how many images they were measured on."""

import json
from pathlib import Path

import pytest

from smallvit.reporting.advice import advise
from smallvit.runs import Run, RunConfig


def run_with(folder: Path, val, train, *, images=1_000, training=5_000):
    lines = []
    for step, (right, fitted) in enumerate(zip(val, train, strict=True), 1):
        lines.append({"kind": "train", "step": step, "loss": 1.0, "accuracy": fitted})
        lines.append({"kind": "val", "step": step, "loss": 1.0, "accuracy": right})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = {
        "classes": ["a", "b"], "counts": {"train": training, "val": images}, "channels": 3,
        "image_size": [32, 32], "fit": "letterbox",
    }  # fmt: skip
    info = {"data": data, "mean": [0.5], "std": [0.2], "model": {}}
    return Run(folder, RunConfig(), info)


RISING = [0.1 * n for n in range(1, 9)]
FLAT = [0.5, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]


@pytest.mark.parametrize(
    ("val", "train", "images", "word"),
    [
        (RISING, RISING, 1_000, "still learning"),
        (FLAT, FLAT, 1_000, "more time alone will hardly help"),
        (FLAT, [0.5, 0.7, 0.9, 1, 1, 1, 1, 1], 1_000, "overfitting"),
        (RISING, RISING, 50, "Too little was validated"),
        (RISING[:3], RISING[:3], 1_000, "Too little was validated"),
        ([*FLAT[:-1], 0.81], FLAT, 1_000, "more time alone will hardly help"),
    ],
)
def test_what_the_curves_say(tmp_path, val, train, images, word):
    assert word in advise(run_with(tmp_path, val, train, images=images))


def test_few_images_are_said(tmp_path):
    assert "fewer than 20" in advise(run_with(tmp_path, FLAT, FLAT, training=30))
