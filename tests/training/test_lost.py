"""Nothing is lost, and nothing goes on silently with something else than before."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from smallvit.models.vit import ViT
from smallvit.reporting import report
from smallvit.runs.folder import Run
from smallvit.training import resume, train
from smallvit.training.classification import Classification
from tests.training.makers import arrays, assert_same_run, tiny
from tests.training.test_processes import WORKER
from tests.training.test_resume import ROOT, stopped

OFTEN = ("loop.every=2", "loop.checkpoint_seconds=0")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_fine_tuning_resumes_without_its_source(source, tmp_path):
    first = train(tiny(source, steps=2), out=tmp_path / "pre", shown=False)
    config = tiny(source, *OFTEN, f"model.pretrained={first.folder}", "model.frozen=1")
    whole = train(config, out=tmp_path / "whole", shown=False)
    run = stopped(config, tmp_path / "run", 3)
    shutil.rmtree(first.folder)
    assert_same_run(resume(run.folder, shown=False), whole)


def test_control_c_in_the_final_test_says_how_to_go_on(source, tmp_path, monkeypatch, logged):
    config = tiny(source, *OFTEN)
    whole = train(config, out=tmp_path / "whole", shown=False)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Classification, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config, out=tmp_path / "run", shown=False)
    assert f"go on with: smallvit train --resume --out {tmp_path / 'run'}" in logged()
    assert_same_run(resume(tmp_path / "run", shown=False), whole)


def test_a_strangers_config_fetches_nothing(source, tmp_path, monkeypatch):
    run = stopped(tiny(source, *OFTEN), tmp_path / "run", 3)
    path = run.folder / "config.yaml"
    text = path.read_text().replace("download: false", "download: true")
    path.write_text(text.replace(f"source: {source}", "source: cifar10"))
    assert Run.open(run.folder).config.data.download
    fetched = []
    from torchvision import datasets

    def read(root, download, **_):
        fetched.append(download)
        raise RuntimeError("Dataset not found")

    monkeypatch.setattr(datasets, "CIFAR10", read)
    for use in (Run.open(run.folder).dataset, lambda: resume(run.folder, shown=False)):
        with pytest.raises(ValueError, match="cifar10"):
            use()
    assert fetched == [False, False]
    with pytest.raises(ValueError, match="cifar10"):
        resume(run.folder, download=True, shown=False)
    assert fetched[2:] == [True]


@pytest.mark.parametrize("left", [0, 10])
def test_a_shortened_log_is_found(source, tmp_path, left):
    run = stopped(tiny(source, *OFTEN), tmp_path / "run", 3)
    os.truncate(run.folder / "log.jsonl", left)
    with pytest.raises(ValueError, match=r"log\.jsonl has \d+ bytes and had"):
        resume(run.folder, shown=False)
    assert (run.folder / "log.jsonl").stat().st_size == left


def test_the_report_names_a_damaged_log(source, tmp_path):
    run = train(tiny(source, *OFTEN), out=tmp_path / "run", shown=False)
    path = run.folder / "log.jsonl"
    path.write_bytes(bytes(100) + path.read_bytes())
    with pytest.raises(ValueError, match=r"log\.jsonl is not the file that was written"):
        report([run.folder], out=tmp_path / "report.html")


def as_format_1(folder: Path) -> None:
    """What the first version would have written."""
    info = json.loads((folder / "run.json").read_text())
    info = {k: v for k, v in info.items() if k not in ("hashes", "config", "plans")}
    (folder / "run.json").write_text(json.dumps({**info, "format": 1}))
    for path in (folder / "checkpoints").glob("*.json"):
        about = json.loads(path.read_text())
        del about["own_hash"], about["state"]["plans"]
        path.write_text(json.dumps(about))


def test_format_1_resumes(source, tmp_path):
    config = tiny(source, *OFTEN)
    whole = train(config, out=tmp_path / "whole", shown=False)
    run = stopped(config, tmp_path / "run", 3)
    as_format_1(run.folder)
    assert Run.open(run.folder).info["format"] == 1
    assert_same_run(resume(run.folder, shown=False), whole)


@pytest.mark.parametrize(("old", "new"), [("steps: 6", "steps: null"), ("every: 2", "every: null")])
def test_a_config_of_format_1_without_its_numbers(source, tmp_path, old, new):
    run = stopped(tiny(source, *OFTEN), tmp_path / "run", 3)
    as_format_1(run.folder)
    path = run.folder / "config.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=r"config\.yaml was edited"):
        resume(run.folder, shown=False)


def test_other_threads_are_said_and_recorded(source, tmp_path, logged):
    run = stopped(tiny(source, *OFTEN), tmp_path / "run", 3)
    torch.set_num_threads(2)
    done = resume(run.folder, shown=False)
    assert "the run began with 1 threads and goes on with 2" in logged()
    assert done.info["threads"] == 2
    assert done.info["earlier"] == [{"threads": 1}]


def test_one_resume_at_a_time(source, tmp_path):
    run = stopped(tiny(source, *OFTEN), tmp_path / "run", 3)
    before = (run.folder / "log.jsonl").read_bytes()
    with run.locked(), pytest.raises(ValueError, match="in use by another process"):
        resume(run.folder, shown=False)
    assert (run.folder / "log.jsonl").read_bytes() == before


def test_a_name_that_was_taken_meanwhile(source, tmp_path, monkeypatch):
    """Another training without --out creates the folder while this one reads its data."""
    monkeypatch.chdir(tmp_path)
    real = Run.create.__func__
    names = []

    def create(cls, folder, config, info):
        if not names:
            real(cls, folder, config, info)
        names.append(folder.name)
        return real(cls, folder, config, info)

    monkeypatch.setattr(Run, "create", classmethod(create))
    run = train(tiny(source, steps=2), shown=False)
    assert [name[-2:] for name in names] == ["-1", "-2"]
    assert run.folder.name == names[1]
    assert run.finished
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_exploded_weights_end_the_training(source, tmp_path):
    """The rate is that of a first step, small, and then of a second one that nothing survives."""
    changes = ("optim.lr=1e30", "schedule.warmup=0.1", "optim.clip=0", *OFTEN, "loop.every=1")
    with pytest.raises(ValueError, match=r"exploded|not finite"):
        train(tiny(source, *changes, steps=20), out=tmp_path / "run", shown=False)
    from smallvit.runs.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint
    for name, tensor in checkpoint[1].items():
        if name.startswith("objective."):
            assert float(tensor.abs().max()) < 1e12


def test_validation_survives_out_of_memory(source, tmp_path, monkeypatch, logged):
    config = tiny(source, *OFTEN)
    plain = train(config, out=tmp_path / "plain", shown=False)
    real = ViT.forward

    def forward(model, x):
        if not model.training and len(x) > 8:
            raise torch.OutOfMemoryError("no room for the images")
        return real(model, x)

    monkeypatch.setattr(ViT, "forward", forward)
    run = train(config, out=tmp_path / "run", shown=False)
    assert "out of memory: going on with 8 images at a time" in logged()
    ours, theirs = ([line["loss"] for line in each.log()] for each in (run, plain))
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


def pair(tmp_path, config, other=None, breaks=""):
    """Two plain processes, as torchrun would end one when the other ends; what each said.

    Args:
        other: The config of the second, if it is another.
        breaks: Code that each runs first.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "each.py"
    script.write_text(
        "import os, sys, runpy\n"
        "rank = int(os.environ['RANK'])\n"
        f"{breaks}\n"
        "try:\n"
        f"    runpy.run_path({str(WORKER)!r}, run_name='__main__')\n"
        "except ValueError as error:\n"
        "    sys.stdout.write(f'refused: {error}\\n')\n"
    )
    processes = []
    for rank, each in enumerate((config, other or config)):
        path = tmp_path / f"{rank}.yaml"
        path.write_text(each.to_yaml())
        environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, str(script), "train", str(path), str(tmp_path / "run")],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
    try:
        return [process.communicate(timeout=80)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_processes_with_other_data_are_refused(tmp_path):
    data = [arrays(tmp_path / f"{seed}.npz", seed=seed) for seed in (0, 1)]
    for said in pair(tmp_path, tiny(data[0]), tiny(data[1])):
        assert "refused: the processes do not have the same data" in said
    assert not (tmp_path / "run").exists()


BREAKS = """
from smallvit.models.vit import ViT
real, calls = ViT.forward, []
def forward(model, x):
    calls.append(model.training)
    return real(model, x) * (float('nan') if rank == 1 and sum(calls) == 3 else 1)
ViT.forward = forward
"""


def test_a_loss_that_is_not_finite_in_one_process_ends_all(source, tmp_path):
    for said in pair(tmp_path, tiny(source, *OFTEN, steps=40), breaks=BREAKS):
        assert "refused: the loss is not finite at step 2" in said


DIES = """
from smallvit.training.step import Stepper
real = Stepper.__call__
def call(stepper, batch, step, **named):
    if rank == 1 and step == 3:
        os._exit(9)
    real(stepper, batch, step, **named)
Stepper.__call__ = call
"""


def test_a_process_that_dies_ends_the_others_with_a_sentence(source, tmp_path):
    first, second = pair(tmp_path, tiny(source, *OFTEN, steps=200), breaks=DIES)
    assert "refused: another process of this training has ended" in first
    assert "Traceback" not in first
    assert "refused" not in second
