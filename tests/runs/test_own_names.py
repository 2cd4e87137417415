"""Nothing is deleted or overwritten but what smallvit wrote, and nothing damaged is used."""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smallvit.data import cache
from smallvit.runs.checkpoint import (
    ExplodedError,
    Progress,
    load_checkpoint,
    remove_checkpoints,
    save_checkpoint,
)
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run
from smallvit.runs.places import TakenError, held, new_folder

GOLDEN = Path(__file__).parent.parent / "golden" / "runs" / "format_2"
STRANGERS = ("0.py", "notes.txt", "zz.doc", "000000001.txt")


def test_clearing_the_cache_leaves_what_people_put_there(tmp_path, monkeypatch):
    monkeypatch.setenv("SMALLVIT_CACHE", str(tmp_path))
    (tmp_path / f"{'0a' * 16}.npy").write_bytes(b"12345")
    strangers = ["results.json", "embeddings.npy", "package.lock", "thesis.part"]
    for name in strangers:
        (tmp_path / name).write_text("mine")
    (tmp_path / f"{'0b' * 16}.npy").symlink_to(tmp_path / "embeddings.npy")
    assert cache.clear() == 5
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"{'0b' * 16}.npy", *strangers])


@pytest.fixture
def tensors():
    return {"objective.model.weight": torch.ones(3)}


def test_checkpoints_leave_strangers_alone(tmp_path, tensors):
    folder = tmp_path / "checkpoints"
    (folder / "sub").mkdir(parents=True)
    for name in STRANGERS:
        (folder / name).write_text("mine")
    for step in (1, 2, 3):
        save_checkpoint(folder, Progress(step=step, steps=9), tensors)
    names = {p.name for p in folder.iterdir()}
    assert {*STRANGERS, "sub"} <= names
    assert "000000001.json" not in names
    remove_checkpoints(folder)
    assert {p.name for p in folder.iterdir()} == {*STRANGERS, "sub"}


def test_linked_checkpoints_are_refused(tmp_path, tensors):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    for use in (
        lambda: save_checkpoint(tmp_path / "checkpoints", Progress(step=1, steps=9), tensors),
        lambda: load_checkpoint(tmp_path / "checkpoints"),
    ):
        with pytest.raises(ValueError, match="is a link"):
            use()


@pytest.mark.parametrize("key", ["step", "log_size", "best_step"])
def test_an_edited_description_does_not_count(tmp_path, tensors, key):
    for step in (1, 2):
        save_checkpoint(tmp_path, Progress(step=step, steps=9), tensors)
    path = tmp_path / "000000002.json"
    about = json.loads(path.read_text())
    about["state"][key] += 1
    path.write_text(json.dumps(about))
    progress, _ = load_checkpoint(tmp_path)
    assert progress.step == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e29])
def test_exploded_weights_are_not_kept(tmp_path, tensors, value):
    save_checkpoint(tmp_path, Progress(step=1, steps=9), tensors)
    bad = {"objective.model.weight": torch.tensor([1.0, value])}
    with pytest.raises(ExplodedError, match=r"objective\.model\.weight"):
        save_checkpoint(tmp_path, Progress(step=2, steps=9), bad)
    progress, _ = load_checkpoint(tmp_path)
    assert progress.step == 1


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", RunConfig(tensorboard=True), {"data": {}})


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("seed: 0", "seed: 9", "seed was 0 and is 9"),
        ("lr: 0.001", "lr: 0.5", r"optim\.lr was 0\.001 and is 0\.5"),
        ("batch_size: 128", "batch_size: 64", r"loop\.batch_size was 128 and is 64"),
    ],
)
def test_an_edited_config_is_found_and_the_difference_named(run, old, new, named):
    path = run.folder / "config.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=rf"config\.yaml was edited.*{named}"):
        Run.open(run.folder)
    path.write_text("# mine\n" + text)
    assert Run.open(run.folder).config == run.config
    path.write_text("")
    with pytest.raises(ValueError, match="was edited"):
        Run.open(run.folder)


