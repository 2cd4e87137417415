"""Names, options and sizes: what is known works, what is not gets an error that helps."""

import pytest
import torch

from smallvit import create_model, list_models
from smallvit.models.names import MODELS, check_name, parse_name


def test_list_models():
    assert list_models("vit_9*") == ["vit_9_p4", "vit_9_p8"]
    assert {"cct_2_3x2", "cct_7_3x1", "cct_14_7x2"} <= set(list_models("cct*"))
    assert all(name.startswith("cct_") for name in list_models("cct*"))
    assert list_models("vit_9_p4+*") == ["vit_9_p4+spt", "vit_9_p4+lsa", "vit_9_p4+spt+lsa"]
    assert list_models("cvt*+*") == ["cvt_13+spt"]
    assert list_models("hct_s_p8+*") == ["hct_s_p8+spt"]
    assert list_models("resnet*") == []
    assert list_models() == list_models("*")
    assert set(list_models()) == set(MODELS)
    names = list_models("cct*")
    assert names.index("cct_2_3x2") < names.index("cct_14_3x2")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_9_p5", r"no model 'vit_9_p5'; did you mean 'vit_9_p\d'"),
        ("cct7_3x1", "did you mean 'cct_7_3x1'"),
        ("zzz", r"list_models\(\) lists all"),
        ("vit_9_p4+lsa+spt", r"add-ons are \+spt, \+lsa, \+spt\+lsa, in this order"),
        ("vit_9_p4+sptt", "add-ons are"),
        ("vit_9_p4+", "add-ons are"),
        ("cvt_13+lsa", "queries and keys differ in number"),
        ("hct_s_p8+lsa", r"hct_s_p8\+lsa: HCT has LSA built in; leave \+lsa out"),
        ("hct_s_p8+spt+lsa", "HCT has LSA built in"),
        ("", "list_models"),
        ("+spt", "no model ''"),
        ("resnet18", "no model 'resnet18'"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=message):
        create_model(name, num_classes=3, image_size=32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_pth": 0.1}, "no option 'drop_pth'; did you mean 'drop_path'"),
        ({"qqq": 1}, "no option 'qqq'; it knows"),
        ({"drop_path": 1.5}, r"drop_path is 1\.5: allowed is 0 up to below 1"),
        ({"position": "cosine"}, "position is 'cosine': allowed are learned, sine, none"),
        ({"pool": "max"}, "pool is 'max': allowed are class, mean, seq"),
        ({"directions": "up"}, "directions is 'up': allowed are diagonal, cardinal, all"),
        ({"image_size": 30}, r"multiples of 4, such as 28 or 32"),
        ({"image_size": (32, 33)}, r"image_size 32×33 does not divide.* such as 32 or 36"),
        ({"image_size": 2}, r"multiples of 4, such as 4$"),
        ({"image_size": (32, 32, 3)}, "one positive number, or two"),
        ({"image_size": 0}, "one positive number, or two"),
        ({"image_size": -4}, "one positive number, or two"),
        ({"image_size": 32.0}, "one positive number, or two"),
        ({"num_classes": -1}, "num_classes is -1: allowed is 0 to 1,000,000"),
        ({"num_classes": "10"}, "num_classes is '10': expected is a whole number"),
        ({"in_channels": 0}, "in_channels is 0: allowed is 1 to 65,536"),
        ({"patch_size": 0}, "patch_size is 0: allowed is 1 to 65,536"),
        ({"depth": 2.0}, r"depth is 2\.0: expected is a whole number"),
        ({"dropout": "a"}, "dropout is 'a': expected is a number"),
        ({"mlp_ratio": 0}, "mlp_ratio is 0: allowed is a number above 0"),
        ({"spt": 1}, "spt is 1: expected is True or False"),
        ({"shift": 0.1, "spt": True}, "less than one pixel"),
        ({"num_heads": 7}, "dim 192 is not a multiple of num_heads 7"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        create_model("vit_9_p4", **{"num_classes": 3, "image_size": 32, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (2, 2)}, "stages differ in number: depths has 2, num_heads has 3"),
        ({"depths": (2, 0, 2)}, "depths holds 0: allowed is 1 to 65,536"),
        ({"num_heads": 3}, "num_heads is 3: expected is a list, each a whole number"),
    ],
)
def test_bad_stages(options, message):
    with pytest.raises(ValueError, match=message):
        create_model("swin_tiny_p2", num_classes=3, image_size=32, **options)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("swin_tiny_p2", 24, "nearest sides that do are 16 and 32"),
        ("swin_tiny_p2", 30, "multiples of 8, such as 24 or 32"),
        ("swin_t", 256, "nearest sides that do are 192 and 224|nearest sides that do are 224"),
        ("t2t_12", 34, "strides 2, 2, so both sides must be multiples of 4, such as 32 or 36"),
        ("t2t_12", 60, "strides 2, 2, 2, so both sides must be multiples of 8, such as 56 or 64"),
        ("pit_tiny_p2+spt", 36, "multiples of 8, such as 32 or 40"),
        ("cait_24_p8", 60, "multiples of 8, such as 56 or 64"),
        ("vit_huge_p14", 225, "multiples of 14, such as 224 or 238"),
    ],
)
def test_sizes_that_do_not_divide(name, size, message):
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        create_model(name, num_classes=3, image_size=size)


