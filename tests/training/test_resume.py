"""A run that is killed, or requested to stop, and resumed ends as the one that never was."""

import json
import os
import random
import signal
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from smallvit.runs.folder import Run
from smallvit.training import resume, train
from tests.training.makers import HYBRID, RANDOM, arrays, assert_same_run, tiny

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


def start(config, out, kill_at):
    """A worker that trains, or resumes what is there; returns its exit code and output."""
    out.parent.mkdir(exist_ok=True)
    words = ["resume", str(out)]
    if not (out / "run.json").exists():
        path = out.with_suffix(".yaml")
        path.write_text(config.to_yaml())
        words = ["train", str(path), str(out)]
    done = subprocess.run(
        [sys.executable, str(WORKER), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "KILL_AT": kill_at},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    return done.returncode, done.stdout + done.stderr


def kill_and_resume(config, out, whole, *, kills, seed):
    """Kills at random moments; says how often that came before the end."""
    draw = random.Random(seed)
    done = 0
    for _ in range(kills):
        kind, most = draw.choice([("step", 30), ("fsync", 20), ("replace", 20), ("moved", 20)])
        code, text = start(config, out, f"{kind}:{draw.randint(1, most)}")
        assert code in (0, -signal.SIGKILL), text
        done += code != 0
    run = Run.open(out)
    assert_same_run(run if run.finished else resume(out, shown=False), whole)
    assert not (out / "checkpoints").exists()
    return done


def test_killed_at_random_moments(data, whole, tmp_path):
    assert kill_and_resume(everything(data), tmp_path / "run", whole, kills=2, seed=1) == 2


@pytest.mark.slow
def test_killed_twenty_times(data, tmp_path):
    """Five runs, four kills each."""
    config = everything(data, steps=150)
    long = train(config, out=tmp_path / "long", shown=False)
    done = [
        kill_and_resume(config, tmp_path / f"{number}" / "run", long, kills=4, seed=number)
        for number in range(5)
    ]
    assert done == [4] * 5


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
    out = tmp_path / "run"
    code, text = start(everything(data), out, moment)
    assert code == -signal.SIGKILL, text
    assert_same_run(resume(out, shown=False), whole)
    assert not list(out.rglob("*.part"))


def test_a_stop_is_requested(data, tmp_path):
    """In the middle of an interval of the log, whose sums the checkpoint keeps."""
    changes = ("loop.every=25", "loop.checkpoint_seconds=1e6")
    config = everything(data, *changes, steps=100)
    whole = train(config, out=tmp_path / "whole", shown=False)
    out = tmp_path / "run"
    code, text = start(config, out, "stop:40")
    assert code == 0, text
    assert "status interrupted" in text
    assert f"go on with: smallvit train --resume --out {out}" in text
    run = Run.open(out)
    assert (run.info["status"], run.info["step"]) == ("interrupted", 40)
    assert [path.stem for path in (out / "checkpoints").glob("*.json")] == [f"{40:09d}"]
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
def test_a_stop_is_requested_at_any_step(data, tmp_path, monkeypatch, logged, step, number):
    """The step is finished; if it is the very last one, the run is."""
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
        assert f"stopped after {step + 1} of 12 steps" in logged()
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


def test_a_signal_may_come_again_until_the_stop_is_recorded(data, tmp_path, monkeypatch, logged):
    """A worker gets what a terminal sends to all its processes, and then its parent's word."""
    real = Run.note

    def note(run, **facts):
        if facts.get("status") == "interrupted":
            signal.raise_signal(signal.SIGTERM)
        return real(run, **facts)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        Alarm(monkeypatch, 4)
        monkeypatch.setattr(Run, "note", note)
        run = train(everything(data, steps=9), out=tmp_path / "run", shown=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (run.info["status"], run.info["step"]) == ("interrupted", 5)
    assert "stopped after 5 of 9 steps" in logged()


def stopped(config, out, step):
    with pytest.MonkeyPatch.context() as patch:
        Alarm(patch, step)
        return train(config, out=out, shown=False)


def test_a_torn_checkpoint_gives_the_same_run(data, tmp_path, logged):
    """Resuming from the one before repeats the lines of the log that followed it."""
    config = everything(data, steps=12)
    whole = train(config, out=tmp_path / "whole", shown=False)
    run = stopped(config, tmp_path / "run", 7)
    newest = max((run.folder / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert_same_run(resume(run.folder, shown=False), whole)
    assert "is damaged" in logged()


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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_muon_and_batch_norm_are_resumed_too(data, tmp_path, precision):
    config = everything(
        data,
        *HYBRID,
        "optim.optimizer=muon",
        "optim.layer_decay=0.7",
        "loop.accumulation=2",
        f"loop.precision={precision}",
        steps=12,
    )
    whole = train(config, out=tmp_path / "whole", shown=False)
    run = stopped(config, tmp_path / "run", 7)
    assert_same_run(resume(run.folder, shown=False), whole)


def test_a_finished_run_is_not_resumed(whole):
    with pytest.raises(ValueError, match="is finished; there is nothing to resume") as refused:
        resume(whole.folder, shown=False)
    assert f"train DATA --pretrained {whole.folder}" in str(refused.value)


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


def test_a_checkpoint_with_the_first_names_of_its_tensors(data, tmp_path):
    config = everything(data, "loss.drloc=0.1", steps=12)
    whole = train(config, out=tmp_path / "whole", shown=False)
    run = stopped(config, tmp_path / "run", 7)
    old = {"objective.": "learner.", "ema.model.": "average.", "ema.drloc.": None}
    for path in (run.folder / "checkpoints").glob("*.safetensors"):
        tensors = {}
        for name, tensor in load_file(path).items():
            start = next((start for start in old if name.startswith(start)), "")
            if (first := old.get(start, start)) is not None:
                tensors[first + name.removeprefix(start)] = tensor
        save_file(tensors, path)
        about = json.loads(path.with_suffix(".json").read_text())
        about["hash"] = blake2b(path.read_bytes(), digest_size=16).hexdigest()
        path.with_suffix(".json").write_text(json.dumps(about))
    assert_same_run(resume(run.folder, shown=False), whole)
