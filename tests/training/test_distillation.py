"""Distillation: a finished run teaches beside the labels."""

import re
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from smallvit.cli import app
from smallvit.recipes.plan import plan
from smallvit.reporting import report
from smallvit.runs.changes import changes_of, layered
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run
from smallvit.training import resume, train
from tests.training.makers import RANDOM, arrays, assemble, assert_same_run, tiny
from tests.training.test_resume import stopped


@pytest.fixture
def teacher(source, tmp_path):
    """A finished run of another model on the same images."""
    return train(hybrid(source), out=tmp_path / "teacher", shown=False)


def hybrid(source, *settings):
    config = tiny(source, *settings, steps=4).to_dict()
    return RunConfig.from_dict({**config, "model": {"name": "hct2_xs_p4"}})


def taught(source, teacher, *settings, **budget):
    wanted = ("loss.objective=distillation", f"loss.teacher={teacher.folder}", *settings)
    return tiny(source, *wanted, **budget)


def computed(objective, batch):
    with torch.no_grad():
        return objective(*batch[:2], torch.tensor(3), batch.positions, mixed=True)[0]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_loss_is_that_of_labels_and_of_the_teacher(source, teacher, share):
    config = taught(source, teacher, *RANDOM, f"loss.teacher_share={share}")
    _, loader, stepper = assemble(config)
    objective, batch = stepper.objective, loader.batch(0)
    objective.drop_paths(None)
    objective.eval()
    x, targets = objective.mixing(*batch[:2], torch.tensor(3), batch.positions)
    with torch.no_grad():
        own, told = objective.model(x).double(), teacher.model()(x).double()
    labels = -(targets.double() * own.log_softmax(1)).sum(1).mean()
    ours, theirs = (own / 2).softmax(1), (told / 2).softmax(1)
    divergence = 4 * (theirs * (theirs / ours).log()).sum(1).mean()
    expected = (1 - share) * labels + share * divergence
    assert computed(objective, batch) == pytest.approx(float(expected), rel=1e-4)


def test_it_sees_images_as_it_knows_them(teacher, tmp_path):
    """Another size, and another normalisation."""
    larger = arrays(tmp_path / "larger.npz", size=24)
    normalised = ("data.mean=[0.1,0.2,0.3]", "data.std=[0.4,0.5,0.6]")
    _, _, stepper = assemble(taught(larger, teacher, *normalised))
    objective = stepper.objective
    shown = []
    objective.helpers[0].register_forward_pre_hook(lambda module, given: shown.append(given[0]))
    images = torch.full((2, 3, 24, 24), 51, dtype=torch.uint8)
    labels, step = torch.zeros(2, dtype=torch.long), torch.tensor(0)
    with torch.no_grad():
        objective(images, labels, step, torch.arange(2), mixed=False)
    card = teacher.card
    expected = (0.2 - torch.tensor(card.mean)) / torch.tensor(card.std)
    assert shown[0].shape == (2, 3, *card.image_size)
    assert shown[0].mean((0, 2, 3)).tolist() == pytest.approx(expected.tolist(), rel=1e-4)


def test_the_teacher_is_neither_trained_nor_saved(source, teacher, tmp_path):
    before = {key: value.clone() for key, value in teacher.model().state_dict().items()}
    config = taught(source, teacher, "optim.ema=0.9", steps=6)
    _, loader, stepper = assemble(config)
    model = stepper.objective.helpers[0]
    assert stepper.ema.helpers[0] is model
    for step in range(2):
        stepper(loader.batch(step), step, lr=1e-3, mixed=False)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())
    held = {id(p) for p in model.parameters()}
    assert not held & {id(p) for p in stepper.objective.parameters()}
    assert not [key for key in stepper.state_dict() if "teacher" in key]
    run = train(config, out=tmp_path / "run", shown=False)
    assert run.finished
    assert run.config.loss.teacher_hash == teacher.info["hashes"]["weights.safetensors"]
    assert any("hct2_xs_p4" in note and "teaches" in note for note in run.info["notes"])
    assert not any("too high" in note for note in run.info["notes"])


