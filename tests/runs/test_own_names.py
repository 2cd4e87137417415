"""Nothing is deleted or overwritten but what smallvit wrote, and nothing damaged is used."""

import json

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
    return Run.create(tmp_path / "run", RunConfig(), {"data": {}})


def test_an_edited_config_is_found(run):
    run.check_hash("config.yaml")
    path = run.folder / "config.yaml"
    path.write_text(path.read_text().replace("seed: 0", "seed: 9", 1))
    with pytest.raises(ValueError, match=r"config\.yaml is not the file that was written"):
        Run.open(run.folder).check_hash("config.yaml")


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
