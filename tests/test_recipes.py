"""Recipes: the papers' numbers, and what `auto` makes of data."""

import math
import re
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

import smallvit
from smallvit.augment.config import PRESETS
from smallvit.config_io import field_at, leaf
from smallvit.recipes import ADDITIONS, RECIPES, Facts
from smallvit.recipes.speed import OURS, RECORDED, cost, measure_speed, rate_of
from smallvit.runs import RunConfig
from smallvit.training.optim import is_mixed, learning_rate

SPEED = 60_000.0  # about that of two CPU cores with bf16
plan = partial(smallvit.plan, speed=SPEED)

CIFAR = Facts(
    source="cifar100",
    images=50_000,
    classes=100,
    requested_size=None,
    shared_size=(32, 32),
    channels=3,
    device="cuda",
    mirrored=True,
    imbalance=1.0,
)


def choice(name, *, side=32, **facts):
    return RECIPES[name].choose(
        Facts(**{**CIFAR.__dict__, "shared_size": (side, side), "requested_size": None, **facts})
    )


def chosen(name, **facts):
    return choice(name, **facts).config


def test_spt_lsa_is_the_papers_recipe():
    config = chosen("spt-lsa")
    assert config.model.name == "vit_9_p4+spt+lsa"
    assert (config.schedule.steps, config.loop.batch_size) == (117_100, 128)
    assert (config.optim.weight_decay, config.optim.decay) == (0.05, "all")
    assert config.augment.policy == "auto_cifar10"
    assert (config.augment.erasing, config.augment.smoothing) == (0.25, 0.1)
    assert (config.augment.mixup, config.augment.cutmix) == (1, 1)
    assert config.augment.mix_probability == 0.5
    assert learning_rate(11_710, 117_100, config.optim.lr, config.schedule) == config.optim.lr
    assert chosen("spt-lsa", side=64).model.name == "vit_9_p8+spt+lsa"
    assert chosen("spt-lsa", source="svhn").augment == PRESETS["spt_svhn"]
    assert chosen("spt-lsa", source="svhn").augment.flip == 0.5
    assert chosen("spt-lsa", source="tiny-imagenet", side=64).augment.policy == "auto_imagenet"
    warned = choice("spt-lsa", source="svhn", mirrored=False).reasons
    assert "augment.flip=0" in warned["augment.flip"]


@pytest.mark.parametrize(
    ("model", "lr"),
    [
        (None, 3e-3),
        ("vit_9_p4", 3e-3),
        ("vit_9_p4+lsa", 3e-3),
        ("swin_tiny_p2+spt+lsa", 1e-3),
        ("cait_24_p4", 1e-3),
        ("pit_tiny_p2+spt", 1e-3),
        ("t2t_12", 1e-3),
    ],
)
def test_spt_lsa_has_the_learning_rate_of_the_family(photos, model, lr):
    config = plan(str(photos), recipe="spt-lsa", model=model, device="cpu").config
    assert config.optim.lr == lr
    assert (config.optim.weight_decay, config.optim.decay) == (0.05, "all")
    steps = config.schedule.steps
    assert learning_rate(round(0.1 * steps), steps, lr, config.schedule) == lr


def test_tiny_imagenet_is_known_by_its_content(tmp_path):
    """Its folder may have any name; 200 other classes are not it."""
    policies = {}
    for kind, first in (("n{:08d}", 1443537), ("kind {}", 0)):
        folder = tmp_path / f"pictures {first}"
        for number in range(200):
            (folder / kind.format(first + number)).mkdir(parents=True)
            for i in range(2):
                pixels = np.random.default_rng(2 * number + i).integers(0, 256, (64, 64, 3))
                path = folder / kind.format(first + number) / f"{i}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(path)
        changes = {"data": {"test": 0}}
        planned = plan(str(folder), recipe="spt-lsa", device="cpu", changes=changes)
        policies[kind] = planned.config.augment.policy
    assert list(policies.values()) == ["auto_imagenet", "auto_cifar10"]