def test_it_learns_what_the_teacher_says_without_any_label(tmp_path):
    """Labels that say nothing, and a teacher that knows better."""
    source = arrays(tmp_path / "data.npz", train=96)
    good = train(tiny(source, steps=60), out=tmp_path / "teacher", shown=False)
    with np.load(source) as stored:
        parts = dict(stored)
    shuffled = np.random.default_rng(0).permutation(parts["labels"])
    parts["labels"] = np.where(parts["split"] == "train", shuffled, parts["labels"])
    np.savez(wrong := tmp_path / "wrong.npz", **parts)
    config = taught(wrong, good, "loss.teacher_share=1", steps=60)
    run = train(config, out=tmp_path / "run", shown=False)
    assert good.evaluation().metrics["accuracy"].value > 0.8
    assert run.evaluation().metrics["accuracy"].value > 0.8
    assert not any("too high" in note for note in run.info["notes"])  # the test images are the same


def test_resuming_is_exact_and_knows_its_teacher(source, teacher, tmp_path):
    config = taught(source, teacher, *RANDOM, "loop.every=2", steps=8)
    whole = train(config, out=tmp_path / "whole", shown=False)
    run = stopped(config, tmp_path / "part", 5)
    other = tmp_path / "elsewhere"
    teacher.folder.rename(other)
    with pytest.raises(ValueError, match="is not a run folder"):
        resume(run.folder, shown=False)
    train(hybrid(source, "seed=1"), out=teacher.folder, shown=False)
    with pytest.raises(ValueError, match="not the teacher that this run began with"):
        resume(run.folder, shown=False)
    shutil.rmtree(teacher.folder)
    other.rename(teacher.folder)
    assert_same_run(resume(run.folder, shown=False), whole)


def test_what_cannot_teach(source, teacher, tmp_path):
    with pytest.raises(ValueError, match="name a finished run with --teacher"):
        train(tiny(source, "loss.objective=distillation"), out=tmp_path / "a", shown=False)
    with pytest.raises(ValueError, match="a teacher needs 'distillation'"):
        train(tiny(source, f"loss.teacher={teacher.folder}"), out=tmp_path / "a", shown=False)
    fewer = arrays(tmp_path / "fewer.npz", classes=2)
    with pytest.raises(ValueError, match="cannot teach here: its classes are not these"):
        train(taught(fewer, teacher), out=tmp_path / "a", shown=False)
    more = arrays(tmp_path / "more.npz", classes=4)
    with pytest.raises(ValueError, match="cannot teach here: it does not know 3"):
        train(taught(more, teacher), out=tmp_path / "a", shown=False)
    with pytest.raises(ValueError, match="has seen images of every fold"):
        taught(source, teacher, "data.folds=3")
    with pytest.raises(ValueError, match="teacher_share is 2"):
        taught(source, teacher, "loss.teacher_share=2")
    unlabelled = hybrid(source, "loss.objective=masked")
    blind = train(unlabelled, out=tmp_path / "blind", shown=False)
    with pytest.raises(ValueError, match="it was trained without labels"):
        train(taught(source, blind), out=tmp_path / "a", shown=False)
    model = teacher.info["model"]
    wrong = teacher.note(model={**model, "image_size": [32, 32]})
    with pytest.raises(ValueError, match="its model has another image size"):
        train(taught(source, wrong), out=tmp_path / "a", shown=False)
    (teacher.folder / "weights.safetensors").rename(tmp_path / "gone")
    bare = teacher.note(hashes={})
    with pytest.raises(ValueError, match=r"damaged: it has no weights\.safetensors"):
        train(taught(source, bare), out=tmp_path / "a", shown=False)
    teacher.note(status="training")
    with pytest.raises(ValueError, match="it is not finished"):
        train(taught(source, teacher), out=tmp_path / "a", shown=False)
    assert not (tmp_path / "a").exists()