@pytest.mark.parametrize(
    ("name", "size", "grid"),
    [
        ("t2t_12", 48, (12, 12)),
        ("t2t_12", 56, (7, 7)),
        ("t2t_12", 64, (8, 8)),
        ("t2t_12", (32, 64), (4, 8)),
        ("pit_tiny_p2", 36, (5, 5)),
        ("cct_7_3x1", (33, 20), (17, 10)),
        ("cct_7_7x2", 224, (14, 14)),
        ("cvt_13", (200, 230), (13, 15)),
        ("swin_tiny_p2", 16, (2, 2)),
        ("swin_t", (224, 448), (7, 14)),
        ("vit_9_p8", 64, (8, 8)),
        ("hct_s_p8", (30, 61), (4, 8)),
        ("hct_xs_p4", 33, (9, 9)),
        ("hct_m_p16", (1, 128), (1, 8)),
    ],
)
def test_sizes_that_do(name, size, grid):
    with torch.device("meta"):
        model = create_model(name, num_classes=3, image_size=size)
        images = torch.empty(1, 3, *model.config.image_size)
        features = model.forward_features(images)
    assert features.grid == grid
    assert features.tokens.shape[1] == grid[0] * grid[1]


def test_halves_of_lsa_switch_alone():
    def parts(name, **options):
        model = create_model(name, num_classes=3, image_size=32, **options)
        first = model.blocks[0].attention
        return isinstance(first.scale, torch.nn.Parameter), first.masked

    assert parts("vit_9_p4") == (False, False)
    assert parts("vit_9_p4+lsa") == (True, True)
    assert parts("vit_9_p4", temperature=True) == (True, False)
    assert parts("vit_9_p4", masked=True) == (False, True)
    assert parts("vit_9_p4+lsa", masked=False) == (True, False)


def test_the_parts_of_a_name():
    assert parse_name("vit_9_p4+spt+lsa") == ("vit_9_p4", ("spt", "lsa"))
    assert parse_name("+lsa") == ("", ("lsa",))
    name = parse_name("timm/vit_tiny_patch16_224.augreg+lsa")
    assert (name.timm, name.ours) == ("vit_tiny_patch16_224.augreg", False)
    assert str(name.plus(["spt"])) == "timm/vit_tiny_patch16_224.augreg+spt+lsa"
    assert str(name.plus([])) == str(name)
    assert (parse_name("cct_7_3x1+lsa").ours, parse_name("cct_7_3x1").timm) == (True, "")
    for wrong in ("timm/vit_tiny_patch16_224+lsa+spt", "vit_9_p4++", "resnet18+drloc"):
        with pytest.raises(ValueError, match="in this order"):
            parse_name(wrong)