def test_compact_is_the_papers_recipe():
    hundred, ten = chosen("compact"), chosen("compact", classes=10)
    assert (hundred.optim.lr, ten.optim.lr) == (6e-4, 5.5e-4)
    assert hundred.optim.weight_decay == ten.optim.weight_decay == 0.06
    assert hundred.schedule.epochs == 310
    steps = 310 * 390
    rates = [learning_rate(390 * e, steps, 6e-4, hundred.schedule) for e in (0, 10, 300, 309)]
    tenth = 1e-5 + 5.9e-4 * (1 + math.cos(math.pi * 10 / 300)) / 2  # the cosine's tenth epoch
    assert rates == pytest.approx([1e-6, tenth, 1e-5, 1e-5])
    assert (
        len({learning_rate(390 * 50 + i, steps, 6e-4, hundred.schedule) for i in range(390)}) == 1
    )
    assert {hundred.optim.decay, ten.optim.decay} == {"axes"}
    assert (hundred.augment, ten.augment) == (
        PRESETS["compact_cifar100"],
        PRESETS["compact_cifar10"],
    )
    assert (hundred.augment.erasing, ten.augment.erasing) == (0.25, 0)
    assert is_mixed(steps - 1, steps, hundred.schedule)
    assert is_mixed(174 * 390, steps, ten.schedule)
    assert not is_mixed(175 * 390, steps, ten.schedule)


def test_compact_has_the_published_settings_of_larger_images():
    flowers = chosen("compact", source="flowers102-2040", classes=102, images=2040, side=300)
    assert (flowers.data.image_size, flowers.model.name) == (224, "cct_7_7x2")
    assert (flowers.optim.lr, flowers.optim.weight_decay, flowers.loop.batch_size) == (
        5e-4,
        0.06,
        96,
    )
    assert (flowers.schedule.start, flowers.schedule.mixed) == (1e-6, 1)
    assert flowers.augment == PRESETS["compact_flowers"]
    assert (flowers.augment.erasing, flowers.augment.erasing_fill) == (0.25, "pixel")
    many = chosen("compact", source="photos", classes=1000, images=1_281_167, shared_size=None)
    assert (many.data.image_size, many.model.name) == (224, "cct_14_7x2")
    assert (many.optim.lr, many.optim.weight_decay, many.loop.batch_size) == (5e-4, 0.05, 1024)
    assert many.augment == PRESETS["compact_imagenet"]
    tiny = chosen("compact", source="tiny-imagenet", classes=200, images=100_000, side=64)
    assert tiny.data.image_size == 64


def test_drloc_is_the_released_recipe():
    config = chosen("drloc")
    assert (config.model.name, config.data.image_size) == ("swin_t", 224)
    assert (config.optim.lr, config.loop.batch_size, config.optim.clip) == (1e-3, 1024, 5)
    assert (config.optim.weight_decay, config.optim.decay, config.optim.ema) == (
        0.05,
        "drloc",
        0,
    )
    assert (config.loss.drloc, config.loss.drloc_form, config.loss.pairs) == (
        "auto",
        "released",
        64,
    )
    assert config.augment == PRESETS["drloc"]
    steps = 101 * 48
    assert config.schedule.epochs == 101
    late = [1 + 48 * e for e in (0, 10, 20, 100)]  # each step has the rate of the one before it
    rates = [learning_rate(step, steps, 1e-3, config.schedule) for step in late]
    cosine = [1e-5 + 9.9e-4 * (1 + math.cos(math.pi * e / 300)) / 2 for e in (20, 100)]
    assert rates == pytest.approx([1e-6, (1e-6 + 1e-3) / 2, *cosine])
    few = chosen("drloc", images=600)
    assert (few.loop.batch_size, few.optim.lr) == (600, 5e-4 * 600 / 512)
    assert (config.data.mean, config.data.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert chosen("drloc", channels=1).data.mean is None
    assert config.data.fit == "imagenet"
    passes = [chosen("drloc", model=name).loop.accumulation for name in ("swin_t", "cvt_13")]
    assert passes == [1, 8]  # batch norm sees 128 images
    for batch, parts in ((1024, 8), (256, 2), (128, 1), (96, 1)):
        requested = chosen("drloc", model="cvt_13", batch=batch)
        assert requested.loop.accumulation == parts
        assert requested.optim.lr == pytest.approx(5e-4 * batch / 512)


def test_dense_relative_localization_leaves_its_weight_to_the_built_model():
    assert chosen("drloc").loss.drloc == "auto"
    assert not any(chosen(name).loss.drloc for name in ("auto", "spt-lsa", "compact"))


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "drloc"])
def test_the_image_size_is_chosen_from_facts(name):
    differing = chosen(name, shared_size=None)
    assert differing.data.image_size == 64
    assert chosen(name, shared_size=(224, 224)).data.image_size == 64
    assert chosen(name, shared_size=(24, 32)).data.image_size == (24, 32)
    assert chosen(name, shared_size=(128, 128)).data.image_size == 128
    assert chosen(name, requested_size=(48, 48)).data.image_size == 48