def test_data_may_have_moved(run):
    path = run.folder / "config.yaml"
    path.write_text(path.read_text().replace("source: ''", "source: elsewhere"))
    assert Run.open(run.folder).config.data.source == "elsewhere"


@pytest.mark.parametrize("name", ["weights.safetensors", "log.jsonl", "evaluation.json"])
def test_changed_files_are_found(tmp_path, name):
    run = Run.open(shutil.copytree(GOLDEN, tmp_path / "run"))
    data = bytearray((run.folder / name).read_bytes())
    data[-9] ^= 1
    (run.folder / name).write_bytes(data)
    use = {"weights.safetensors": run.model, "log.jsonl": run.log}.get(name, run.evaluation)
    with pytest.raises(ValueError, match=rf"{name} is not the file that was written"):
        use()


def test_plans_are_recorded(tmp_path):
    run = Run.open(GOLDEN)
    assert run.info["plans"] == [[0, 8]]
    assert (run.info["threads"], run.info["processes"]) == (1, 1)


def test_evaluating_again_records_a_new_hash(tmp_path):
    run = Run.open(shutil.copytree(GOLDEN, tmp_path / "run"))
    evaluation = replace(run.evaluation(), temperature=1.5)
    run.save_evaluation(evaluation)
    assert run.evaluation() == Run.open(run.folder).evaluation() == evaluation
    assert not (run.folder / "lock").exists()


def test_a_taken_folder_of_a_faster_process(tmp_path, monkeypatch):
    """Two trainings without --out choose the same name before either has created it."""
    monkeypatch.chdir(tmp_path)
    first = Run.create(new_folder("ph", "m"), RunConfig(), {})
    with pytest.raises(TakenError):
        Run.create(first.folder, RunConfig(), {})
    assert new_folder("ph", "m") != first.folder


def test_a_run_folder_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    run = Run.create(tmp_path / "link", RunConfig(), {})
    assert (tmp_path / "link").is_symlink()
    assert Run.open(tmp_path / "real").config == run.config


def test_a_temporary_file_that_is_a_link_is_not_followed(tmp_path, tensors):
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "000000001.safetensors.part").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        save_checkpoint(folder, Progress(step=1, steps=9), tensors)
    assert victim.read_text() == "mine"


def test_exploded_best_weights_are_not_kept(tmp_path, tensors):
    progress = Progress(step=1, steps=9, best_weights={"weight": torch.tensor([float("nan")])})
    with pytest.raises(ExplodedError, match=r"best\.weight"):
        save_checkpoint(tmp_path, progress, tensors)


def test_the_lock_names_its_process_and_goes_with_it(run):
    lock = run.folder / "lock"
    code = (
        "import sys; from smallvit.runs.folder import Run; run = Run.open(sys.argv[1])\n"
        "with run.locked(): print('locked', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(run.folder)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "locked\n"
    with pytest.raises(ValueError, match=rf"in use by another process \({other.pid} on "):
        run.locked().__enter__()
    assert {"pid", "host", "start"} == json.loads(lock.read_text()).keys()
    other.kill()
    other.communicate()
    assert lock.exists()
    with run.locked():
        assert json.loads(lock.read_text())["pid"] == os.getpid()
    assert not lock.exists()


def test_a_lock_of_a_process_that_cannot_be(tmp_path):
    about = {"pid": 10**30, "host": socket.gethostname(), "start": "now"}
    (tmp_path / "lock").write_text(json.dumps(about))
    assert not held(tmp_path / "lock")


def test_one_writer_at_a_time(run):
    with (
        run.locked(),
        pytest.raises(ValueError, match="in use by another process"),
        Run.open(run.folder).locked(),
    ):
        pass
    with run.locked():
        pass


def test_links_in_a_run_folder_are_refused(run, tmp_path):
    (tmp_path / "victim.txt").write_text("mine")
    (run.folder / "log.jsonl").symlink_to(tmp_path / "victim.txt")
    with pytest.raises(ValueError, match="is a link"), run.locked():
        pass
    assert (tmp_path / "victim.txt").read_text() == "mine"
