"""What each kind of row trains, beside the numbers of the papers and of their released code.

The values are those of the papers and of that code, and none is read from ours. Images are named
as nobody would name them: where the data lies must not decide what is trained.
"""

from fnmatch import fnmatch

import pytest
import torch

from smallvit import create_model
from smallvit.config_io import leaf, overlaid
from smallvit.experiments import reproduce_set
from smallvit.experiments.papers import CLASSES, COUNTS, find_row, rows
from smallvit.layers import DropPath
from smallvit.recipes import ADDITIONS, RECIPES, Facts
from smallvit.training.optim import is_mixed, learning_rate, parameter_groups
from smallvit.transfer.inputs import Inputs

SIDES = {"tiny-imagenet": 64, "mnist": 28, "fashion-mnist": 28, "flowers102": None}
SCRATCH = [row for row in rows() if row.images_seen or row.key == "flowers102/cct-7-7x2"]

ADAM = {
    "optim.optimizer": "adamw",
    "optim.betas": (0.9, 0.999),
    "optim.eps": 1e-8,
    "optim.ema": 0.0,
    "optim.layer_decay": 1.0,
    "augment.flip": 0.5,
    "augment.vertical_flip": 0.0,
    "augment.cutmix": 1.0,
    "augment.cutmix_share": 0.5,
    "augment.mix_per": "batch",
    "augment.even_box": True,
    "augment.smoothing": 0.1,
    "loss.objective": "classification",
    "loss.balanced": False,
    "loop.repeats": 1,
    "loop.balanced": False,
    "data.val": 0.0,
    "schedule.patience": 0,
}
SPT = {
    "loop.batch_size": 128,
    "optim.weight_decay": 0.05,
    "optim.decay": "all",
    "optim.clip": 0.0,
    "augment.padding": 4,
    "augment.resized_crop": None,
    "augment.flavour": "deepvoltaire",
    "augment.fill": "grey",
    "augment.erasing": 0.25,
    "augment.erasing_area": (0.02, 0.4),
    "augment.erasing_aspect": 0.3,
    "augment.erasing_shape": "uniform",
    "augment.erasing_fill": "raw",
    "augment.erasing_last": False,
    "augment.mixup": 1.0,
    "augment.mix_probability": 0.5,
    "loss.drloc": 0.0,
}
TIMM = {
    "augment.padding": 0,
    "augment.aspect": (3 / 4, 4 / 3),
    "augment.policy": "rand",
    "augment.magnitude": 9.0,
    "augment.magnitude_std": 0.5,
    "augment.layers": 2,
    "augment.fill": "mean",
    "augment.erasing_area": (0.02, 1 / 3),
    "augment.erasing_aspect": 0.3,
    "augment.erasing_shape": "log",
    "augment.erasing_fill": "pixel",
    "augment.mixup": 0.8,
    "augment.mix_probability": 1.0,
}
COMPACT = {
    **TIMM,
    "optim.weight_decay": 0.06,
    "optim.decay": "axes",
    "optim.clip": 0.0,
    "augment.resized_crop": (0.8, 1.0),
    "augment.resize_interpolation": "random",
    "augment.interpolation": "random",
    "augment.erasing_last": True,
    "loss.drloc": 0.0,
    "schedule.end": 1e-5,
}
LONGER = {"optim.weight_decay": 0.05, "augment.erasing": 0.25, "schedule.mixed": 1.0}
DRLOC = {
    **TIMM,
    "loop.batch_size": 1024,
    "optim.lr": 1e-3,
    "optim.weight_decay": 0.05,
    "optim.decay": "drloc",
    "optim.clip": 5.0,
    "augment.resized_crop": (0.08, 1.0),
    "augment.resize_interpolation": "bicubic",
    "augment.interpolation": "bicubic",
    "augment.erasing": 0.25,
    "augment.erasing_last": False,
    "augment.mix_batch": 128,
    "data.image_size": 224,
    "data.fit": "imagenet",
    "data.mean": (0.485, 0.456, 0.406),
    "data.std": (0.229, 0.224, 0.225),
    "schedule.late": True,
    "loss.drloc_form": "released",
    "loss.drloc_mode": "l1",
    "loss.pairs": 64,
}
#: By pattern of keys and recipe; all that fit a row hold, and the last has the last word.
EXPECTED = [
    ("*", "", ADAM),
    ("*", "spt-lsa", {**SPT, "optim.lr": 1e-3}),
    ("*/*vit*", "spt-lsa", {"optim.lr": 3e-3}),
    ("cifar*", "spt-lsa", {"augment.policy": "auto_cifar10", "data.image_size": 32}),
    ("svhn*", "spt-lsa", {"augment.policy": "auto_svhn", "data.image_size": 32}),
    ("tiny-*", "spt-lsa", {"augment.policy": "auto_imagenet", "data.image_size": 64}),
    ("*quarter*", "spt-lsa", {"data.limit": 0.25}),
    ("*", "compact", {**COMPACT, "loop.batch_size": 128}),
    ("cifar10/*", "compact", {"optim.lr": 5.5e-4, "schedule.start": 1e-5, "augment.erasing": 0.0}),
    ("cifar100/*", "compact", {"optim.lr": 6e-4, "schedule.start": 1e-6, "augment.erasing": 0.25}),
    ("*mnist/*", "compact", {"optim.lr": 5.5e-4, "augment.erasing": 0.0, "data.image_size": 28}),
    ("cifar10/cct-7-3x1-*", "compact", {**LONGER, "optim.lr": 5e-4}),
    ("cifar100/cct-7-3x1-5*", "compact", {**LONGER, "optim.lr": 5e-4}),
    ("cifar100/cct-7-3x1-1*", "compact", {**LONGER, "optim.lr": 7e-4}),
    (
        "flowers102/*",
        "compact",
        {
            "optim.lr": 5e-4,
            "loop.batch_size": 96,
            "augment.erasing": 0.25,
            "data.image_size": 224,
            "data.fit": "crop",  # the test shows the middle
        },
    ),
    ("*", "drloc", {**DRLOC, "loss.drloc": 0.0}),
    ("*-drloc", "drloc", {"loss.drloc": "auto"}),
    ("*/cvt-13*", "drloc", {"loop.accumulation": 8}),
]


