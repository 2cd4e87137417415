"""Files and machines that are not as before: what is said names the right reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smallvit.cli import app
from smallvit.inference.evaluate import evaluate
from smallvit.runs.folder import Run
from smallvit.runs.places import refuse_taken
from smallvit.training import resume
from smallvit.training.folds import resume_folds, train_folds
from tests.training.makers import assert_same_run, folder_of_images, tiny
from tests.training.test_resume import ROOT, WORKER, stopped

OFTEN = ("loop.every=2", "loop.checkpoint_seconds=0")

TRUNCATES = """
import os, sys, runpy
from pathlib import Path
from smallvit.training.step import Stepper
real = Stepper.__call__
def call(stepper, batch, step, **named):
    if step == 3:
        for path in Path(os.environ["SMALLVIT_CACHE"]).glob("*.npy"):
            os.truncate(path, 200)
    real(stepper, batch, step, **named)
Stepper.__call__ = call
try:
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
except OSError as error:
    sys.stdout.write(f"refused: {error}")
"""


def test_a_cache_that_is_shortened_under_a_training(tmp_path):
    """In a process of its own, which SIGBUS would end; going on decodes the images again."""
    source = folder_of_images(tmp_path / "data")
    config, out = tiny(source, *OFTEN, steps=8, batch=8), tmp_path / "run"
    (tmp_path / "it.yaml").write_text(config.to_yaml())
    words = ["-c", TRUNCATES, str(WORKER), "train", str(tmp_path / "it.yaml"), str(out)]
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "refused: " in done.stdout
    assert ".npy was shortened while it was in use" in done.stdout
    assert resume(out, shown=False).finished


def test_another_number_of_processes_is_said_and_recorded(source, tmp_path, logged):
    run = stopped(tiny(source, *OFTEN), tmp_path / "run", 3)
    run.note(processes=2)
    done = resume(run.folder, shown=False)
    assert "the run began with 2 processes and goes on with 1" in logged()
    assert done.info["processes"] == 1
    assert done.info["earlier"] == [{"processes": 2}]


def test_an_empty_config_is_not_that_of_the_run(source, tmp_path):
    run = stopped(tiny(source, *OFTEN), tmp_path / "run", 3)
    (run.folder / "config.yaml").write_text("")
    with pytest.raises(ValueError, match=r"config\.yaml was edited after the run began"):
        resume(run.folder, shown=False)


def test_a_renamed_image_is_not_called_another_image(tmp_path):
    place = folder_of_images(tmp_path / "data")
    run = stopped(tiny(place, *OFTEN, batch=8), tmp_path / "run", 2)
    (place / "class 0" / "0.png").rename(place / "class 0" / "zero.png")
    with pytest.raises(ValueError, match="names of some images are not the same"):
        resume(run.folder, shown=False)


def test_the_advice_on_unreadable_images_can_be_followed(tmp_path):
    place = folder_of_images(tmp_path / "data")
    (place / "class 0" / "0.png").write_bytes(b"no image")
    config = tiny(place, steps=2, batch=8)
    (tmp_path / "it.yaml").write_text(config.to_yaml())
    line = ["train", "-c", str(tmp_path / "it.yaml"), "--out", str(tmp_path / "run")]
    refused = CliRunner().invoke(app, line)
    assert refused.exit_code != 0
    assert "leave them out with --allow unreadable" in f"{refused.output}{refused.exception}"
    done = CliRunner().invoke(app, [*line, "--allow", "unreadable"])
    assert done.exit_code == 0, done.output
    assert Run.open(tmp_path / "run").finished


def test_folds_that_died_while_the_first_folder_was_made(source, tmp_path):
    """What the dead process left is ours, and no reason to refuse the same command."""
    config = tiny(source, *OFTEN, "data.folds=2", steps=2)
    whole, out = tmp_path / "whole", tmp_path / "folds"
    train_folds(config, out=whole, shown=False)
    (out / ".new-run-abc" / "run").mkdir(parents=True)
    train_folds(config, out=out, shown=False)
    for fold in ("fold-0", "fold-1"):
        assert_same_run(out / fold, whole / fold)
    assert resume_folds(out, shown=False)["accuracy"]
    (out / "notes.txt").touch()
    with pytest.raises(ValueError, match="nothing in it is overwritten"):
        train_folds(config, out=out, shown=False)


def test_a_folder_with_hidden_files_of_others_is_taken(tmp_path: Path):
    (tmp_path / ".mine").touch()
    with pytest.raises(ValueError, match="nothing in it is overwritten"):
        refuse_taken(tmp_path)


def test_killed_between_the_end_and_its_tidying(source, tmp_path):
    """The run is finished; its checkpoints go when somebody asks to go on."""
    config = tiny(source, *OFTEN, "data.folds=2", steps=2)
    train_folds(config, out=tmp_path / "folds", shown=False)
    left = [tmp_path / "folds" / "fold-0" / "checkpoints", tmp_path / "folds/fold-1/checkpoints"]
    for folder in left:
        folder.mkdir()
        (folder / "000000002.json").touch()
    with pytest.raises(ValueError, match="is finished"):
        resume(left[0].parent, shown=False)
    assert not left[0].exists()
    resume_folds(tmp_path / "folds", shown=False)
    assert not left[1].exists()


def test_a_run_finds_its_data_from_another_folder(tmp_path, monkeypatch):
    """Relative to where the run began; both may have been moved together since."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    folder_of_images(project / "photos")
    elsewhere.mkdir()
    monkeypatch.chdir(project)
    run = stopped(tiny("photos", *OFTEN, batch=8), Path("runs/first"), 2)
    assert run.info["data"]["path"] == os.path.join("..", "..", "photos")
    project.rename(tmp_path / "moved")
    monkeypatch.chdir(elsewhere)
    done = resume(tmp_path / "moved" / "runs" / "first", shown=False)
    assert done.finished
    assert done.config.data.source == "photos"
    assert evaluate(done).count == len(done.dataset().labels("test"))


def test_data_that_is_gone_is_named_with_its_place(tmp_path, monkeypatch):
    folder_of_images(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    run = stopped(tiny("photos", *OFTEN, batch=8), tmp_path / "run", 2)
    (tmp_path / "photos").rename(tmp_path / "pictures")
    with pytest.raises(ValueError, match=r"photos, which is not at .*photos: put it back, or wri"):
        resume(run.folder, shown=False)
    text = (run.folder / "config.yaml").read_text()
    (run.folder / "config.yaml").write_text(text.replace("source: photos", "source: pictures"))
    assert resume(run.folder, shown=False).finished
