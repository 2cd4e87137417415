"""What users get wrong: a sentence before anything is trained."""

import os

import numpy as np
import pytest
from PIL import Image

from smallvit.runs.folder import Run
from smallvit.training import resume, train
from tests.training.makers import RANDOM, arrays, folder_of_images, make_images, tiny
from tests.training.test_resume import stopped


def refused(config, out, message, error=ValueError):
    with pytest.raises(error, match=message):
        train(config, out=out, shown=False)


@pytest.mark.parametrize("there", ["a file", "files"])
def test_out_is_taken(source, tmp_path, there):
    out = tmp_path / "run"
    if there == "a file":
        out.write_text("precious")
    else:
        out.mkdir()
        (out / "thesis.tex").write_text("precious")
    refused(tiny(source), out, "exists and nothing in it is overwritten")
    left = out if there == "a file" else out / "thesis.tex"
    assert left.read_text() == "precious"


def test_out_cannot_be_made(source, tmp_path):
    (tmp_path / "file").write_text("")
    refused(tiny(source), tmp_path / "file" / "run", "file", OSError)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_out_is_read_only(source, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    refused(tiny(source), tmp_path / "locked" / "run", "cannot be written", OSError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.name=cct_2_3x3", "cct_2_3x2"),
        ("model.name=''", "there is no model ''"),
        ("model.options.dimm=3", "dim"),
        ("model.options.drop_path=2", "drop_path is 2"),
        ("model.frozen=99", "allowed is 0"),
        ("data.image_size=15", "15"),
        ("data.allow=[everything]", "allowed are"),
        ("augment.mixup=0.8 augment.mix_group=12", "multiple of 12"),
        ("loop.repeats=5", "multiple of repeats 5"),
    ],
)
def test_what_does_not_fit(source, tmp_path, change, message):
    refused(tiny(source, *change.split()), tmp_path / "run", message)
    assert not (tmp_path / "run").exists()


def test_there_is_no_such_start(source, tmp_path):
    config = tiny(source, "model.pretrained=nowhere/at/all")
    refused(config, tmp_path / "run", "there is no file or run folder nowhere", OSError)


def test_there_is_no_such_data(tmp_path):
    refused(tiny(tmp_path / "nothing"), tmp_path / "run", "nothing")


def test_a_batch_larger_than_the_data(tmp_path, logged):
    data = arrays(tmp_path / "a.npz", train=21, val=6, test=6)
    run = train(tiny(data, *RANDOM, steps=2, batch=512), out=tmp_path / "run", shown=False)
    assert "batch_size 512 is larger than the training split: 16 now" in logged()
    assert run.config.loop.batch_size == 16
    assert Run.open(run.folder).config.loop.batch_size == 16


def test_too_few_images_for_a_mixing_group(tmp_path):
    data = arrays(tmp_path / "a.npz", train=6, val=3, test=3)
    refused(tiny(data, *RANDOM), tmp_path / "run", "fewer than a mixing group of 8")


def test_one_class(tmp_path):
    data = arrays(tmp_path / "a.npz", classes=1)
    refused(tiny(data), tmp_path / "run", "class")


def test_leaks_stop_the_run_unless_allowed(tmp_path):
    images, labels = make_images(60)
    images[50] = images[2]
    labels[50] = labels[2]
    split = np.array(["train"] * 40 + ["val"] * 8 + ["test"] * 12)
    np.savez(tmp_path / "a.npz", images=images, labels=labels, split=split)
    config = tiny(tmp_path / "a.npz", steps=2)
    refused(config, tmp_path / "run", "more than one split")
    assert not (tmp_path / "run").exists()
    allowed = config.changed({"data": {"allow": ["leaks"]}})
    assert train(allowed, out=tmp_path / "run", shown=False).finished


def test_data_that_changed_since_the_run_began(tmp_path):
    place = folder_of_images(tmp_path / "data")
    run = stopped(tiny(place, steps=6, batch=8), tmp_path / "run", 2)
    target = place / "class 0" / "0.png"
    before = target.read_bytes()
    other, _ = make_images(1, seed=77)
    Image.fromarray(other[0]).save(target)
    with pytest.raises(ValueError, match="has changed since the run began"):
        resume(run.folder, shown=False)
    target.write_bytes(before)
    new = place / "class 9" / "new.png"
    new.parent.mkdir()
    Image.fromarray(other[0]).save(new)
    with pytest.raises(ValueError, match=r"classes was .* and is .*class 9"):
        resume(run.folder, shown=False)
    new.unlink()
    new.parent.rmdir()
    assert resume(run.folder, shown=False).finished


def test_what_is_no_run_is_not_resumed(tmp_path):
    with pytest.raises(ValueError, match="is not a run folder"):
        resume(tmp_path, shown=False)


def test_a_run_that_dies_while_its_folder_is_made_leaves_nothing(source, tmp_path, monkeypatch):
    def die(path, data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("smallvit.runs.folder.write_json", die)
        with pytest.raises(KeyboardInterrupt):
            train(tiny(source), out=tmp_path / "run", shown=False)
    assert not list(tmp_path.iterdir())
    assert train(tiny(source, steps=1), out=tmp_path / "run", shown=False).finished