def trained(row):
    """The config of a row, its training images and classes, on data of another name."""
    name, _, variant = row.data.partition(":")
    changes = overlaid(reproduce_set(row.key).members[0].changes, {"data": {"source": "x/images"}})
    images = int(variant or 0) or COUNTS[name]
    images = round(images * (leaf(changes, "data.limit") or 1))
    size, side = leaf(changes, "data.image_size"), SIDES.get(name, 32)
    pretrained = leaf(changes, "model.pretrained")
    facts = Facts(
        source="images",
        images=images,
        classes=CLASSES[name],
        requested_size=(size, size) if size else None,
        shared_size=(side, side) if side else None,
        channels=1 if name.endswith("mnist") else 3,
        device="cuda",
        mirrored=True,
        imbalance=1.0,
        model=row.model,
        inputs=Inputs((224, 224), (0.5,) * 3, (0.5,) * 3) if pretrained else None,
    )
    choice = RECIPES[row.recipe].choose(facts)
    before = RECIPES[row.recipe].data
    if pretrained:
        choice = ADDITIONS["model.pretrained"].adjust(choice, facts)
        before = overlaid(before, ADDITIONS["model.pretrained"].data)
    config = choice.overruled(overlaid({"data": before}, changes)).config
    return config, images


def every(pattern):
    chosen = [row for row in SCRATCH if fnmatch(row.key, pattern)]
    assert chosen
    return [pytest.param(row, id=row.key) for row in chosen]


@pytest.mark.parametrize("row", every("*"))
def test_settings_are_the_papers(row):
    expected = {}
    for pattern, recipe, values in EXPECTED:
        if recipe in ("", row.recipe) and fnmatch(row.key, pattern):
            expected |= values
    config, _ = trained(row)
    for path, value in expected.items():
        found = config
        for part in path.split("."):
            found = getattr(found, part)
        assert found == (pytest.approx(value) if isinstance(value, float) else value), path


