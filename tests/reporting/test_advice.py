"""Advice follows from the curves, and from how many images they were measured on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from smallvit.reporting.narrative import advise
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
        (FLAT, FLAT, 200, "cannot be told from so few images"),
        (FLAT, [0.5, 0.7, 0.9, 1, 1, 1, 1, 1], 1_000, "overfitting"),
        (RISING, RISING, 50, "Too little was validated"),
        (RISING[:3], RISING[:3], 1_000, "Too little was validated"),
        ([*FLAT[:-1], 0.81], FLAT, 1_000, "more time alone will hardly help"),
    ],
)
def test_what_the_curves_say(tmp_path, val, train, images, word):
    assert word in advise(run_with(tmp_path, val, train, images=images))


@pytest.mark.parametrize(
    ("steps", "short"),
    [(None, False), (100, True), (194, True), (195, False), (196, False), (9_000, False)],
)
def test_a_short_training_is_said_where_nothing_else_can_be(tmp_path, steps, short):
    """5,000 images in batches of 128: five epochs of 39 whole batches are 195 steps."""
    run = run_with(tmp_path, RISING[:3], RISING[:3])
    if steps:
        run.info["steps"] = steps
    assert ("short training" in advise(run)) == short
    if steps == 100:
        assert "a short training of 2.6 epochs." in advise(run)
    assert "too little was validated" in advise(run).lower()
    run = run_with(tmp_path, RISING[:3], [0.5, 0.8, 0.95])
    run.info["steps"] = 100  # of images that it knows already
    assert "short training" not in advise(run)
    run = run_with(tmp_path, FLAT, FLAT)
    run.info["steps"] = 100  # with enough validation the curves decide
    assert "short training" not in advise(run)


def test_few_images_are_said(tmp_path):
    assert "fewer than 20" in advise(run_with(tmp_path, FLAT, FLAT, training=30))


@pytest.mark.parametrize(
    ("times", "images", "why"),
    [
        (8, 81, "81 images, and curves of fewer than 100 say little"),
        (2, 1_000, "2 times, and 4 make a curve"),
        (0, 0, "there were no validation images"),
    ],
)
def test_what_cannot_be_told_says_why_and_how_to_find_out(tmp_path, times, images, why):
    told = advise(run_with(tmp_path, RISING[:times], RISING[:times], images=images))
    assert why in told
    assert "smallvit report RUN1 RUN2" in told


def test_a_start_without_labels_is_told_how_it_is_used(tmp_path):
    """Its log has losses alone, of which nothing follows for an accuracy."""
    run = run_with(tmp_path, RISING, RISING)
    run = replace(run, config=run.config.changed({"loss": {"objective": "masked"}}))
    assert f"smallvit train DATA --pretrained {tmp_path}" in advise(run)
