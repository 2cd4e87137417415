"""Numbers of images that a model has learned from are never shown as those of new images."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import smallvit
from smallvit.cli import app
from smallvit.reporting import report
from smallvit.runs import Run
from smallvit.training import train
from smallvit.training.folds import train_folds
from smallvit.training.train import next_folder
from tests.training.makers import make_images, tiny


@pytest.fixture
def images(tmp_path):
    """Sixty images without splits: a seed decides which are tested."""
    pixels, labels = make_images(60)
    np.savez(tmp_path / "sixty.npz", images=pixels, labels=labels)
    return tmp_path / "sixty.npz"


@pytest.fixture
def first(images, tmp_path):
    return train(tiny(images, "data.val=0", steps=2), out=tmp_path / "first", shown=False)


def after(run, images, *assignments):
    return tiny(images, f"model.pretrained={run.folder}", *assignments, steps=2)


def text_of(run, tmp_path):
    return report([run], tmp_path / "page.html").read_text(encoding="utf-8")


def test_test_images_that_the_start_has_learned_from_are_counted(first, images, tmp_path, caplog):
    config = after(first, images, "data.seed=1", "data.val=0")
    run = train(config, out=tmp_path / "second", shown=False)
    known = set(first.dataset().split("train").names)
    tested = run.dataset().split("test").names
    count = len(known & set(tested))
    assert 0 < count < len(tested)
    assert run.info["seen_before"] == count
    assert any(f"has learned from {count} of the 12 test images" in n for n in run.info["notes"])
    page = text_of(run, tmp_path)
    assert "it had never seen" not in page
    assert "too good to be true" in page
    smallvit.evaluate(run)
    assert f"had learned from {count} of these images" in caplog.text
    # What a start had seen is seen by what starts from it.
    third = after(run, images, "data.seed=1", "data.val=0")
    assert train(third, out=tmp_path / "third", shown=False).info["seen_before"] == count


@pytest.mark.parametrize(("name", "called"), [("", "first"), ("+spt", "first-spt")])
def test_folders_are_called_after_the_start(first, images, tmp_path, monkeypatch, name, called):
    monkeypatch.chdir(tmp_path)
    config = after(first, images, f"model.name='{name}'", "model.options={}")
    run = train(config, shown=False)
    assert run.folder.name == f"sixty-{called}-1"
    assert next_folder(replace(config, data=replace(config.data, folds=3))).name == (
        f"sixty-{called}-3-folds-1"
    )


def test_the_command_says_it_beside_the_accuracy(first, images, tmp_path):
    config, out = after(first, images, "data.seed=1", "data.val=0"), tmp_path / "second"
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    words = ["train", "-c", str(tmp_path / "config.yaml"), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    count = Run.open(out).info["seen_before"]
    assert f"the start had learned from {count} of these images" in " ".join(done.output.split())


def test_the_same_test_images_are_no_concern(first, images, tmp_path):
    run = train(after(first, images), out=tmp_path / "second", shown=False)
    assert run.info["seen_before"] == 0
    assert not any("too high" in note for note in run.info["notes"])
    assert "it had never seen" in text_of(run, tmp_path)


def test_where_the_images_of_the_start_are_gone_a_note_says_so(first, images, tmp_path):
    pixels, labels = make_images(60, seed=5)
    np.savez(tmp_path / "others.npz", images=pixels, labels=labels)
    images.unlink()
    run = train(after(first, tmp_path / "others.npz"), out=tmp_path / "second", shown=False)
    assert any("are not here any more" in note for note in run.info["notes"])


def test_folds_do_not_start_from_what_was_trained_on_them(first, images, tmp_path):
    with pytest.raises(ValueError, match="with --folds every image is tested"):
        train_folds(after(first, images, "data.folds=2"), out=tmp_path / "folds", shown=False)


@pytest.mark.parametrize("out", ["folds", "new/folds", "empty", None])
def test_nothing_is_left_of_folds_that_were_refused(first, images, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="with --folds every image is tested"):
        train_folds(after(first, images, "data.folds=2"), out=out, shown=False)
    assert sorted(tmp_path.rglob("*")) == before


def test_evaluating_on_training_images_says_so(first, images, tmp_path, logged):
    smallvit.evaluate(first)
    assert "trained on" not in logged()
    smallvit.evaluate(first, images)
    assert "was trained on, or chosen by, 48 of these 60 images" in logged()


def test_an_unfinished_run_is_used_with_a_warning(first, images, tmp_path, logged):
    smallvit.Predictor.open(first.folder)
    assert "not finished" not in logged()
    shutil.copytree(first.folder, tmp_path / "part")
    Run.open(tmp_path / "part").note(status="interrupted", step=1)
    for use in (smallvit.Predictor.open, smallvit.evaluate, smallvit.export):
        before = len(logged())
        use(tmp_path / "part")
        assert "is not finished after 1 of 2 steps" in logged()[before:]
        assert f"smallvit train --resume --out {tmp_path / 'part'}" in logged()[before:]
