"""A run that is killed, or asked to stop, and resumed ends as the one that never was."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from smallvit.runs.folder import Run
from smallvit.training import resume, train
from tests.training.makers import RANDOM, arrays, assert_same_run, tiny

WORKER = Path(__file__).with_name("worker.py")
ROOT = Path(__file__).parents[2]


def everything(source, *more, steps=60):
    """All that a checkpoint has to remember."""
    return tiny(
        source,
        *RANDOM,
        "model.options.attn_dropout=0.1",
        "optim.ema=0.9",
        "loop.every=3",
        "loop.checkpoint_seconds=0",
        *more,
        steps=steps,
    )


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return arrays(tmp_path_factory.mktemp("data") / "noise.npz")


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The run that nobody disturbed."""
    return train(everything(data), out=tmp_path_factory.mktemp("whole") / "run", shown=False)


def start(config, out, *, kill_at=None):
    """A worker that trains, or resumes what is there."""
    if (out / "run.json").exists():
        words = ["resume", str(out)]
    else:
        path = out.with_suffix(".yaml")
        path.write_text(config.to_yaml())
        words = ["train", str(path), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("KILL_AT", None)
    if kill_at:
        environment["KILL_AT"] = kill_at
    return subprocess.Popen(
        [sys.executable, str(WORKER), *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )


def wait_for_log(process, out, size):
    """Until the log has that many bytes, or the process has ended."""
    log = out / "log.jsonl"
    while process.poll() is None and not (log.exists() and log.stat().st_size >= size):
        time.sleep(0.002)


def killed(config, out, draw):
    """Starts, and kills at a random moment of the training; True if that was in time."""
    out.parent.mkdir(exist_ok=True)
    log = out / "log.jsonl"
    before = log.stat().st_size if log.exists() else 0
    process = start(config, out)
    wait_for_log(process, out, before + 1 + draw.randrange(1500))
    time.sleep(draw.random() * 0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def kill_and_resume(data, out, whole, *, kills, seed):
    draw = random.Random(seed)
    config = everything(data)
    done = sum(killed(config, out, draw) for _ in range(kills))
    run = Run.open(out)
    assert_same_run(run if run.finished else resume(out, shown=False), whole)
    assert not (out / "checkpoints").exists()
    return done


def test_killed_at_random_moments(data, whole, tmp_path):
    assert kill_and_resume(data, tmp_path / "run", whole, kills=2, seed=1) >= 1


@pytest.mark.slow
def test_killed_twenty_times(data, tmp_path_factory, tmp_path):
    """Five runs, four kills each."""
    config = everything(data, steps=150)
    place = tmp_path_factory.mktemp("long")
    long = train(config, out=place / "run", shown=False)
    done = 0
    for number in range(5):
        draw = random.Random(number)
        out = tmp_path / f"{number}" / "run"
        for _ in range(4):
            done += killed(config, out, draw)
        run = Run.open(out)
        assert_same_run(run if run.finished else resume(out, shown=False), long)
    assert done >= 15


#: Files are moved to their place in this order: config, run.json, the folder of both, and with each
#: checkpoint its tensors, its description, and the best weights if validation has chosen some.
MOMENTS = [
    "replace:4",  # the first checkpoint's tensors lie beside their place
    "moved:7",  # the second checkpoint has tensors and no description
    "half:9",  # a file is torn
    "moved:63",  # all is trained and the last files are being written
]


@pytest.mark.parametrize("moment", MOMENTS[1:2])
def test_killed_while_a_checkpoint_is_written(data, whole, tmp_path, moment):
    killed_while_writing(data, whole, tmp_path, moment)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [*MOMENTS, *(f"moved:{n}" for n in range(3, 16))])
def test_killed_at_each_moment_of_writing(data, whole, tmp_path, moment):
    killed_while_writing(data, whole, tmp_path, moment)


def killed_while_writing(data, whole, tmp_path, moment):
    config, out = everything(data), tmp_path / "run"
    process = start(config, out, kill_at=moment)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, told
    assert_same_run(resume(out, shown=False), whole)
    assert not list(out.rglob("*.part"))


def test_asked_to_stop(data, tmp_path):
    """In the middle of an interval of the log, whose sums the checkpoint keeps."""
    changes = ("loop.every=25", "loop.checkpoint_seconds=1e6")
    config = everything(data, *changes, steps=100)
    whole = train(config, out=tmp_path / "whole", shown=False)
    out = tmp_path / "run"
    process = start(config, out)
    wait_for_log(process, out, 1)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert "status interrupted" in told
    assert f"go on with: smallvit train --resume --out {out}" in told
    run = Run.open(out)
    assert run.info["status"] == "interrupted"
    assert 25 <= run.info["step"] < 100
    assert [path.stem for path in (out / "checkpoints").glob("*.json")] == [
        f"{run.info['step']:09d}"
    ]
    assert_same_run(resume(out, shown=False), whole)


class Alarm:
    """Sends this process a signal while a step of training is under way."""

    def __init__(self, monkeypatch, step, number=signal.SIGTERM):
        from smallvit.training.step import Stepper

        real = Stepper.__call__

        def call(stepper, batch, now, **named):
            if now == step:
                signal.raise_signal(number)
            real(stepper, batch, now, **named)

        monkeypatch.setattr(Stepper, "__call__", call)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
@pytest.mark.parametrize("step", [0, 10, 11])
def test_asked_to_stop_at_any_step(data, tmp_path, monkeypatch, told, step, number):
    """The step is finished; asked in the very last one, the run is."""
    config = everything(data, "loop.every=5", steps=12)
    whole = train(config, out=tmp_path / "whole", shown=False)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        Alarm(patch, step, number)
        run = train(config, out=tmp_path / "run", shown=False)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    if step < 11:
        assert run.info["status"] == "interrupted"
        assert run.info["step"] == step + 1
        assert f"stopped after {step + 1} of 12 steps" in told()
        run = resume(run.folder, shown=False)
    assert_same_run(run, whole)


def test_a_second_control_c_ends_at_once(data, tmp_path, monkeypatch):
    from smallvit.training.step import Stepper

    real = Stepper.__call__

    def call(stepper, batch, now, **named):
        if now == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        real(stepper, batch, now, **named)

    config = everything(data, steps=9)
    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "__call__", call)
        with pytest.raises(KeyboardInterrupt):
            train(config, out=tmp_path / "run", shown=False)
    whole = train(config, out=tmp_path / "whole", shown=False)
    assert_same_run(resume(tmp_path / "run", shown=False), whole)


def stopped(config, out, step):
    with pytest.MonkeyPatch.context() as patch:
        Alarm(patch, step)
        return train(config, out=out, shown=False)


def test_a_torn_checkpoint_gives_the_same_run(data, tmp_path, told):
    """Resuming from the one before repeats the lines of the log that followed it."""
    config = everything(data, steps=12)
    whole = train(config, out=tmp_path / "whole", shown=False)
    run = stopped(config, tmp_path / "run", 7)
    newest = max((run.folder / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert_same_run(resume(run.folder, shown=False), whole)
    assert "is damaged" in told()


def test_all_checkpoints_gone(data, tmp_path):
    config = everything(data, steps=12)
    whole = train(config, out=tmp_path / "whole", shown=False)
    run = stopped(config, tmp_path / "run", 7)
    for path in (run.folder / "checkpoints").iterdir():
        path.unlink()
    assert_same_run(resume(run.folder, shown=False), whole)


def test_patience_and_drloc_are_resumed_too(data, tmp_path):
    config = everything(
        data,
        "loss.drloc=0.1",
        "optim.lr=1e-1",
        "schedule.warmup=0.8",
        "schedule.patience=3",
        "optim.layer_decay=0.7",
        "model.frozen=1",
        steps=40,
    )
    whole = train(config, out=tmp_path / "whole", shown=False)
    assert whole.info["ended"] == "patience"
    run = stopped(config, tmp_path / "run", whole.info["steps"] - 5)
    assert_same_run(resume(run.folder, shown=False), whole)


def test_a_finished_run_is_not_resumed(whole):
    with pytest.raises(ValueError, match="is finished; there is nothing to resume"):
        resume(whole.folder, shown=False)


def test_the_config_may_be_given_again_but_not_changed(data, tmp_path):
    config = everything(data, steps=9).changed(
        {"schedule": {"steps": None, "epochs": 4.5}, "loop": {"every": None}}
    )
    run = stopped(config, tmp_path / "run", 3)
    changed = config.changed({"optim": {"lr": 1.0}, "loop": {"batch_size": 16}})
    with pytest.raises(ValueError, match=r"optim.lr was 0.002 and is 1.0") as caught:
        resume(run.folder, config=changed, shown=False)
    assert "loop.batch_size was 32 and is 16" in str(caught.value)
    assert "steps" not in str(caught.value)
    assert resume(run.folder, config=config, shown=False).finished