def test_names_are_checked_without_building():
    for name in ("vit_9_p4+spt", "resnet18", "timm/resnet10t", "timm/vit_tiny_patch16_224+lsa"):
        assert str(check_name(name)) == name
    for name, message in [
        ("resnet18+lsa", "resnet18 is a CNN"),
        ("cifar_resnet65", "no model 'cifar_resnet65'; did you mean 'cifar_resnet56'"),
        ("timm/resnet18x", "timm has no model 'resnet18x'; did you mean 'resnet18"),
        ("zzz", "no model 'zzz'; `smallvit models`"),
        ("+spt+lsa", r"'\+spt\+lsa' is added to a model: name it too, as in vit_9_p4\+spt\+lsa"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_name(name)


def test_no_classes_leaves_the_head_out():
    model = create_model("vit_9_p4", num_classes=0, image_size=32)
    x = torch.zeros(1, 3, 32, 32)
    assert torch.equal(model.eval()(x), model.forward_features(x).pooled)


@pytest.mark.parametrize("position", ["learned", "sine", "none"])
@pytest.mark.parametrize("name", ["cct_2_3x2", "compact_vit_2_p4", "vit_lite_2_p4"])
def test_positions_of_the_compact_family(name, position):
    model = create_model(name, num_classes=3, image_size=32, position=position).eval()
    table = model.positions.table
    assert (table is None) == (position == "none")
    if table is not None:
        assert table.requires_grad == (position == "learned")
    assert model(torch.zeros(1, 3, 32, 32)).isfinite().all()
    assert model.resized(48).eval()(torch.zeros(1, 3, 48, 48)).isfinite().all()


def test_resized_keeps_the_weights_and_what_the_model_sees():
    torch.manual_seed(0)
    model = create_model("vit_9_p4+spt", num_classes=3, image_size=32).eval()
    same = model.resized(32)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(same(x), model(x))
    assert same.name == model.name
    assert not same.training
    larger = model.resized((64, 48))
    assert larger.config.image_size == (64, 48)
    assert torch.equal(larger.head.weight, model.head.weight)
    assert larger.positions.table.shape == (1, 1 + 16 * 12, 192)


def test_resized_swin_resamples_windows_too():
    model = create_model("swin_tiny_p2", num_classes=3, image_size=32).eval()
    smaller = model.resized(16)  # the last grid is 2×2, smaller than a window
    assert smaller.stages[2][0].attention.window == (2, 2)
    assert smaller(torch.zeros(1, 3, 16, 16)).isfinite().all()


def test_t2t_keeps_its_splits_at_any_size():
    model = create_model("t2t_12", num_classes=3, image_size=32, dim=32, depth=1).eval()
    larger = model.resized(64)  # a new model of this size would have three
    assert (len(model.config.splits), len(larger.config.splits)) == (2, 2)
    assert larger.resized(32).config.splits == model.config.splits
    assert larger(torch.zeros(1, 3, 64, 64)).isfinite().all()


def test_images_of_another_shape_get_a_sentence():
    model = create_model("vit_9_p4", num_classes=3, image_size=32)
    with pytest.raises(ValueError, match=r"3×32×32 .* got a batch shaped \(1, 3, 64, 64\)"):
        model(torch.zeros(1, 3, 64, 64))
    with pytest.raises(ValueError, match="expected images of 3×32×32"):
        model(torch.zeros(1, 1, 32, 32))


def test_building_a_model_twice_gives_the_same_start():
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(create_model("cait_24_p4+lsa", num_classes=3, image_size=8).state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_stochastic_depth_is_constant_or_a_ramp():
    def rates(name):
        model = create_model(name, num_classes=3, image_size=32)
        return [block.drop_path1.rate for block in model.blocks]

    assert rates("vit_9_p4") == [0.1] * 9
    assert rates("cct_7_3x1") == pytest.approx([0.1 * i / 6 for i in range(7)])