@pytest.mark.parametrize("name", RECIPES)
def test_every_reason_names_values_of_the_config(name):
    base = choice(name, imbalance=30, mirrored=False, shared_size=None)
    facts = Facts(**{**CIFAR.__dict__, "images": 3000})
    for reasoned in (base, *(addition.adjust(base, facts) for addition in ADDITIONS.values())):
        plain = reasoned.config.to_dict()
        for path in " ".join(reasoned.reasons).split():
            assert leaf(plain, path) is not None, path


def test_help_names_the_recipes():
    text = field_at(RunConfig, "recipe").help
    assert all(name in text for name in RECIPES if name != "demo")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("images", [20, 600, 5_000, 50_000, 200_000])
@pytest.mark.parametrize("side", [16, 28, 64, 224])
@pytest.mark.parametrize("minutes", [None, 1.0, 8.0])
def test_auto_fits_the_time(device, images, side, minutes):
    """What it plans takes about ten minutes on a CPU and five on a GPU, or less."""
    speed = SPEED if device == "cpu" else RECORDED["cuda"]
    config = chosen(
        "auto", device=device, images=images, side=side, typical_side=side, speed=speed,
        minutes=minutes,
    )  # fmt: skip
    assert config.loop.batch_size <= images
    assert not config.augment.mixed or config.loop.batch_size % config.augment.mix_group == 0
    shown = config.data.image_size
    rate = speed / cost(config.model.name, shown)
    assert config.schedule.epochs * images / rate <= 60 * (
        minutes or (10 if device == "cpu" else 5)
    )
    assert RunConfig.from_yaml(config.to_yaml()) == config


def test_auto_chooses_by_time():
    cpu = {"device": "cpu", "speed": SPEED, "images": 4_000, "classes": 10, "epochs": None}
    one, eight = (chosen("auto", minutes=m, **cpu) for m in (1, 8))
    assert one.model.name == eight.model.name == "hct2_s_p4"
    assert (one.augment.mixed, one.augment.policy, one.augment.padding) == (False, "none", 2)
    assert eight.augment.mixed
    few, once = (chosen("auto", device="cpu", epochs=e).augment for e in (5.0, 1.0))
    assert (few.padding, few.flip, once.padding, once.flip) == (0, 0.5, 0, 0)
    assert (one.optim.optimizer, one.optim.muon_decay) == ("muon", 1.0)
    assert one.optim.muon_lr >= eight.optim.muon_lr == 0.01
    slow = chosen("auto", minutes=1, **{**cpu, "speed": 500.0})
    assert slow.model.name == "hct2_xs_p4"
    gpu = chosen("auto", speed=RECORDED["cuda"])
    assert gpu.model.name == "hct_l_p4"
    assert gpu.augment.mixed
    assert chosen("auto", device="cpu", epochs=3.0).schedule.epochs == 3
    assert not chosen("auto", device="cpu", epochs=3.0).augment.mixed
    assert chosen("auto", device="cpu", model="hct_s_p8").optim.optimizer == "muon"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("epochs", [1.0, 10.0, 80.0, 600.0])
