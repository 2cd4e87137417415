"""What goes wrong during a training: memory, numbers that are not finite, a full disk, time."""

import errno
import json
import math
import resource

import numpy as np
import pytest
import torch

import smallvit
from smallvit.models.vit import ViT
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run
from smallvit.training import loop, resume, train
from smallvit.training.budget import plan_steps
from smallvit.training.classification import Classification
from smallvit.training.log import Log
from tests.training.makers import (
    RANDOM,
    Clock,
    arrays,
    assemble,
    losses,
    tiny,
    untimed,
    weights,
)
from tests.training.test_resume import Alarm

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


def test_out_of_memory_goes_on_in_more_passes(source, tmp_path, request, logged):
    config = tiny(source, *RANDOM, *STILL)
    plain = train(config, out=tmp_path / "plain", shown=False)
    request.getfixturevalue("little_memory")
    run = train(config, out=tmp_path / "run")
    assert "out of memory: a step is now made of 4 passes of 8 images" in logged()
    assert run.info["accumulation"] == 4
    np.testing.assert_allclose(losses(run), losses(plain), atol=1e-5, rtol=0)
    for name, value in weights(plain, "last").items():
        torch.testing.assert_close(weights(run, "last")[name], value, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("little_memory")
def test_out_of_memory_that_cannot_be_divided(source, tmp_path):
    with pytest.raises(ValueError, match="cannot be divided further: choose a smaller model"):
        train(tiny(source, *RANDOM, "augment.mix_group=16"), out=tmp_path / "run", shown=False)


@pytest.mark.usefixtures("little_memory")
def test_out_of_memory_while_time_is_measured(source, tmp_path, monkeypatch):
    clock = Clock()
    clock.passes(monkeypatch, lambda step: 0.5)
    run = train(minutes(source, 0.1), out=tmp_path / "run", shown=False, clock=clock)
    assert run.finished
    assert run.info["accumulation"] == 4


@pytest.mark.parametrize(("steps", "every", "speeds"), [(1, 0, [16]), (3, 1, [16, 32, 32])])
def test_the_speed_of_a_first_step_alone_is_its_own(
    source, tmp_path, monkeypatch, steps, every, speeds
):
    clock = Clock()
    clock.passes(monkeypatch, lambda step: 2.0 if step == 0 else 1.0)
    config = tiny(source, f"loop.every={every or 'null'}", steps=steps)
    run = train(config, out=tmp_path / "run", shown=False, clock=clock)
    trained = [line for line in run.log() if line["kind"] == "train"]
    assert [line["images_per_second"] for line in trained] == speeds


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


def test_a_full_disk_does_not_end_the_training(source, tmp_path, monkeypatch, logged):
    config = tiny(source, "loop.every=2", "loop.checkpoint_seconds=0")
    plain = train(config, out=tmp_path / "plain", shown=False)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", full)
        run = train(config, out=tmp_path / "run", shown=False)
    assert "could not write a checkpoint" in logged()
    assert "training goes on" in logged()
    assert untimed(run) == untimed(plain)


def test_checkpoints_make_room_for_the_weights(source, tmp_path, monkeypatch, logged):
    """Two files beside the checkpoints are too many."""
    real = loop.write_tensors

    def write(path, tensors, **metadata):
        if path.name == "last.safetensors" and (path.parent / "checkpoints").exists():
            full()
        real(path, tensors, **metadata)

    monkeypatch.setattr(loop, "write_tensors", write)
    config = tiny(source, "loop.every=2", "loop.checkpoint_seconds=0")
    run = train(config, out=tmp_path / "run", shown=False)
    assert "removing checkpoints to make room" in logged()
    assert run.finished
    assert run.model("last") is not None


def state_of(stepper):
    tensors = {name: tensor.clone() for name, tensor in stepper.state_dict().items()}
    return {**tensors, "sums": stepper.sums.clone()}


def minutes(source, number, *more):
    """A config with a budget of time."""
    config = tiny(source, f"schedule.minutes={number}", *more)
    return config.changed({"schedule": {"steps": None}})


def test_measuring_undoes_what_it_did(source):
    config = minutes(source, 1 / 3, *RANDOM, "optim.ema=0.9")
    dataset, loader, stepper = assemble(config)
    for step in range(2):
        stepper(loader.batch(step), step, lr=1e-3, mixed=True)
    before, clock = state_of(stepper), Clock(tick=0.01)
    steps, every, pace = plan_steps(config, dataset, loader, stepper, started=0, clock=clock)
    assert steps > 1
    assert every >= loader.steps_per_epoch
    assert clock.now + steps * pace.step_seconds + pace.reserve < 20
    after = state_of(stepper)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_measuring_before_the_first_step_changes_nothing(source):
    config = minutes(source, 1 / 3, *RANDOM, "optim.ema=0.9")
    states = []
    for measured in (False, True):
        dataset, loader, stepper = assemble(config)
        if measured:
            plan_steps(config, dataset, loader, stepper, started=0, clock=Clock(tick=0.01))
        for step in range(3):
            stepper(loader.batch(step), step, lr=1e-3, mixed=True)
        states.append(state_of(stepper))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_slow_first_inference_is_not_the_speed_of_the_test(source, monkeypatch):
    """On a GPU it loads what it needs: 2 seconds for 256 images would be minutes for 10,000."""
    config, clock = minutes(source, 1), Clock(tick=0.001)
    dataset, loader, stepper = assemble(config)
    known = set()  # as validations do, and as the test does

    def try_inference(dataset, world, *how):
        clock.now += 0.1 if how in known else 5.0
        known.add(how)
        return how[-1]

    monkeypatch.setattr(stepper.objective, "try_inference", try_inference)
    pace = plan_steps(config, dataset, loader, stepper, started=0, clock=clock)[2]
    assert pace.reserve < 3


def test_the_speed_of_a_slow_test_is_known_soon(source, monkeypatch):
    """An image takes a second: four times 256 of them would be 17 minutes."""
    config, clock = minutes(source, 20), Clock(tick=0.001)
    dataset, loader, stepper = assemble(config)

    def try_inference(dataset, world, precision, count):
        clock.now += count
        return count

    monkeypatch.setattr(stepper.objective, "try_inference", try_inference)
    pace = plan_steps(config, dataset, loader, stepper, started=0, clock=clock)[2]
    assert clock.now < 30
    assert pace.validation * pace.step_seconds > len(dataset.split("val"))


def test_a_deadline_in_the_past(source):
    config = minutes(source, 1)
    with pytest.raises(ValueError, match="minutes are over before the first step"):
        plan_steps(config, *assemble(config), started=-100, clock=Clock(tick=0.01))


def test_minutes_are_kept_and_the_steps_recorded(source, tmp_path, monkeypatch):
    """Six seconds: 1.5 % and the reserve are kept, two steps measure; steps take 0.2."""
    clock = Clock(now=50)
    clock.passes(monkeypatch, lambda step: 0.2)
    config = minutes(source, 0.1)
    run = train(config, out=tmp_path / "run", started=50, shown=False, clock=clock)
    assert clock.now - 50 == pytest.approx((2 + 21) * 0.2)
    assert run.info["ended"] == "finished"
    assert run.config.schedule.minutes == 0.1
    assert run.config.schedule.steps == run.info["steps"] == 21
    assert Run.open(run.folder).config == run.config


@pytest.mark.parametrize(("later", "ended"), [(0.1, "finished"), (0.02, "finished"), (4.0, "time")])
def test_another_speed_is_another_plan(source, tmp_path, monkeypatch, logged, later, ended):
    clock = Clock()
    clock.passes(monkeypatch, lambda step: 0.05 if step < 20 else later)
    run = train(minutes(source, 0.1), out=tmp_path / "run", clock=clock)
    assert clock.now < 6.0 + (later if later > 1 else 0)
    assert run.info["ended"] == ended
    plans = run.config.schedule.plans
    assert plans[0][0] == 0
    assert [line["steps"] for line in run.log() if line["kind"] == "plan"][-1] > 20
    assert plans[-1][1] == run.config.schedule.steps == run.info["steps"] > 20
    assert (plans[-1][1] > plans[0][1]) == (later < 0.05)
    assert logged().count("than before: about") == 1
    opened = Run.open(run.folder)  # its config is another one than it began with, and its own
    assert opened.config == run.config
    path = run.folder / "config.yaml"
    path.write_text(path.read_text().replace("batch_size: ", "batch_size: 1"))
    with pytest.raises(ValueError, match=r"was edited after the run began: loop.batch_size"):
        Run.open(run.folder)
    if ended == "finished":
        rates = [line["lr"] for line in run.log() if line["kind"] == "train"]
        assert rates[-1] < 0.05 * max(rates)
        assert clock.now > 4


@pytest.mark.parametrize("val", [(), ("data.val=0",)])
def test_the_time_of_a_logged_test_is_no_slower_machine(source, tmp_path, monkeypatch, val):
    """A step takes a second, the test split two at every validation."""
    clock, real = Clock(), Classification.validate

    def validate(objective, dataset, split, world):
        clock.now += 2.0 if split == "test" else 0.0
        return real(objective, dataset, split, world)

    monkeypatch.setattr(Classification, "validate", validate)
    clock.passes(monkeypatch, lambda step: 1.0)
    config = minutes(source, 1.5, *val, "loop.log_test=true", "loop.every=15")
    run = train(config, out=tmp_path / "run", shown=False, clock=clock)
    assert [line["kind"] for line in run.log()].count("test") >= 4
    planned = [steps for _, steps in run.config.schedule.plans]
    assert planned == sorted(planned, reverse=True)  # never "faster than before"
    assert len(planned) <= 3  # the first test and the last are news
    assert 0.9 * 90 < clock.now <= 90


def test_a_test_that_becomes_slow_is_cut_in_time(tmp_path, monkeypatch, logged):
    """All 240 images are fewer than a batch, and took 12 seconds too long."""
    source = arrays(tmp_path / "a.npz", train=64, val=60, test=240)
    clock, slower = Clock(), 1.0
    logits, evaluate = Classification.logits, Classification.evaluate

    def show(objective, dataset, pixels, world, precision):
        clock.now += 0.02 * len(pixels) * slower
        return logits(objective, dataset, pixels, world, precision)

    def begin(objective, *args):
        nonlocal slower
        slower = 3.0
        return evaluate(objective, *args)

    monkeypatch.setattr(Classification, "logits", show)
    monkeypatch.setattr(Classification, "evaluate", begin)
    clock.passes(monkeypatch, lambda step: 0.5)
    run = train(minutes(source, 1), out=tmp_path / "run", clock=clock)
    assert 0.95 * 60 < clock.now <= 1.05 * 60
    assert 24 <= run.evaluation().count < 240
    assert "time is over: tested on" in logged()


def test_an_interval_that_is_requested_is_kept(source, tmp_path, monkeypatch):
    """In a run of 280 steps it was two."""
    clock = Clock()
    clock.passes(monkeypatch, lambda step: 0.02)
    config = minutes(source, 0.1, "loop.every=1")
    run = train(config, out=tmp_path / "run", shown=False, clock=clock)
    assert run.info["steps"] > 200
    assert [line["step"] for line in run.log() if line["kind"] == "train"][:3] == [1, 2, 3]


def test_a_run_whose_plans_changed_is_repeated_exactly(source, tmp_path, monkeypatch):
    """From its config alone, on a machine of another speed, stopped on the way."""
    clock = Clock()
    with monkeypatch.context() as patch:
        clock.passes(patch, lambda step: 0.05 if step < 20 else 0.1)
        first = train(minutes(source, 0.1, *RANDOM), out=tmp_path / "run", clock=clock)
    assert len(first.config.schedule.plans) > 1
    config = RunConfig.from_yaml((first.folder / "config.yaml").read_text())
    again = train(config, out=tmp_path / "again", shown=False)
    with monkeypatch.context() as patch:
        Alarm(patch, step=30)
        stopped = train(config, out=tmp_path / "stopped", shown=False)
    assert not stopped.finished
    for run in (again, resume(stopped.folder, shown=False)):
        for name, value in weights(first, "last").items():
            assert torch.equal(weights(run, "last")[name], value), name
        assert run.config == first.config


def test_a_run_that_dies_while_its_plans_are_recorded_can_be_opened(source, tmp_path):
    began = train(tiny(source), out=tmp_path / "run", shown=False)
    before = (began.folder / "config.yaml").read_text()
    ends = began.config.with_steps(99, [(0, 50), (10, 99)])
    assert Run.open(began.settle(ends).folder).config == ends  # the new config, not yet finished
    (began.folder / "config.yaml").write_text(before)  # noted, and not yet written
    assert Run.open(began.folder).config == began.config
    (began.folder / "config.yaml").write_text(ends.with_steps(98).to_yaml())
    with pytest.raises(ValueError, match="edited after the run began"):
        Run.open(began.folder)


def test_a_run_in_minutes_goes_on_with_its_plans(source, tmp_path, monkeypatch):
    clock = Clock()
    with monkeypatch.context() as patch:
        clock.passes(patch, lambda step: 0.05 if step < 20 else 0.1)
        Alarm(patch, step=40)
        stopped = train(minutes(source, 0.1), out=tmp_path / "run", shown=False, clock=clock)
    assert not stopped.finished
    run = resume(stopped.folder, shown=False)
    assert len(run.config.schedule.plans) > 1
    assert run.info["steps"] == run.config.schedule.plans[-1][1]
    repeated = train(run.config, out=tmp_path / "again", shown=False)
    assert torch.equal(weights(repeated)["head.weight"], weights(run)["head.weight"])


def test_checkpoints_come_when_their_time_has_passed(source, tmp_path, monkeypatch):
    clock = Clock()
    clock.passes(monkeypatch, lambda step: 0.3)
    Alarm(monkeypatch, step=10)
    config = tiny(source, "loop.every=1", "loop.checkpoint_seconds=1", steps=20)
    run = train(config, out=tmp_path / "run", shown=False, clock=clock)
    assert run.info["step"] == 11
    kept = sorted(int(path.stem) for path in (run.folder / "checkpoints").glob("*.json"))
    assert kept == [8, 11]  # after four steps, after four more, and when it stopped


def test_a_full_disk_under_the_log(tmp_path, logged):
    run = Run(tmp_path, tiny("nothing"), {})
    log = Log(run, steps=3)
    log.write("train", step=1, loss=1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.flush() + 5, hard))
    try:
        log.write("train", step=2, loss=1.0)
        log.write("val", step=2, loss=1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.write("train", step=3, loss=1.0)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 3]
    assert "could not write to the log" in logged()


