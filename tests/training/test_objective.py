"""The seam of objectives: a made-up one in one file and one line; λ of DRLoc; what is drawn."""

import numpy as np
import pytest
import torch
import yaml

from smallvit.models.build import make_model
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run
from smallvit.training import resume, train
from smallvit.training.objective import OBJECTIVES, find_objective
from tests.training.makers import RANDOM, arrays, assemble, assert_same_run, losses, tiny, untimed
from tests.training.test_resume import stopped

EVERYTHING = (
    "loss.objective=turning",
    "model.options.drop_path=0.2",
    "augment.padding=2",
    "optim.ema=0.9",
    "loop.every=2",
)


@pytest.fixture
def turning(monkeypatch):
    """The one line that a new objective needs beside its file."""
    monkeypatch.setitem(OBJECTIVES, "turning", "tests.training.turning:Turning")


@pytest.fixture
def unlabelled(tmp_path):
    """Images of a single class, dark on the left."""
    path = arrays(tmp_path / "a.npz", classes=1, train=64, val=16, test=16)
    with np.load(path) as stored:
        parts = dict(stored)
    parts["images"][:, :, :8] //= 8
    np.savez(path, **parts)
    return path


def test_every_objective_is_where_the_table_says():
    assert {find_objective(name).__name__ for name in OBJECTIVES} >= {"Classification"}
    with pytest.raises(ValueError, match=r"loss.objective is 'clasification'.*classification"):
        find_objective("clasification")


@pytest.mark.usefixtures("turning")
def test_a_made_up_objective_is_one_file_and_one_line(unlabelled, tmp_path):
    config = tiny(unlabelled, *EVERYTHING, steps=60)
    run = train(config, out=tmp_path / "run", shown=False)
    stored = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert stored["loss"]["objective"] == "turning"
    assert Run.open(run.folder).config.loss.objective == "turning"
    for line in run.log():
        assert {"loss", "turns_right", "brightness"} <= line.keys()
        assert "accuracy" not in line
        assert 0 <= line["turns_right"] <= 1
        assert 0 < line["brightness"] < 255
    assert losses(run)[-1] < 0.9 * losses(run)[0]
    val = [line for line in run.log() if line["kind"] == "val"]
    best = max(val, key=lambda line: (line["turns_right"], -line["loss"]))
    assert run.info["best_step"] == best["step"]
    assert run.finished
    assert "temperature" not in run.info
    assert not (run.folder / "evaluation.json").exists()
    # What was trained with the model is not saved with it.
    assert run.model()(torch.zeros(1, 3, 16, 16)).shape == (1, 1)
    with pytest.raises(ValueError, match="class"):
        train(tiny(unlabelled), out=tmp_path / "none", shown=False)


@pytest.mark.usefixtures("turning")
def test_its_progress_is_shown(unlabelled, tmp_path, logged):
    train(tiny(unlabelled, *EVERYTHING, steps=2), out=tmp_path / "run")
    assert "turns_right 0." in logged()


@pytest.mark.usefixtures("turning")
def test_it_is_resumed_exactly(unlabelled, tmp_path):
    config = tiny(unlabelled, *EVERYTHING, "loop.checkpoint_seconds=0", steps=12)
    whole = train(config, out=tmp_path / "whole", shown=False)
    run = resume(stopped(config, tmp_path / "run", 7).folder, shown=False)
    assert untimed(run) == untimed(whole)
    for name in ("weights.safetensors", "last.safetensors"):
        assert (run.folder / name).read_bytes() == (whole.folder / name).read_bytes()


@pytest.mark.usefixtures("turning")
def test_passes_do_not_change_it(unlabelled, tmp_path):
    still = ("model.options.attn_dropout=0.0", "model.options.dropout=0.0", "loop.every=1")
    one, two = (
        train(
            tiny(unlabelled, *EVERYTHING, *still, f"loop.accumulation={passes}"),
            out=tmp_path / f"{passes}",
            shown=False,
        )
        for passes in (1, 2)
    )
    np.testing.assert_allclose(losses(one), losses(two), atol=1e-5, rtol=0)


@pytest.mark.usefixtures("turning")
def test_views_draw_different_numbers(unlabelled):
    _, loader, stepper = assemble(tiny(unlabelled, *EVERYTHING))
    objective, batch, step = stepper.objective, loader.batch(0), torch.tensor(3)
    draws = objective.path_draws(step, batch.positions)
    assert len(draws) == len(objective.paths)
    for numbers in draws:
        first, second = numbers.chunk(2)
        assert len(first) == len(batch.positions)
        assert not torch.equal(first, second)
    images = [view.transform(batch.images, step, batch.positions) for view in objective.extra[:2]]
    assert not torch.equal(*images)