def test_auto_forgets_equally_often_in_runs_of_any_length(device, epochs):
    """With one decay for all, 80 passes over CIFAR-100 lost five points."""
    config = chosen("auto", device=device, images=50_000, epochs=epochs)
    optim, steps = config.optim, epochs * 50_000 / config.loop.batch_size
    forgotten = optim.muon_lr * steps * optim.muon_decay
    assert forgotten == pytest.approx(16, rel=0.05) or (forgotten < 16 and optim.muon_decay == 1)


@pytest.mark.parametrize("batch", [None, 16, 32.0, 500])
@pytest.mark.parametrize("budget", [{"steps": 4_000}, {"epochs": 400.0}])
def test_auto_counts_on_the_steps_and_batches_that_are_requested(photos, budget, batch):
    """Steps were counted as if a batch had 64 images, epochs as if it had the recipe's."""
    changes = {"schedule": budget, "loop": {"batch_size": batch} if batch else {}}
    planned = plan(str(photos), device="cpu", changes=changes)
    images, seen_in = len(planned.dataset.split("train")), planned.config.loop.batch_size
    steps = budget.get("steps") or 400 * images / min(seen_in, images)
    optim = planned.config.optim
    assert optim.muon_decay == pytest.approx(min(1, 16 / (optim.muon_lr * steps)), rel=0.05)
    passes = steps * min(seen_in, images) / images
    assert f"about {passes:.0f} times" in planned.reasons["augment"]


def test_a_plan_says_how_long_all_trainings_of_a_cross_validation_take(photos):
    folds = plan(str(photos), device="cpu", changes={"data": {"folds": 5}}, speed=SPEED / 30)
    once = plan(str(photos), device="cpu", changes={"data": {"val": 0}}, speed=SPEED / 30)
    six, one = (re.search(r"about (\d+) minutes", each.reasons[EPOCHS]) for each in (folds, once))
    assert "in each of 6 trainings: about" in folds.reasons[EPOCHS]
    assert int(six[1]) >= 5 * int(one[1])


def test_auto_compiles_less_where_a_gpu_has_little_time():
    gpu = {"device": "cuda", "speed": RECORDED["cuda"], "epochs": None}
    assert chosen("auto", minutes=5, **gpu).loop.regional
    assert not chosen("auto", minutes=25, **gpu).loop.regional
    assert not chosen("auto", minutes=5, **{**gpu, "device": "cpu", "speed": SPEED}).loop.regional
    assert not chosen(
        "auto", minutes=5, model="cait_24_p4", **gpu
    ).loop.regional  # a quarter slower


def test_a_gpu_does_not_compile_where_waiting_would_not_pay():
    """With empty caches a minute went by before the first step."""
    gpu = {"device": "cuda", "speed": RECORDED["cuda"], "epochs": None, "model": "hct_l_p4"}
    short, long = (chosen("auto", minutes=minutes, **gpu) for minutes in (1.0, 3.0))
    assert not short.loop.regional
    assert not short.loop.compiles("cuda", 1.0)
    assert long.loop.compiles("cuda", 3.0)
    assert long.loop.compiles("cuda", None)
    assert not long.loop.compiles("cpu", None)
    assert replace(short.loop, compiled=True).compiles("cuda", 1.0)
    # About 40 of 60 seconds at less than half the speed, and 120 of 180 at all of it.
    assert 6 < long.schedule.epochs / short.schedule.epochs < 7.5