def test_an_evaluation_that_cannot_be_kept(tmp_path, logged):
    data = arrays(tmp_path / "a.npz")
    run = train(tiny(data, steps=1), out=tmp_path / "r", shown=False)
    with run.locked():
        found = smallvit.evaluate(run.folder, save=True)
    assert found.count == 24
    assert "not kept" in logged()


def test_a_batch_that_is_too_large_keeps_to_repeats(tmp_path):
    data = arrays(tmp_path / "a.npz", train=37)
    config = tiny(data, "loop.repeats=3", steps=1, batch=60)
    run = train(config, out=tmp_path / "r", shown=False)
    assert run.config.loop.batch_size == 36


def test_deterministic_training_leaves_the_next_one_alone(tmp_path):
    data = arrays(tmp_path / "a.npz")
    train(tiny(data, "loop.deterministic=true", steps=1), out=tmp_path / "a", shown=False)
    assert torch.are_deterministic_algorithms_enabled()
    train(tiny(data, steps=1), out=tmp_path / "b", shown=False)
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_unbalanced_end_of_an_epoch(tmp_path):
    data = arrays(tmp_path / "a.npz", train=37, val=5, test=5)
    run = train(tiny(data, "loop.every=3", steps=7, batch=16), out=tmp_path / "r", shown=False)
    assert [line["step"] for line in run.log() if line["kind"] == "train"] == [3, 6, 7]