def test_stochastic_depth_draws_by_position(source):
    """Half a batch draws what the whole batch draws there."""
    _, loader, stepper = assemble(tiny(source, *RANDOM))
    positions, step = loader.batch(0).positions, torch.tensor(7)
    whole = stepper.objective.path_draws(step, positions)
    half = stepper.objective.path_draws(step, positions[16:])
    assert all(torch.equal(a[16:], b) for a, b in zip(whole, half, strict=True))


SWIN = {"embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2}
OURS = {"dim": 16, "depths": [1, 1], "num_heads": [1, 2], "window": 2}


@pytest.mark.parametrize(
    ("model", "weight"),
    [
        ({"name": "vit_lite_2_p4"}, 0.1),
        ({"name": "cifar_resnet56"}, 0.1),
        ({"name": "resnet18"}, 0.1),
        ({"name": "swin_tiny_p2+spt+lsa", "options": OURS}, 0.5),
        ({"name": "timm/swin_tiny_patch4_window7_224", "options": SWIN}, 0.5),
        ({"name": "timm/swin_tiny_patch4_window7_224+spt+lsa", "options": SWIN}, 0.5),
        ({"name": "timm/swin_tiny_patch4_window7_224", "options": SWIN, "pretrained": True}, 0.5),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_the_usual_weight_of_drloc(tmp_path, model, weight):
    data = arrays(tmp_path / "a.npz", train=16, val=4, test=4)
    if model.get("pretrained"):
        model = {**model, "pretrained": str(tmp_path / "start.pth")}
        start = make_model(
            model["name"],
            num_classes=7,
            image_size=16,
            in_channels=3,
            options={key: tuple(v) if isinstance(v, list) else v for key, v in SWIN.items()},
        )
        torch.save(start.state_dict(), model["pretrained"])
    plain = {**tiny(data, "loss.drloc=auto", steps=1, batch=8).to_dict(), "model": model}
    config = RunConfig.from_dict(plain)
    assert config.loss.drloc == "auto"
    run = train(config, out=tmp_path / "run", shown=False)
    assert run.config.loss.drloc == weight
    assert Run.open(run.folder).config.loss.drloc == weight


def test_a_usual_weight_is_the_same_when_resumed(source, tmp_path):
    config = tiny(source, "loss.drloc=auto", "loop.checkpoint_seconds=0", steps=6)
    whole = train(config, out=tmp_path / "whole", shown=False)
    run = stopped(config, tmp_path / "run", 3)
    assert_same_run(resume(run.folder, config=config, shown=False), whole)


RELEASED = ("loss.drloc=0.5", "loss.drloc_form=released", "schedule.epochs=6")
RISING = ("schedule.warmup=0.5", "schedule.horizon=2", "schedule.start=0", "schedule.end=0")


def test_the_released_form_of_drloc_has_a_rising_and_falling_weight(source):
    """The loss of one batch is linear in the share of λ that the step has."""
    config = tiny(source, *RELEASED, *RISING)
    _, loader, stepper = assemble(config)
    objective, batch = stepper.objective.eval(), loader.batch(0)
    shares, values = [], []
    for step in range(6):
        objective.advance(step, 6)
        shares.append(float(objective.drloc_share))
        loss, _ = objective(
            batch.images, batch.labels, torch.tensor(0), batch.positions, mixed=False
        )
        values.append(loss.item())
    assert shares == pytest.approx([0, 1 / 3, 2 / 3, 1, 8 / 9, 7 / 9])
    whole = values[3] - values[0]
    assert whole > 0.1
    assert [(value - values[0]) / whole for value in values] == pytest.approx(shares, abs=1e-5)


def test_a_released_run_resumes_exactly(source, tmp_path):
    config = tiny(source, *RELEASED, *RISING, "loop.every=2")
    whole = train(config, out=tmp_path / "whole", shown=False)
    halted = stopped(config, tmp_path / "halted", 3)
    assert_same_run(resume(halted.folder, shown=False), whole)


def test_a_late_test_is_cut_short_and_says_so(tmp_path, caplog):
    """At random, and the images that were tested have the logits that they have in a whole test."""
    path = arrays(tmp_path / "a.npz", train=32, val=24, test=700)
    dataset, _, stepper = assemble(tiny(path))
    objective, world = stepper.evaluated, stepper.world
    _, whole = objective.evaluate(dataset, world, late=lambda: False)
    assert whole.count == 700
    _, part = objective.evaluate(dataset, world, late=lambda: True)
    assert part.count == 35  # a twentieth
    assert "tested on 35 of 700 images" in caplog.text
    names = dict(zip(whole.predictions.names, whole.predictions.predicted, strict=True))
    assert part.predictions.names != whole.predictions.names[:35]
    for name, predicted in zip(part.predictions.names, part.predictions.predicted, strict=True):
        assert names[name] == predicted
