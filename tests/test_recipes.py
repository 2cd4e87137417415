"""Recipes: the papers' numbers, and what `auto` makes of data."""

import math

import numpy as np
import pytest
from PIL import Image

from smallvit import plan
from smallvit.recipes.recipes import RECIPES, Facts, demo, drloc_weight
from smallvit.runs import RunConfig
from smallvit.runs.config import DataConfig
from smallvit.training.schedule import is_mixed, learning_rate

CIFAR = Facts(
    source="cifar100",
    images=50_000,
    classes=100,
    side=32,
    channels=3,
    device="cuda",
    mirrored=True,
    imbalance=1.0,
)


def made(name, **changes):
    return RECIPES[name](Facts(**{**CIFAR.__dict__, **changes}))[0]


def test_spt_lsa_is_the_papers_recipe():
    config = made("spt-lsa")
    assert config.model.name == "vit_9_p4+spt+lsa"
    assert (config.schedule.steps, config.loop.batch_size) == (117_100, 128)
    assert (config.optim.weight_decay, config.optim.decay) == (0.05, "all")
    assert config.augment.policy == "auto_cifar10"
    assert (config.augment.erasing, config.augment.smoothing) == (0.25, 0.1)
    assert (config.augment.mixup, config.augment.cutmix) == (1, 1)
    assert config.augment.mix_probability == 0.5
    assert learning_rate(11_710, 117_100, config.optim.lr, config.schedule) == config.optim.lr
    assert made("spt-lsa", side=64).model.name == "vit_9_p8+spt+lsa"
    assert made("spt-lsa", source="svhn").augment.flip == 0


def test_compact_is_the_papers_recipe():
    hundred, ten = made("compact"), made("compact", classes=10)
    assert (hundred.optim.lr, ten.optim.lr) == (6e-4, 5.5e-4)
    assert hundred.optim.weight_decay == ten.optim.weight_decay == 0.06
    assert hundred.schedule.epochs == 310
    steps = 310 * 390
    rates = [learning_rate(390 * e, steps, 6e-4, hundred.schedule) for e in (0, 10, 300, 309)]
    assert rates == pytest.approx([1e-6, 6e-4, 1e-5, 1e-5])
    assert (hundred.augment.erasing, ten.augment.erasing) == (0.25, 0)
    assert is_mixed(steps - 1, steps, hundred.schedule)
    assert is_mixed(174 * 390, steps, ten.schedule)
    assert not is_mixed(175 * 390, steps, ten.schedule)


def test_weight_of_dense_relative_localization():
    assert drloc_weight("swin_tiny_p2+spt") == drloc_weight("timm/swin_tiny") == 0.5
    assert drloc_weight("cvt_13") == drloc_weight("cct_7_3x1") == 0.1
    assert made("drloc").loss.drloc == 0.1
    assert not any(made(name).loss.drloc for name in ("auto", "spt-lsa", "compact"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("images", [20, 600, 5_000, 50_000, 200_000])
@pytest.mark.parametrize("side", [16, 28, 64, 224])
def test_auto_fits_its_budget(device, images, side):
    config = made("auto", device=device, images=images, side=side)
    assert config.loop.batch_size <= images
    assert not config.augment.mixed or config.loop.batch_size % config.augment.mix_group == 0
    seen = config.schedule.epochs * images
    assert seen <= max(6e6 if device == "cuda" else 1.8e5, 60 * images) * 1.01
    assert config.schedule.epochs >= 20
    assert RunConfig.from_yaml(config.to_yaml()) == config


def test_auto_looks_at_mirrors_colours_and_balance():
    assert made("auto").augment.flip == 0.5
    assert made("auto", mirrored=False).augment.flip == 0
    assert made("auto", side=28, channels=1).augment.policy == "none"
    assert made("auto").augment.policy == "trivial"
    assert made("auto", imbalance=30).loss.balanced
    assert not made("auto", imbalance=3).loss.balanced


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for number, name in enumerate(("cat", "dog")):
        (folder / name).mkdir()
        for i in range(12):
            pixels = random.integers(0, 100, (40 + i, 60, 3)) + 100 * number
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


def test_a_plan_says_what_it_chose(photos):
    made = plan(str(photos), device="cpu")
    assert made.config.model.name == "cct_4_7x2"
    assert made.config.data.source == str(photos)
    assert any("cct_4_7x2" in line for line in made.reasons)
    assert any("epochs of" in line for line in made.reasons)


def test_what_is_said_goes_before_the_recipe(photos):
    config = plan(
        str(photos),
        model="swin_tiny_p4",
        epochs=3,
        drloc=True,
        seed=5,
        device="cpu",
        options=DataConfig(image_size=32),
        changes={"optim": {"lr": 1e-5}, "data": {"val": 0.25}},
    ).config
    assert (config.model.name, config.schedule.epochs, config.seed) == ("swin_tiny_p4", 3, 5)
    assert (config.loss.drloc, config.optim.lr) == (0.5, 1e-5)
    assert (config.data.image_size, config.data.val) == (32, 0.25)
    for weight in (0.3, 1.0):
        assert plan(str(photos), drloc=weight, device="cpu").config.loss.drloc == weight


def test_papers_train_on_all_images(photos):
    papers = plan(str(photos), recipe="compact", device="cpu")
    assert "val" not in papers.dataset.splits
    assert "val" in plan(str(photos), device="cpu").dataset.splits


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"recipe": "spt-las"}, "did you mean 'spt-lsa'"),
        ({"model": "cct_7_3x9"}, "did you mean .cct_7_3x"),
        ({"epochs": 1, "minutes": 1}, "not both"),
        ({"changes": {"optim": {"lrr": 1}}}, "did you mean 'optim.lr'"),
        ({"changes": {"data": {"sorce": "x"}}}, "did you mean 'data.source'"),
        ({"device": "tpu"}, "this machine has"),
    ],
)
def test_bad_plans_are_sentences(photos, options, told):
    with pytest.raises(ValueError, match=told):
        plan(str(photos), **options)


@pytest.mark.slow
def test_the_demo_is_as_good_as_it_says(tmp_path):
    """A fixed number of steps; about two minutes on two idle cores."""
    from smallvit import Evaluation, train

    run = train(demo(), out=tmp_path / "demo", shown=False)
    assert run.info["steps"] * run.config.loop.batch_size < 1e5
    result = Evaluation.from_json((run.folder / "evaluation.json").read_text())
    assert result.accuracy.value >= 0.855
    assert math.isclose(result.recall.value, result.accuracy.value, abs_tol=1e-9)