def test_auto_looks_closer_where_there_is_time():
    photos = {"shared_size": None, "typical_side": 300, "images": 1_600, "device": "cpu"}
    few, many, most = (
        chosen("auto", **photos, speed=speed, minutes=minutes)
        for speed, minutes in ((SPEED / 5, 1), (SPEED, 1), (3 * SPEED, 8))
    )
    assert [config.data.image_size for config in (few, many, most)] == [64, 128, 160]
    assert (few.model.name[-3:], many.model.name[-4:]) == ("_p8", "_p16")
    asked = chosen("auto", **photos, speed=SPEED, minutes=1, model="hct2_xs_p8")
    assert asked.data.image_size == 64  # with four times the tokens it is not seen often enough
    on_a_gpu = {**photos, "device": "cuda", "images": 100_000}
    assert chosen("auto", **on_a_gpu, speed=RECORDED["cuda"], minutes=2).data.image_size == 64
    small = {**photos, "typical_side": 90}
    assert chosen("auto", **small, speed=3 * SPEED, minutes=8).data.image_size == 64
    wanted = {**photos, "requested_size": (96, 96)}
    assert chosen("auto", **wanted, speed=SPEED, minutes=1).data.image_size == 96


@pytest.mark.parametrize(
    ("model", "side"),
    [
        ("vit_lite_7_p16", 128),
        ("vit_base_p16+spt+lsa", 128),
        ("cct_7_7x2", 128),
        ("t2t_14", 128),
        ("hct2_s_p16", 128),
        ("timm/vit_small_patch16_224", 128),
        ("swin_t", 224),  # its windows divide no other size
        ("vit_9_p8", 64),
        ("swin_tiny_p4", 64),
        ("resnet18", 64),
    ],
)
def test_a_requested_model_gets_enough_tokens(model, side):
    photos = {"shared_size": None, "typical_side": 300, "images": 1_600, "device": "cpu"}
    made = choice("auto", **photos, model=model, epochs=3)
    assert made.config.data.image_size == side
    why = {64: "sizes differ", 128: "too few tokens", 224: "impossible"}[side]
    assert made.reasons["data.image_size"].endswith(why)
    assert chosen("auto", model=model, epochs=3, device="cpu").data.image_size == 32
    small = {**photos, "typical_side": 90}
    assert chosen("auto", **small, model=model, epochs=3).data.image_size == 64
    wanted = {**photos, "requested_size": (64, 64)}
    assert chosen("auto", **wanted, model=model, epochs=3).data.image_size == 64


def test_small_batches_and_many_pixels_take_longer():
    """Rates of training on two cores over those at 32 pixels in batches of 128, as measured."""
    measured = {
        ("hct2_s_p8", 64, 32): 0.49,
        ("hct2_s_p8", 64, 64): 0.7,
        ("hct2_s_p16", 128, 32): 0.38,
        ("hct2_s_p16", 128, 64): 0.46,
        ("hct2_s_p16", 160, 32): 0.25,
    }
    usual = rate_of(1e5, cost("hct2_s_p4", 32), 32, 128, "cpu")
    for (name, side, batch), share in measured.items():
        expected = rate_of(1e5, cost(name, side), side, batch, "cpu")
        assert expected / usual == pytest.approx(share, rel=0.25), (name, side, batch)
    price = cost("cct_7_3x1", 32)
    assert rate_of(price, price, 32, 16, "cpu") == pytest.approx(1, abs=0.05)  # costs far more
    assert rate_of(price, price, 32, 1, "cuda") == 1
    few, many = (
        chosen("auto", images=images, device="cpu", speed=SPEED, minutes=1)
        for images in (200, 20_000)
    )
    assert (few.loop.batch_size, many.loop.batch_size) == (32, 128)
    seen = [c.schedule.epochs * images for c, images in ((few, 200), (many, 20_000))]
    assert 0.5 < seen[0] / seen[1] < 0.8


def test_tiny_data_takes_less_time():
    config = chosen("auto", images=100, device="cpu", speed=SPEED)
    assert config.schedule.epochs == 200


