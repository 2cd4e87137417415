"""What goes wrong during a training: memory, numbers that are not finite, a full disk, time."""

import errno
import json
import math
import os
import time

import numpy as np
import pytest
import torch

from smallvit.data import load_data
from smallvit.models.vit import ViT
from smallvit.runs.folder import Run
from smallvit.training import finish, resume, train
from smallvit.training.budget import Budget, plan_steps
from smallvit.training.distributed import World
from smallvit.training.log import Journal
from smallvit.training.loop import Progress, _shorten
from smallvit.training.train import _prepare
from tests.training.makers import RANDOM, arrays, losses, tiny, untimed, weights

STILL = ("model.options.attn_dropout=0.0", "model.options.dropout=0.0", "loop.every=1")


@pytest.fixture
def little_memory(monkeypatch):
    """A model that has room for eight images in training."""
    real = ViT.forward

    def forward(model, x):
        if model.training and len(x) > 8:
            raise torch.OutOfMemoryError("no room for the images")
        return real(model, x)

    monkeypatch.setattr(ViT, "forward", forward)


def test_out_of_memory_goes_on_in_more_passes(source, tmp_path, request, told):
    config = tiny(source, *RANDOM, *STILL)
    plain = train(config, out=tmp_path / "plain", shown=False)
    request.getfixturevalue("little_memory")
    run = train(config, out=tmp_path / "run")
    assert "out of memory: a step is now made of 4 passes of 8 images" in told()
    assert run.info["accumulation"] == 4
    np.testing.assert_allclose(losses(run), losses(plain), atol=1e-5, rtol=0)
    for name, value in weights(plain, "last").items():
        torch.testing.assert_close(weights(run, "last")[name], value, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("little_memory")
def test_out_of_memory_that_cannot_be_divided(source, tmp_path):
    with pytest.raises(ValueError, match="cannot be divided further: choose a smaller model"):
        train(tiny(source, *RANDOM, "augment.mix_group=16"), out=tmp_path / "run", shown=False)


@pytest.mark.usefixtures("little_memory")
def test_out_of_memory_while_time_is_measured(source, tmp_path):
    config = tiny(source, "schedule.minutes=0.1").changed({"schedule": {"steps": None}})
    run = train(config, out=tmp_path / "run", shown=False)
    assert run.finished
    assert run.info["accumulation"] == 4


@pytest.mark.parametrize("every", [1, 50])
def test_a_loss_that_is_not_finite(source, tmp_path, every):
    changes = ("optim.lr=1e30", "schedule.warmup=0", f"loop.every={every}", "optim.eps=0")
    config = tiny(source, *changes, "loop.checkpoint_seconds=0", steps=60)
    with pytest.raises(ValueError, match=r"not finite at step \d+") as caught:
        train(config, out=tmp_path / "run", shown=False)
    assert "lower learning rate" in str(caught.value)
    run = Run.open(tmp_path / "run")
    assert not run.finished
    lines = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    assert all(math.isfinite(line["loss"]) for line in lines)


def test_the_weights_before_it_are_kept(source, tmp_path, monkeypatch):
    """A model that breaks at the seventh step; checkpoints come with every look."""
    real, calls = ViT.forward, []

    def forward(model, x):
        calls.append(model.training)
        return real(model, x) * (math.nan if sum(calls) == 7 else 1)

    config = tiny(source, *STILL, "loop.every=2", "loop.checkpoint_seconds=0", steps=12)
    with monkeypatch.context() as patch:
        patch.setattr(ViT, "forward", forward)
        with pytest.raises(ValueError, match="not finite at step 6") as caught:
            train(config, out=tmp_path / "run", shown=False)
    assert "the last good weights, after step 6, are in" in str(caught.value)
    assert all(bool(value.isfinite().all()) for value in weights(tmp_path / "run").values())
    whole = train(config, out=tmp_path / "whole", shown=False)
    run = resume(tmp_path / "run", shown=False)
    assert untimed(run) == untimed(whole)


def full(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_does_not_end_the_training(source, tmp_path, monkeypatch, told):
    config = tiny(source, "loop.every=2", "loop.checkpoint_seconds=0")
    plain = train(config, out=tmp_path / "plain", shown=False)
    with monkeypatch.context() as patch:
        patch.setattr(finish, "save_checkpoint", full)
        run = train(config, out=tmp_path / "run", shown=False)
    assert "could not write a checkpoint" in told()
    assert "training goes on" in told()
    assert untimed(run) == untimed(plain)


def test_checkpoints_make_room_for_the_weights(source, tmp_path, monkeypatch, told):
    """Two files beside the checkpoints are too many."""
    real = finish.write_tensors

    def write(path, tensors, **metadata):
        if path.name == "last.safetensors" and (path.parent / "checkpoints").exists():
            full()
        real(path, tensors, **metadata)

    monkeypatch.setattr(finish, "write_tensors", write)
    config = tiny(source, "loop.every=2", "loop.checkpoint_seconds=0")
    run = train(config, out=tmp_path / "run", shown=False)
    assert "removing checkpoints to make room" in told()
    assert run.finished
    assert run.model("last") is not None


def job_of(config):
    dataset = load_data(config.data.source)
    job, _ = _prepare(config, dataset, World(0, 1, torch.device("cpu")))
    return job


def state_of(job):
    held = job.stepper.optimiser.state_dict()["state"]
    return {
        **{f"model.{k}": v.clone() for k, v in job.stepper.learner.state_dict().items()},
        **{f"average.{k}": v.clone() for k, v in job.stepper.average.state_dict().items()},
        **{f"{n}.{k}": v.clone() for n, item in held.items() for k, v in item.items()},
        "sums": job.stepper.sums.clone(),
    }


def test_measuring_undoes_what_it_did(source):
    job = job_of(tiny(source, *RANDOM, "optim.ema=0.9"))
    for step in range(2):
        job.stepper(job.loader.batch(step), step, lr=1e-3, mixed=True)
    before = state_of(job)
    steps, every, end = plan_steps(job, Budget(20.0, time.monotonic(), 24), None)
    assert steps > 1
    assert every >= job.loader.steps_per_epoch
    assert end < time.monotonic() + 20
    after = state_of(job)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_measuring_before_the_first_step_changes_nothing(source):
    config = tiny(source, *RANDOM, "optim.ema=0.9")
    fresh, measured = job_of(config), job_of(config)
    plan_steps(measured, Budget(20.0, time.monotonic(), 24), None)
    for job in (fresh, measured):
        for step in range(3):
            job.stepper(job.loader.batch(step), step, lr=1e-3, mixed=True)
    ours, theirs = state_of(fresh), state_of(measured)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_deadline_in_the_past(source):
    job = job_of(tiny(source))
    with pytest.raises(ValueError, match="minutes are over before the first step"):
        plan_steps(job, Budget(60.0, time.monotonic() - 100, 24), None)


def test_minutes_are_kept_and_the_steps_recorded(source, tmp_path):
    config = tiny(source, "schedule.minutes=0.1").changed({"schedule": {"steps": None}})
    started = time.monotonic()
    run = train(config, out=tmp_path / "run", started=started, shown=False)
    assert time.monotonic() - started < 6.0
    assert run.config.schedule.minutes == 0.1
    assert run.config.schedule.steps >= run.info["steps"] > 3
    assert Run.open(run.folder).config == run.config


def test_a_slower_machine_gets_fewer_steps(source, tmp_path, told):
    job = job_of(tiny(source))
    job.journal = Journal(tmp_path / "log.jsonl", steps=1000)
    job.progress, job.deadline = Progress(step=100, steps=1000), time.monotonic() + 10
    _shorten(job, 0.001)
    assert job.progress.steps == 1000
    _shorten(job, 0.1)
    assert 190 <= job.progress.steps <= 200
    assert "this machine has become slower" in told()
    job.deadline = time.monotonic() + 0.01
    _shorten(job, 0.1)
    assert job.progress.ended == "time"
    job.journal.close()
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["plan"] * 2


def test_a_full_disk_under_the_log(source, tmp_path, told):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    journal = Journal(tmp_path / "log.jsonl", steps=3)
    journal.write("train", step=1, loss=1.0)
    size = journal.size
    descriptor = os.open("/dev/full", os.O_WRONLY)
    kept = os.dup(journal._file.fileno())
    os.dup2(descriptor, journal._file.fileno())
    journal.write("train", step=2, loss=1.0)
    os.dup2(kept, journal._file.fileno())
    journal.write("train", step=3, loss=1.0)
    journal.close()
    os.close(descriptor)
    os.close(kept)
    assert size
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 3]
    assert "could not write to the log" in told()


def test_an_unbalanced_end_of_an_epoch(tmp_path):
    data = arrays(tmp_path / "a.npz", train=37, val=5, test=5)
    run = train(tiny(data, "loop.every=3", steps=7, batch=16), out=tmp_path / "r", shown=False)
    assert [line["step"] for line in run.log() if line["kind"] == "train"] == [3, 6, 7]
