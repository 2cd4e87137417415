"""Two processes learn what one learns."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from smallvit.runs.folder import Run
from smallvit.training import resume, train
from smallvit.training.objective import OBJECTIVES
from tests.training.makers import (
    RANDOM,
    arrays,
    folder_of_images,
    losses,
    tiny,
    untimed,
    weights,
)

WORKER = Path(__file__).with_name("worker.py")
ROOT = Path(__file__).parents[2]

#: Dropout inside attention draws from each process's own generator, and is left out.
CHANGES = (
    *RANDOM,
    "model.options.attn_dropout=0.0",
    "model.options.dropout=0.0",
    "optim.ema=0.9",
    "loop.every=2",
    "loss.drloc=0.1",
)


def launch(*words, out, timeout=90):
    """Runs two processes under torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "SMALLVIT_CACHE": str(out.parent / "cache"),
    }
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *("--master-addr=127.0.0.1", f"--master-port={port}"),
            *map(str, words),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=out.parent,
        start_new_session=True,
    )
    try:
        text, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # torchrun and the processes it started, no others
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, text, errors)


def together(config, out, **options):
    path = out.with_suffix(".yaml")
    path.write_text(config.to_yaml())
    return launch(WORKER, "train", path, out, out=out, **options)


def test_two_processes_give_the_losses_of_one(source, tmp_path):
    config = tiny(source, *CHANGES, "loop.accumulation=2", steps=8)
    done = together(config, tmp_path / "two")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("status finished") == 2
    two, one = Run.open(tmp_path / "two"), train(config, out=tmp_path / "one", shown=False)
    assert two.info["processes"] == 2
    assert {path.name for path in two.folder.iterdir()} == {p.name for p in one.folder.iterdir()}
    for kind in ("train", "val"):
        np.testing.assert_allclose(losses(two, kind), losses(one, kind), atol=1e-5, rtol=0)
    inexact = {"loss", "lr"}
    for ours, theirs in zip(untimed(two), untimed(one), strict=True):
        assert {k: v for k, v in ours.items() if k not in inexact} == {
            k: v for k, v in theirs.items() if k not in inexact
        }
        assert ours.keys() == theirs.keys()
    ours, theirs = weights(two, "last"), weights(one, "last")
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=0)


def test_two_processes_move_matrices_alike(source, tmp_path):
    """Muon's bf16 rounds what the order of sums changes, so that one process is not two exactly."""
    config = tiny(source, *CHANGES, "optim.optimizer=muon", steps=4)
    done = together(config, tmp_path / "two")
    assert done.returncode == 0, done.stderr[-3000:]
    two, one = Run.open(tmp_path / "two"), train(config, out=tmp_path / "one", shown=False)
    for kind in ("train", "val"):
        np.testing.assert_allclose(losses(two, kind), losses(one, kind), atol=1e-3, rtol=0)
    assert losses(one)[0] != losses(one)[-1]


@pytest.mark.slow
def test_two_processes_with_an_objective_of_two_views(source, tmp_path, monkeypatch):
    """It has numbers of its own, no labels, and does not use the model's head."""
    monkeypatch.setitem(OBJECTIVES, "turning", "tests.training.turning:Turning")
    changes = [change for change in CHANGES if not change.startswith(("loss.", "augment.mix_"))]
    config = tiny(source, *changes, "loss.objective=turning", "augment.mixup=0", "augment.cutmix=0")
    done = together(config, tmp_path / "two")
    assert done.returncode == 0, done.stderr[-3000:]
    two, one = Run.open(tmp_path / "two"), train(config, out=tmp_path / "one", shown=False)
    for kind in ("train", "val"):
        np.testing.assert_allclose(losses(two, kind), losses(one, kind), atol=1e-5, rtol=0)
        for ours, theirs in zip(two.log(), one.log(), strict=True):
            assert ours["turns_right"] == theirs["turns_right"]


@pytest.mark.slow
def test_two_processes_keep_to_the_minutes(tmp_path, monkeypatch):
    """Each process has a clock of its own; they must agree on every step nonetheless."""
    monkeypatch.setenv("SKEW", "1")
    data = arrays(tmp_path / "a.npz", train=64, val=8, test=8)
    config = tiny(data, "schedule.minutes=0.25").changed({"schedule": {"steps": None}})
    done = together(config, tmp_path / "run")
    assert done.returncode == 0, done.stderr[-3000:]
    run = Run.open(tmp_path / "run")
    assert run.finished
    assert run.config.schedule.steps > 20
    took = float(re.search(r"^took ([\d.]+)", done.stdout, re.MULTILINE)[1])
    assert 0.8 * 15 < took <= 1.05 * 15


@pytest.mark.parametrize("way", [pytest.param("train", marks=pytest.mark.slow), "smallvit"])
def test_the_first_process_reads_the_data_for_all(tmp_path, monkeypatch, way):
    """It surveys and audits; the other finds survey and pixels in the cache."""
    monkeypatch.setenv("WITNESS", "1")
    data, out = folder_of_images(tmp_path / "data"), tmp_path / "run"
    config = tiny(data, "augment.flip=0.5", steps=2, batch=8)
    path = out.with_suffix(".yaml")
    path.write_text(config.to_yaml())
    words = [path, out] if way == "train" else ["train", "-c", path, "--out", out]
    done = launch(WORKER, way, *words, out=out)
    assert done.returncode == 0, done.stderr[-3000:]
    assert Run.open(out).finished
    assert Run.open(out).info["processes"] == 2
    if way == "smallvit":
        assert done.stdout.count("run folder") == 1
    assert done.stdout.count("audited by 0") == 1
    assert done.stdout.count("audited by") == 1
    assert (done.stdout + done.stderr).count("read 30 images") == 1


def test_folds_in_two_processes(tmp_path):
    """More processes than validation images of one fold, too."""
    data, out = arrays(tmp_path / "a.npz", train=24, val=0, test=0), tmp_path / "cross"
    config = tiny(data, "data.folds=2", "data.val=0.04", steps=2, batch=4)
    path = out.with_suffix(".yaml")
    path.write_text(config.to_yaml())
    done = launch(WORKER, "smallvit", "train", "-c", path, "--out", out, out=out)
    assert done.returncode == 0, done.stderr[-3000:]
    assert Run.open(out).finished
    assert Run.open(out / "fold-1").info["processes"] == 2
    assert done.stdout.count("run folder") == 1
    assert json.loads((out / "folds.json").read_text())["tested"] == 24


def test_data_that_the_first_process_refuses(tmp_path, monkeypatch):
    monkeypatch.setenv("WITNESS", "1")
    data = arrays(tmp_path / "a.npz", classes=1)
    done = together(tiny(data), tmp_path / "run")
    assert done.returncode != 0
    assert done.stdout.count("audited by") == 1
    assert "class" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_with_one(source, tmp_path, monkeypatch):
    config = tiny(source, *CHANGES, "loop.checkpoint_seconds=0", steps=8)
    out = tmp_path / "two"
    path = out.with_suffix(".yaml")
    path.write_text(config.to_yaml())
    with monkeypatch.context() as patch:
        patch.setenv("KILL_AT", "moved:9")
        done = launch(WORKER, "train", path, out, out=out)
    assert done.returncode != 0
    assert not Run.open(out).finished
    one = train(config, out=tmp_path / "one", shown=False)
    np.testing.assert_allclose(losses(resume(out, shown=False)), losses(one), atol=1e-5, rtol=0)