def test_auto_plans_for_the_model_that_is_requested():
    few, many = (
        chosen("auto", images=5_000, device="cpu", speed=SPEED, minutes=8, model=name)
        for name in ("cct_7_3x1", "cct_2_3x2")
    )
    assert (few.model.name, few.optim.optimizer) == ("cct_7_3x1", "adamw")
    assert few.schedule.epochs < many.schedule.epochs / 4


@pytest.mark.parametrize("name", [f"{name}_p{p}" for p in (4, 8, 16) for name in OURS])
@pytest.mark.parametrize("side", [32, 96])
def test_costs_are_those_of_the_models(name, side):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = smallvit.create_model(name, num_classes=10, image_size=side).eval()
        model(torch.zeros(1, 3, side, side))
    assert cost(name, side) == pytest.approx(counter.get_total_flops() / 1e6, rel=0.2)


def test_a_model_whose_modules_are_handed_parameters_has_a_cost():
    assert cost("timm/pit_ti_224", 224) > 1000


def test_speed_is_measured_within_seconds():
    """On a clock that counts its readings: a first step, and those that fit into two seconds."""
    ticks = iter(range(10**6))
    speed = measure_speed("cpu", clock=lambda: 0.1 * next(ticks))
    assert next(ticks) < 40
    assert speed == pytest.approx(0.85 * 64 * cost("hct2_s_p4", 32) / 0.1, rel=0.2)
    assert measure_speed("cuda") == RECORDED["cuda"]


def test_time_that_cannot_suffice_is_refused_before_any_work(photos):
    with pytest.raises(ValueError, match="minutes are not enough here"):
        plan(str(photos), minutes=0.02, device="cpu")
    with pytest.raises(ValueError, match="1 minute is not enough here"):
        smallvit.plan(str(photos), minutes=1, device="cpu", speed=20.0)


@pytest.mark.parametrize("recipe", ["auto", "spt-lsa"])
@pytest.mark.parametrize("folds", [0, 5])
def test_images_that_take_all_the_time_to_decode_are_refused_before_any_work(photos, recipe, folds):
    """On a clock of which every reading takes half a minute, and so does a trial of decoding."""
    ticks = iter(range(10**6))
    slow = partial(
        plan, str(photos), recipe=recipe, device="cpu", changes={"data": {"folds": folds}},
        clock=lambda: 30.0 * next(ticks),
    )  # fmt: skip
    often = "once for each of 6 trainings" if folds else "once"
    with pytest.raises(
        ValueError, match=rf"about [0-9.]+ minutes to read and decode, {often}[;,].*smaller"
    ):
        slow(minutes=6 if folds else 1)
    assert "as many steps as fit" in slow(minutes=60).reasons["schedule.minutes"]


def test_time_to_prepare_the_images_is_counted():
    timed = partial(chosen, "auto", device="cpu", speed=SPEED, images=2_000)
    usual, slow = (timed(minutes=3.0, preparing=each).schedule.epochs for each in (2.0, 90.0))
    assert slow < 0.6 * usual
    assert timed(minutes=3.0, preparing=0.0).schedule.epochs == usual
    free = [choice("auto", device="cpu", speed=SPEED, images=2_000, preparing=p) for p in (0, 600)]
    minutes = [int(re.search(r"about (\d+) minutes", each.reasons[EPOCHS])[1]) for each in free]
    assert minutes[1] >= minutes[0] + 5
    assert free[1].config.schedule.epochs > 0.6 * free[0].config.schedule.epochs


def test_auto_says_how_long_it_will_take(photos):
    planned = plan(str(photos), device="cpu")
    assert "about 1 minutes" not in planned.reasons[EPOCHS]
    assert "about a minute" in planned.reasons[EPOCHS]


