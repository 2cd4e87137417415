"""Masked images: hidden pixels predicted from the rest, for any model with a grid of tokens."""

import shutil
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from smallvit.cli import app
from smallvit.data import load_data
from smallvit.recipes import plan
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run
from smallvit.training import resume, train
from smallvit.training.objective import Objective
from tests.training.makers import arrays, assemble, folder_of_images, losses, tiny, untimed
from tests.training.test_resume import stopped

MASKED = ("loss.objective=masked", "augment.padding=2", "loop.every=2")


@pytest.fixture
def stripes(tmp_path):
    """Images of one class whose halves tell each other."""
    path = arrays(tmp_path / "stripes.npz", classes=1, train=64, val=16, test=16)
    with np.load(path) as stored:
        parts = dict(stored)
    parts["images"][:, :, 8:] = parts["images"][:, :, :8]
    np.savez(path, **parts)
    return path


def test_hidden_pixels_do_not_matter_and_their_error_is_the_loss(source):
    _, loader, stepper = assemble(tiny(source, "loss.objective=masked"))
    objective, batch, step = stepper.objective.eval(), loader.batch(0), torch.tensor(3)
    hidden = objective.hidden(step, batch.positions)
    assert hidden.shape == (32, 4, 4)
    assert (hidden.flatten(1).sum(1) == round(0.6 * 16)).all()
    assert not torch.equal(hidden, objective.hidden(torch.tensor(4), batch.positions))
    part = objective.hidden(step, batch.positions[16:])
    assert torch.equal(part, hidden[16:])
    pixels = hidden.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None]
    images = torch.where(pixels, torch.randint_like(batch.images, 256), batch.images)

    def computed(images):
        with torch.no_grad():
            return objective(images, batch.labels, step, batch.positions, mixed=False)[0]

    features = []
    objective.predict.register_forward_hook(lambda module, given, found: features.append(found))
    one, other = computed(batch.images), computed(images)
    assert torch.equal(*features)
    assert not torch.equal(one, other)
    x, _ = objective.still(batch.images, batch.labels, step, batch.positions)
    predicted = features[0].unflatten(1, (4, 4)).unflatten(3, (3, 4, 4))
    laid_out = predicted.permute(0, 3, 1, 4, 2, 5).reshape(x.shape)
    expected = (laid_out - x).abs()[pixels.expand_as(x)].mean()
    assert one == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cct_2_3x2", {"dim": 32, "num_heads": 2}),
        ("vit_lite_2_p4+spt+lsa", {"dim": 32, "num_heads": 2}),
        ("swin_tiny_p2", {"dim": 16, "depths": [1, 1], "num_heads": [1, 2], "window": 2}),
        ("resnet18", {}),
    ],
)
def test_any_model_with_a_grid(source, tmp_path, name, options):
    config = tiny(source, *MASKED, steps=2, batch=16)
    model = {"model": {"name": name, "options": options}}
    run = train(
        RunConfig.from_dict({**config.to_dict(), **model}), out=tmp_path / "run", shown=False
    )
    assert run.finished
    assert all(np.isfinite(losses(run)))


