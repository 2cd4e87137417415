"""Cross-validation: every image is tested exactly once, and a model on all images is left."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import smallvit
from smallvit.cli import app
from smallvit.data import load_data
from smallvit.evaluation import logits_of
from smallvit.evaluation.calibration import safe_temperature
from smallvit.runs import Run
from smallvit.runs.config import DataConfig, RunConfig
from smallvit.runs.dataset import open_data
from smallvit.runs.folder import folds_of
from smallvit.training.folds import resume_folds, tell_summary, train_folds
from smallvit.transfer.inputs import inputs_of
from smallvit.transfer.start import start_from
from tests.training.makers import Clock, arrays, make_images, tiny, weights


@pytest.fixture
def data(tmp_path):
    """Sixty different images, and four that nearly are four of them."""
    images = np.random.default_rng(3).integers(0, 256, (64, 16, 16, 3)).astype(np.uint8)
    labels = np.arange(64) % 4
    images[60:] = images[:4]
    images[60:, 0, 0] ^= 1
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    return tmp_path / "a.npz"


def opened(data, count=5, **options):
    config = {"source": str(data), "folds": count, **options}
    return [open_data(DataConfig(**config, fold=fold)) for fold in range(count)]


@pytest.mark.parametrize("count", [2, 5])
def test_every_image_is_tested_once(data, count):
    folds = opened(data, count)
    tested = [name for fold in folds for name in fold.split("test").names]
    assert len(tested) == 64
    assert set(tested) == set(load_data(data, val=0, test=0).split("train").names)
    for fold in folds:
        train, test = set(fold.split("train").names), set(fold.split("test").names)
        assert not train & test
        assert len(train | test) == 64
        assert "val" not in fold.splits
        assert fold.record()["made"] == {"test": 1 / count}


def test_classes_are_spread_evenly(data):
    for fold in opened(data):
        counts = np.bincount(fold.labels("test"), minlength=4)
        assert counts.min() >= 2
        assert counts.max() <= 5


def test_near_duplicates_stay_together(data):
    place = {
        name: number
        for number, fold in enumerate(opened(data))
        for name in fold.split("test").names
    }
    for number in range(4):
        assert place[f"a[{number}]"] == place[f"a[{60 + number}]"]


def test_the_seed_decides(data):
    def names(**options):
        return [fold.split("test").names for fold in opened(data, **options)]

    assert names() == names()
    assert names() != names(seed=1)


def test_validation_comes_from_what_is_not_tested(data):
    for fold in opened(data, val=0.2):
        parts = [set(fold.split(name).names) for name in ("train", "val", "test")]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 64
        assert 6 <= len(parts[1]) <= 16


def test_folds_that_cannot_be(data):
    whole = load_data(data, val=0, test=0)
    with pytest.raises(ValueError, match="fold is 5: allowed is 0 to 4"):
        whole.fold(5, 5)
    with pytest.raises(ValueError, match="folds is 65: allowed is 2 up to the 64 images"):
        whole.fold(0, 65)


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    """The folder and summary of two folds of 60 images, and those images."""
    folder = tmp_path_factory.mktemp("crossed")
    images, labels = make_images(60)
    np.savez(folder / "sixty.npz", images=images, labels=labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALLVIT_CACHE", str(folder / "cache"))
        config = tiny(folder / "sixty.npz", "data.folds=2", steps=30, batch=16)
        summary = train_folds(config, out=folder / "cross", shown=False)
    return folder / "cross", summary, images


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_folds_end_with_a_model_on_all_images(crossed):
    folder, summary, _ = crossed
    run = Run.open(folder)
    assert run.folder == folder / "model"
    assert run.finished
    assert run.info["data"]["counts"] == {"train": 60}
    assert run.config.schedule.steps == Run.open(folder / "fold-0").config.schedule.steps == 30
    assert run.info["cross_validation"] == {
        key: summary[key] for key in ("folds", "tested", "accuracy")
    }
    assert (summary["folds"], summary["tested"], summary["images"]) == (2, 60, 60)
    assert "all 60 images" in tell_summary(summary)[-1]
    different = weights(run), weights(folder / "fold-0")
    assert any(not torch.equal(different[0][name], different[1][name]) for name in different[0])
    assert [each.folder.name for each in folds_of(folder)] == ["fold-0", "fold-1"]
    with pytest.raises(ValueError, match="there are cross"):
        Run.open(folder.parent / "cros")


def test_the_folder_of_folds_is_a_model_for_every_command(crossed, tmp_path):
    folder, _, images = crossed
    Image.fromarray(images[0]).save(tmp_path / "one.png")
    predictor = smallvit.Predictor.open(folder)
    expected = predictor.predict([images[0]])[0]
    done = invoke("predict", folder, tmp_path / "one.png")
    assert done.exit_code == 0, done.output
    assert predictor.classes[int(expected.argmax())] in done.output
    exported = tmp_path / "model.safetensors"
    done = invoke("export", folder, "--format", "safetensors", "-o", exported)
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(
        smallvit.Predictor.open(exported).predict([images[0]])[0], expected, atol=1e-6
    )
    for source in (folder, exported):
        about = invoke("info", source).output
        assert "in 2 folds" in about
        assert "was not tested itself" in about
    done = invoke("explain", folder, tmp_path / "one.png", "--out", tmp_path / "maps")
    assert done.exit_code == 0, done.output
    assert list((tmp_path / "maps").glob("*.png"))
    assert inputs_of(folder) == inputs_of(folder / "model") != inputs_of("nowhere")
    shape = {"num_classes": 3, "image_size": 16, "in_channels": 3}
    started = start_from(str(folder), **shape)[0].state_dict()
    assert all(torch.equal(started[name], tensor) for name, tensor in weights(folder).items())


def test_evaluating_a_cross_validation_tests_every_image_by_the_fold_that_had_not_seen_it(
    crossed, tmp_path
):
    folder, summary, _ = crossed
    evaluation = smallvit.evaluate(folder)
    assert evaluation.count == 60
    assert evaluation.split == "2 folds"
    assert evaluation.accuracy.value == pytest.approx(summary["accuracy"]["value"])
    assert len(set(evaluation.predictions.names)) == 60
    done = invoke("evaluate", folder)
    assert done.exit_code == 0, done.output
    assert not (folder / "model" / "evaluation.json").exists()
    other = smallvit.evaluate(folder, Run.open(folder).config.data.source)
    assert other.split == "all"
    alone = tmp_path / "alone"
    (folder / "model").rename(alone)
    try:
        with pytest.raises(ValueError, match="so none is left to test it on"):
            smallvit.evaluate(alone)
    finally:
        alone.rename(folder / "model")


def test_the_temperature_is_that_of_what_the_folds_predict(crossed):
    folder = crossed[0]
    logits, labels = [], []
    for fold in folds_of(folder):
        dataset, card = fold.dataset(), fold.card
        assert card.temperature == 1
        pixels = dataset.pixels("test")
        logits.append(logits_of(fold.model(), pixels, mean=card.mean, std=card.std, device="cpu"))
        labels.append(dataset.labels("test"))
    fitted = safe_temperature(np.concatenate(logits), np.concatenate(labels))
    assert Run.open(folder).card.temperature == pytest.approx(fitted)
    assert fitted != 1


def test_the_report_of_folds_names_the_model_and_that_of_the_model_the_folds(crossed):
    folder, summary, _ = crossed
    page = smallvit.report(folder).read_text()
    assert str(folder / "model") in page.partition('id="final"')[2]
    page = smallvit.report(folder / "model").read_text().partition('id="untested"')[2]
    assert f"{100 * summary['accuracy']['value']:.1f}" in page.partition("</p>")[0]


def test_folds_without_their_model_say_how_to_get_it(crossed, tmp_path, monkeypatch):
    folder, _, _ = crossed
    before = weights(folder)
    (folder / "model").rename(tmp_path / "gone")
    with pytest.raises(ValueError, match=f"train --resume --out {folder}"):
        Run.open(folder)
    resumed = resume_folds(folder, shown=False)
    assert resumed["model"] == str(folder / "model")
    after = weights(folder)
    assert all(torch.equal(before[name], after[name]) for name in before)
    (folder / "elsewhere").mkdir()
    with pytest.raises(ValueError, match="not the folder of a cross-validation"):
        resume_folds(folder / "elsewhere")


def test_the_minutes_are_those_of_the_folds_and_the_model(crossed, tmp_path, monkeypatch):
    """Every training takes its share, also when those before it were faster or slower."""
    source = crossed[0].parent / "sixty.npz"
    config = tiny(source, "data.folds=2", "schedule.minutes=3", "loop.every=1000", batch=16)
    config = replace(config, schedule=replace(config.schedule, steps=None))
    clock = Clock(now=1000.0)
    clock.passes(monkeypatch, lambda step: 1.0)
    train_folds(config, out=tmp_path / "out", started=990.0, shown=False, clock=clock)
    assert 0.95 * 180 < clock.now - 990 <= 1.05 * 180
    steps = [Run.open(tmp_path / f"out/{name}").info["steps"] for name in ("fold-0", "fold-1", "")]
    assert min(steps) > 40
    begun = RunConfig.from_yaml((tmp_path / "out/config.yaml").read_text())
    assert begun.schedule.minutes == 3
    assert begun.data.trainings == 3


def test_a_model_that_was_trained_shorter_than_its_folds_says_so(crossed, tmp_path):
    folder, summary, _ = crossed
    assert (summary["steps"], summary["steps_of_folds"]) == (30, 30)
    assert "expect less" not in " ".join(tell_summary(summary))
    shutil.copytree(folder, tmp_path / "cross")
    Run.open(tmp_path / "cross").note(steps=6)
    said = "it took 6 steps, and the folds 30 on average"
    assert said in tell_summary({**summary, "steps": 6})[-1]
    assert said in invoke("info", tmp_path / "cross").output
    for source in (tmp_path / "cross", tmp_path / "cross" / "model"):
        assert said in smallvit.report([source], tmp_path / "page.html").read_text("utf-8")


def test_a_fold_that_goes_on_takes_no_time_of_the_others(crossed, tmp_path, monkeypatch):
    source, out = crossed[0].parent / "sixty.npz", tmp_path / "out"
    config = tiny(source, "data.folds=2", "schedule.minutes=3", "loop.every=10", batch=16)
    config = config.changed({"schedule": {"steps": None}, "loop": {"checkpoint_seconds": 0}})
    clock = Clock(now=1000.0)

    def interrupted(step):
        if step == 30 and clock.now > 1025:  # not in the trial
            raise KeyboardInterrupt
        return 1.0

    with monkeypatch.context() as patch:
        clock.passes(patch, interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_folds(config, out=out, shown=False, clock=clock)
    clock.passes(monkeypatch, lambda step: 1.0)
    began = clock.now
    resume_folds(out, shown=False, clock=clock)
    steps = [Run.open(out / name).info["steps"] for name in ("fold-0", "fold-1", "model")]
    assert min(steps) > 40
    assert clock.now - began < 3 * 60


def test_a_test_split_of_the_data_is_left_for_the_model(tmp_path):
    """The folds divide the training images; the model on all of them can then be tested."""
    source = arrays(tmp_path / "noise.npz", train=30, val=0, test=12)
    config = tiny(source, "data.folds=2", steps=1, batch=8)
    summary = train_folds(config, out=tmp_path / "cross", shown=False)
    assert (summary["tested"], summary["images"]) == (30, 30)
    assert "test split, 12 images" in Run.open(tmp_path / "cross").info["notes"][0]
    found = smallvit.evaluate(tmp_path / "cross", source)
    assert (found.split, found.count) == ("test", 12)
    with pytest.raises(ValueError, match="val"):
        smallvit.evaluate(tmp_path / "cross", split="val")