def test_auto_looks_at_mirrors_colours_and_balance():
    assert chosen("auto", epochs=300.0).augment.flip == 0.5
    assert chosen("auto", mirrored=False).augment.flip == 0
    assert chosen("auto", side=28, channels=1, epochs=300.0).augment.policy == "none"
    assert chosen("auto", epochs=300.0).augment.policy == "trivial"
    assert chosen("auto", imbalance=30).loss.balanced
    assert not chosen("auto", imbalance=3).loss.balanced


def test_a_class_without_images_is_no_imbalance(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "with an empty class")
    (tmp_path / "with an empty class" / "bird").mkdir()
    planned = plan(str(tmp_path / "with an empty class"), device="cpu", epochs=1)
    assert planned.dataset.classes == ("bird", "cat", "dog")
    assert not planned.config.loss.balanced


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


EPOCHS = "schedule.epochs loop.batch_size"


def test_a_plan_says_what_it_chose(photos):
    planned = plan(str(photos), device="cpu")
    assert planned.config.model.name == "hct2_s_p8"
    assert planned.config.data.source == str(photos)
    assert (planned.config.data.image_size, planned.dataset.image_size) == (64, (64, 64))
    assert planned.dataset.pixels("train").shape[2:] == (64, 64)
    assert "hct2_s_p8" in planned.reasons["model.name"]
    assert f"{planned.config.schedule.epochs:g} epochs" in planned.reasons[EPOCHS]
    assert "64×64" in planned.reasons["data.image_size"]


def test_what_is_requested_goes_before_the_recipe(photos):
    planned = plan(
        str(photos),
        model="swin_tiny_p4",
        epochs=3,
        drloc="auto",
        seed=5,
        device="cpu",
        changes={"optim": {"lr": 1e-5}, "data": {"val": 0.25, "image_size": 32}},
    )
    config = planned.config
    assert (config.model.name, config.schedule.epochs, config.seed) == ("swin_tiny_p4", 3, 5)
    assert (config.loss.drloc, config.optim.lr) == ("auto", 1e-5)
    assert (config.data.image_size, config.data.val, config.data.seed) == (32, 0.25, 5)
    assert planned.dataset.image_size == (32, 32)
    for weight in (0.3, 1.0):
        assert plan(str(photos), drloc=weight, device="cpu").config.loss.drloc == weight
    assert plan(str(photos), model="auto", device="cpu").config.model.name == "hct2_s_p8"


def test_a_plan_leaves_what_is_requested_as_it_is(photos):
    changes = {"data": {"source": str(photos)}, "model": {"name": "auto"}}
    plan(changes=changes, speed=1e5)
    assert changes["model"] == {"name": "auto"}


@pytest.mark.parametrize(
    ("requested", "path"),
    [
        ({"schedule": {"epochs": 3}}, EPOCHS),
        ({"schedule": {"steps": 3}}, EPOCHS),
        ({"schedule": {"minutes": 3}}, EPOCHS),
        ({"loop": {"batch_size": 16}}, EPOCHS),
        ({"model": {"name": "hct_s_p8"}}, "model.name"),
        ({"augment": {"flip": 0.0}}, "augment"),
        ({"data": {"image_size": 32}}, "data.image_size"),
    ],
)
def test_no_reason_for_what_was_overruled(photos, requested, path):
    assert path in plan(str(photos), device="cpu").reasons
    assert path not in plan(str(photos), device="cpu", changes=requested).reasons


def test_minutes_give_their_own_reason(photos):
    planned = plan(str(photos), recipe="spt-lsa", minutes=3, device="cpu")
    assert planned.config.schedule.minutes == 3
    assert planned.config.schedule.steps is None
    assert not [path for path in planned.reasons if "steps" in path or "epochs" in path]
    assert "3 minutes" in planned.reasons["schedule.minutes"]