def exchanged(source, path):
    """The same images, some of which are tested here and trained on there."""
    with np.load(source) as stored:
        parts = dict(stored)
    split = parts["split"]
    split[:8], split[-8:] = "test", "train"
    np.savez(path, **parts)
    return path


def test_a_split_that_the_teacher_may_have_seen_is_noted(teacher, source, tmp_path):
    other = arrays(tmp_path / "other.npz", seed=1)
    swapped = exchanged(source, tmp_path / "swapped.npz")
    for number, data in enumerate((other, swapped)):
        run = train(taught(data, teacher, steps=2), out=tmp_path / f"run {number}", shown=False)
        assert any("the accuracy is too high" in note for note in run.info["notes"])
    old = {key: value for key, value in teacher.info["data"].items() if key != "tested"}
    teacher.note(data=old)  # as older versions record it
    run = train(taught(source, teacher, steps=2), out=tmp_path / "old", shown=False)
    assert any("the accuracy is too high" in note for note in run.info["notes"])


def test_a_teacher_may_move(source, teacher, tmp_path, monkeypatch):
    """A relative path is kept as an absolute one, and another may be written into the config."""
    monkeypatch.chdir(tmp_path)
    config = taught(source, teacher, "loss.teacher=teacher", "loop.every=2")
    run = stopped(config, tmp_path / "run", 3)
    assert run.config.loss.teacher == str(teacher.folder)
    monkeypatch.chdir("/")
    moved = teacher.folder.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="is not a run folder"):
        resume(run.folder, shown=False)
    path = run.folder / "config.yaml"
    text = path.read_text()
    path.write_text(text.replace(str(teacher.folder), str(moved)))
    assert resume(run.folder, shown=False).finished
    again = layered(run.config.to_dict(), changes_of([f"loss.teacher={moved}"]))
    assert again["loss"]["teacher_hash"] == ""
    path.write_text(text.replace("teacher_share: 0.9", "teacher_share: 0.8"))
    with pytest.raises(ValueError, match=r"loss\.teacher_share was 0\.9 and is 0\.8"):
        Run.open(run.folder)


def test_only_the_model_is_shown_images_to_measure_on(source, teacher):
    _, loader, stepper = assemble(taught(source, teacher, "optim.ema=0.9"))
    asked = []
    stepper.ema.helpers[0].register_forward_hook(lambda *_: asked.append(None))
    batch = loader.batch(0)
    stepper.ema.show(*batch[:2], torch.tensor(0), batch.positions, mixed=False)
    assert not asked


def test_the_option_plans_it(source, teacher, tmp_path):
    chosen = plan(source, epochs=1, changes=changes_of([f"loss.teacher={teacher.folder}"]))
    assert chosen.config.loss.objective == "distillation"
    assert "counts beside the labels" in chosen.reasons["loss.objective"]
    assert plan(source, epochs=1).config.loss.objective == "classification"
    expected = [
        plan(source, minutes=1, speed=1e4, changes=changes).reasons["schedule.minutes"]
        for changes in ({}, {"loss": {"teacher": str(teacher.folder)}})
    ]
    alone, beside = (
        float(re.search(r"about ([\d,]+)", each)[1].replace(",", "")) for each in expected
    )
    assert beside < alone
    with pytest.raises(ValueError, match="is not a run folder"):
        plan(source, epochs=1, changes={"loss": {"teacher": str(tmp_path / "none")}})
    assert "--teacher" not in CliRunner().invoke(app, ["pretrain", "--help"]).output
    out = tmp_path / "run"
    words = ["train", str(source), "--teacher", str(teacher.folder), "--out", str(out)]
    result = CliRunner().invoke(app, [*words, "--epochs", "1", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert Run.open(out).config.loss.teacher == str(teacher.folder)
    assert f"taught by {teacher.folder}," in report(out).read_text()