def test_it_learns_and_resumes_exactly(stripes, tmp_path):
    config = tiny(stripes, *MASKED, "loop.checkpoint_seconds=0", steps=60)
    whole = train(config, out=tmp_path / "whole", shown=False)
    val = losses(whole, "val")
    assert min(val) < 0.95 * val[0]
    best = min(whole.log(), key=lambda line: (line["kind"] != "val", line["loss"]))
    assert whole.info["best_step"] == best["step"]
    assert not (whole.folder / "evaluation.json").exists()
    run = resume(stopped(config, tmp_path / "run", 7).folder, shown=False)
    assert untimed(run) == untimed(whole)
    name = "weights.safetensors"
    assert (run.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_objectives_draw_apart():
    """Masks, paths and pairs have keys of their own beside the seed."""
    from smallvit.training import classification, masked, objective

    keys = (0, objective._PATHS, classification._PAIRS, masked._MASKS)
    assert len(set(keys)) == 4
    assert issubclass(masked.MaskedImages, Objective)


@pytest.fixture
def loose(tmp_path):
    """Images without class folders, some in a folder of folders."""
    labelled = folder_of_images(tmp_path / "labelled", 40)
    folder = tmp_path / "loose"
    folder.mkdir()
    for path in labelled.rglob("*.png"):
        shutil.copy(path, folder / f"{path.stem}.png")
    return folder


def test_a_folder_without_classes(loose):
    with pytest.raises(ValueError, match="40 images without class folders"):
        load_data(loose)
    data = load_data(loose, unlabelled=True)
    assert {name: len(samples) for name, samples in data.splits.items()} == {"train": 36, "val": 4}
    assert data.classes == ("image",)
    labelled = loose.parent / "labelled"
    plain, welcome = load_data(labelled), load_data(labelled, unlabelled=True)
    assert plain.fingerprint == welcome.fingerprint
    empty = loose.parent / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="no images"):
        load_data(empty, unlabelled=True)


def test_the_command_and_training_from_it(loose, tmp_path, monkeypatch):
    labelled = loose.parent / "labelled"
    tiny_words = "--set model.options.dim=32 --set model.options.num_heads=2 --device cpu"
    line = f"{tiny_words} --model cct_2_3x2 --set schedule.steps=4 --set loop.batch_size=16"
    words = f"pretrain {loose} {line} --image-size 16 --out {tmp_path}/start".split()
    monkeypatch.setattr(sys, "argv", ["smallvit", *words])
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    run = Run.open(tmp_path / "start")
    assert run.config.loss.objective == "masked"
    assert run.config.augment.mixed is False
    assert run.config.data.unlabelled
    assert "--pretrained" in done.output
    words = f"train {labelled} --pretrained {tmp_path}/start {tiny_words} --image-size 16".split()
    words += f"--set schedule.steps=2 --set loop.batch_size=8 --out {tmp_path}/tuned".split()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    tuned = Run.open(tmp_path / "tuned")
    assert tuned.evaluation().classes == ("class 0", "class 1", "class 2")
    assert any("head" in note for note in tuned.info["notes"])
    for command in ("predict", "evaluate"):  # its head has learned nothing
        refused = CliRunner().invoke(app, [command, str(run.folder), str(labelled)])
        assert isinstance(refused.exception, ValueError)
        assert "learned without labels" in str(refused.exception)
        assert f"train DATA --pretrained {run.folder}" in str(refused.exception)
    fresh = plan(labelled, model="cct_2_3x2", epochs=1, changes={"data": {"image_size": 16}}).config
    assert tuned.config.optim == fresh.optim  # not that of weights which know labels
    assert tuned.config.augment.policy == fresh.augment.policy


def test_a_start_decides_the_model_and_learns_as_usual(source, tmp_path):
    config = tiny(source, *MASKED, "data.unlabelled=true", steps=2).to_dict()
    start = RunConfig.from_dict({**config, "model": {"name": "hct2_xs_p4"}})
    run = train(start, out=tmp_path / "start", shown=False)
    fresh, begun, labelled = (
        plan(source, model=model, pretrained=path, epochs=30)
        for model, path in (
            ("hct2_xs_p4", None),
            (None, str(run.folder)),
            (None, str(train(tiny(source), out=tmp_path / "labelled", shown=False).folder)),
        )
    )
    assert begun.config.optim == fresh.config.optim
    assert begun.config.augment == fresh.config.augment
    assert begun.config.optim.optimizer == "muon"
    assert begun.config.model.name == ""
    assert "hct2_xs_p4: that of the start" in begun.reasons["model.name"]
    assert begun.config.data.mean == tuple(run.info["mean"])
    assert labelled.config.optim.layer_decay == 0.75