@pytest.mark.parametrize(
    ("requested", "budget"),
    [
        ({"epochs": 3.0}, (3.0, None, None)),
        ({"steps": 3}, (300.0, 3, None)),
        ({"minutes": 3.0}, (300.0, None, 3.0)),
    ],
)
def test_the_requested_budget_replaces_the_recipes(photos, requested, budget):
    changes = {"schedule": requested}
    schedule = plan(str(photos), recipe="spt-lsa", device="cpu", changes=changes).config.schedule
    assert (schedule.epochs, schedule.steps, schedule.minutes) == budget


def test_a_whole_config_plans_itself(photos):
    first = plan(str(photos), recipe="drloc", pretrained="timm/swin_tiny_patch4_window7_224")
    again = plan(changes=first.config.to_dict())
    assert again.config == first.config
    assert first.reasons
    assert not again.reasons


def test_fine_tuning_is_a_change_to_any_recipe(photos):
    name = "timm/swin_tiny_patch4_window7_224"
    for recipe in ("auto", "spt-lsa", "drloc"):
        planned = plan(str(photos), recipe=recipe, pretrained=name, drloc="auto", device="cpu")
        config = planned.config
        assert (config.model.name, config.model.pretrained) == ("", name)
        assert (config.optim.lr, config.optim.layer_decay) == (3e-4, 0.75)
        assert config.schedule.steps is None
        assert config.augment.policy == "none"
        assert config.loss.drloc == "auto"
        assert "val" in planned.dataset.splits
        assert "model.name" not in planned.reasons
        assert f"{config.schedule.epochs:g} epochs" in planned.reasons["schedule.epochs"]
        assert "data.image_size" in planned.reasons
        assert (config.data.image_size, planned.dataset.image_size) == (224, (224, 224))
        assert config.data.mean == (0.485, 0.456, 0.406)
        assert planned.dataset.statistics == (config.data.mean, config.data.std)
    smaller = plan(str(photos), pretrained=name, device="cpu", changes={"data": {"image_size": 64}})
    assert smaller.config.data.image_size == 64
    named = plan(str(photos), pretrained=name, model="cct_2_3x2", epochs=7, device="cpu")
    assert named.config.model.name == "cct_2_3x2"
    assert "schedule.epochs" not in named.reasons


def test_papers_train_on_all_images(photos):
    papers = plan(str(photos), recipe="compact", device="cpu")
    assert "val" not in papers.dataset.splits
    assert papers.config.data.val == 0
    assert "val" in plan(str(photos), device="cpu").dataset.splits
    wanted = plan(str(photos), recipe="compact", device="cpu", changes={"data": {"val": 0.3}})
    assert "val" in wanted.dataset.splits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "spt-las"}, "did you mean 'spt-lsa'"),
        ({"changes": {"recipe": "mine"}}, "there is no recipe 'mine'"),
        ({"model": "cct_7_3x9"}, "did you mean .cct_7_3x"),
        ({"epochs": 1, "minutes": 1}, "not both"),
        ({"changes": {"schedule": {"epochs": 1, "minutes": 1}}}, "not both"),
        ({"changes": {"optim": {"lrr": 1}}}, "did you mean 'lr'"),
        ({"changes": {"data": {"sorce": "x"}}}, "did you mean 'source'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"drloc": True}, "drloc is True: expected is a number or one of auto"),
    ],
)
def test_bad_plans_are_sentences(photos, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        plan(str(photos), **options)
    with pytest.raises(ValueError, match="what shall be trained on"):
        plan()


@pytest.mark.slow
def test_the_demo_is_as_good_as_it_says(tmp_path):
    """A fixed number of steps; about two minutes on two idle cores."""
    from smallvit import Evaluation, train

    run = train(plan("fashion-mini", recipe="demo").config, out=tmp_path / "demo", shown=False)
    assert run.info["steps"] * run.config.loop.batch_size < 1e5
    result = Evaluation.from_json((run.folder / "evaluation.json").read_text())
    assert result.accuracy.value >= 0.875
    assert math.isclose(result.recall.value, result.accuracy.value, abs_tol=1e-9)