def steps_of(config, images):
    schedule = config.schedule
    return schedule.steps or round(schedule.epochs) * (images // config.loop.batch_size)


#: Steps, in whole batches.
BUDGETS = {
    "cifar100/sl-vit": 117_100,
    "cifar10/sl-cait": 117_100,
    "svhn/pit": 171_600,
    "tiny-imagenet/sl-swin": 234_300,
    "cifar100-quarter/swin": 29_200,
    "cifar10/cct-7-3x1": 310 * 390,
    "fashion-mnist/cvt-7-4": 310 * 468,
    "cifar10/cct-7-3x1-1500": 1510 * 390,
    "cifar100/cct-7-3x1-5000": 5010 * 390,
    "flowers102/cct-7-7x2": 310 * 68,
    "cifar100/swin-t-drloc": 101 * 48,
    "svhn/t2t-14": 101 * 71,
    "flowers102/cvt-13-drloc": 101,  # eight processes have 255 images each: one batch of 128
}


@pytest.mark.parametrize("key", BUDGETS)
def test_steps_are_the_papers(key):
    row = find_row(key)
    config, images = trained(row)
    assert steps_of(config, images) == BUDGETS[key]
    if row.images_seen:
        assert BUDGETS[key] * config.loop.batch_size == row.images_seen


def rates(row):
    config, images = trained(row)
    steps = steps_of(config, images)
    return config, steps, lambda step: learning_rate(step, steps, config.optim.lr, config.schedule)


@pytest.mark.parametrize("key", ["cifar100/sl-vit", "tiny-imagenet/swin", "cifar10-quarter/swin"])
def test_spt_rises_for_ten_of_a_hundred_epochs_and_falls_to_a_millionth(key):
    config, steps, rate = rates(find_row(key))
    peak = config.optim.lr
    assert rate(0) == 1e-6
    assert rate(steps // 10) == peak
    assert rate(steps // 10 + 9 * steps // 20) == pytest.approx(peak / 2, rel=1e-2)
    assert rate(steps - 1) == pytest.approx(1e-6, rel=1e-2)
    assert is_mixed(steps - 1, steps, config.schedule)


@pytest.mark.parametrize("epochs", [300, 1500, 5000])
@pytest.mark.parametrize(("data", "start"), [("cifar10", 1e-5), ("cifar100", 1e-6)])
def test_compact_changes_per_epoch_and_ends_with_ten_at_the_lowest(data, start, epochs):
    key = f"{data}/cct-7-3x1" + (f"-{epochs}" if epochs > 300 else "")
    config, steps, rate = rates(find_row(key))
    whole = epochs + 10
    one = steps // whole
    assert rate(0) == rate(one - 1) == start
    assert start < rate(one) < rate(9 * one) < config.optim.lr
    assert rate(10 * one) == pytest.approx(config.optim.lr, rel=1e-2)  # the cosine's tenth epoch
    assert rate(epochs // 2 * one) == pytest.approx((config.optim.lr + 1e-5) / 2, rel=1e-3)
    assert {rate(epoch * one) for epoch in range(epochs, whole)} == {1e-5}
    off = 175 if (data, epochs) == ("cifar10", 300) else whole
    assert is_mixed(off * one - 1, steps, config.schedule)
    assert off == whole or not is_mixed(off * one, steps, config.schedule)


def test_drloc_stops_at_a_third_of_its_cosine():
    _, steps, rate = rates(find_row("cifar100/swin-t-drloc"))
    one = steps // 101
    assert rate(0) == rate(1) == pytest.approx(1e-6)  # each step has the rate of the one before
    assert rate(1 + 10 * one) == pytest.approx((1e-6 + 1e-3) / 2)
    assert rate(1 + 20 * one) > 0.98e-3
    assert rate(100 * one) == pytest.approx(1e-5 + 0.99e-3 * 0.75, rel=1e-3)  # cos(60°)


#: λ, stochastic depth of the first and the last block, dropout behind attention and elsewhere.
MODELS = {
    "cifar100/sl-vit": (None, 0.1, 0.1, 0.0, 0.0),
    "cifar100/vit-mask": (None, 0.1, 0.1, 0.0, 0.0),
    "cifar100/sl-cait": (None, 0.1, 0.1, 0.0, 0.0),
    "cifar100/sl-pit": (None, 0.1, 0.1, 0.0, 0.0),
    "cifar100/sl-swin": (None, 0.0, 0.1, 0.0, 0.0),
    "cifar100/sl-t2t": (None, 0.0, 0.1, 0.0, 0.0),
    "cifar100/vit-lite-7-4": (None, 0.0, 0.1, 0.1, 0.0),
    "cifar100/cvt-7-4": (None, 0.0, 0.1, 0.1, 0.0),
    "cifar100/cct-2-3x2": (None, 0.0, 0.1, 0.1, 0.0),
    "cifar100/cct-7-3x1": (None, 0.0, 0.1, 0.1, 0.0),
    "cifar100/swin-t": (0.5, 0.0, 0.2, 0.0, 0.0),
    "cifar100/t2t-14": (0.1, 0.0, 0.0, 0.0, 0.1),
    "cifar100/cvt-13": (0.1, 0.0, 0.0, 0.0, 0.0),
}


def built(row):
    config, _ = trained(row)
    size = config.data.image_size
    with torch.device("meta"):
        model = create_model(
            row.model, num_classes=100, image_size=size, **dict(config.model.options)
        )
    return config, model


@pytest.mark.parametrize("key", MODELS)
def test_models_drop_as_the_papers_do(key):
    weight, first, last, attention, elsewhere = MODELS[key]
    _, model = built(find_row(key))
    depths = [part.rate for part in model.modules() if isinstance(part, DropPath)]
    assert (depths[0], depths[-1]) == (pytest.approx(first), pytest.approx(last))
    dropped = [p for part in model.modules() if (p := getattr(part, "attn_dropout", 0.0))]
    assert set(dropped) == ({attention} if attention else set())
    others = {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)} - {0.0}
    assert others == ({elsewhere} if elsewhere else set())
    assert weight is None or model.drloc_weight == weight


@pytest.mark.parametrize(
    ("key", "free"),
    [
        ("cifar100/sl-vit", set()),
        ("cifar100/sl-swin", set()),
        ("cifar100/cct-7-3x1", {"weight", "bias"}),
        ("cifar100/vit-lite-7-4", {"weight", "bias"}),
        ("cifar100/swin-t", {"weight", "bias", "bias_table"}),
        ("cifar100/t2t-14", {"weight", "bias"}),
        ("cifar100/cvt-13", {"weight", "bias"}),
    ],
)
def test_what_does_not_decay(key, free):
    """Nothing of the SPT paper; what has one axis in timm, so that positions and tokens do."""
    config, model = built(find_row(key))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, config.optim)
    exempt = [each for group in groups if not group["weight_decay"] for each in group["params"]]
    assert {names[id(each)].rpartition(".")[2] for each in exempt} <= free
    assert bool(exempt) == bool(free)
    assert all(each.ndim == 1 for each in exempt) or free & {"bias_table", "token"}
    assert all(group["weight_decay"] in (0.0, config.optim.weight_decay) for group in groups)


@pytest.mark.parametrize(
    ("key", "learned"),
    [
        ("cifar10/cct-7-3x1", True),
        ("cifar10/cct-7-3x1-1500", False),
        ("cifar100/cct-7-3x1-5000", False),
        ("flowers102/cct-7-7x2", False),
    ],
)
def test_which_rows_of_compact_learn_their_positions(key, learned):
    _, model = built(find_row(key))
    assert model.positions.table.requires_grad == learned


def test_tuned_rows_train_on_all_images_in_more_than_a_batch_per_epoch():
    tuned = [row for row in rows() if "tuned" in row.key]
    assert len(tuned) == 4
    for row in tuned:
        config, images = trained(row)
        assert (config.data.val, config.data.image_size) == (0.0, 224)
        assert config.loss.drloc == ("auto" if row.key.endswith("-drloc") else 0.0)
        assert config.loss.drloc_form == "released"
        assert steps_of(config, images) > 500


def test_published_numbers_have_as_many_digits_as_they_need():
    keys = ("cifar100/t2t", "cifar100/sl-vit", "cifar10/swin-t")
    assert [find_row(key).percent for key in keys] == ["77.0", "76.92", "59.5"]
