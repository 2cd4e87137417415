"""How the weights start, where a paper or its code says so."""

import re

import pytest
import torch

from smallvit import create_model, list_models
from tests.test_house import ROOT


def build(name):
    torch.manual_seed(0)
    return create_model(name, num_classes=100, image_size=32)


def test_vit_of_the_spt_paper():
    model = build("vit_9_p4+lsa")
    assert model.positions.table.std().item() == pytest.approx(1, abs=0.05)
    assert model.pool.token.std().item() == pytest.approx(1, abs=0.2)
    weight = model.blocks[0].mlp.fc1.weight
    assert weight.std().item() == pytest.approx((2 / (192 + 384)) ** 0.5, rel=0.05)
    assert torch.equal(model.blocks[0].attention.scale, torch.full((12,), 16**-0.5))


def test_compact():
    model = build("cct_7_3x1")
    assert model.positions.table.std().item() == pytest.approx(0.2, rel=0.05)
    assert model.blocks[0].mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.tokenizer.convs[0].weight.std().item() == pytest.approx((2 / 27) ** 0.5, rel=0.05)


def test_layer_scale_of_cait():
    model = build("cait_24_p4")
    starts = [block.scale1.factor[0].item() for block in model.blocks]
    assert starts == pytest.approx([0.1] * 18 + [1e-5] * 6)
    assert [block.scale2.factor[0].item() for block in model.class_blocks] == pytest.approx(
        [0.1] * 2
    )


def test_temperature_of_the_token_transformer_starts_at_its_input_width():
    for name, width in (("t2t_12+lsa", 27), ("t2t_12+spt+lsa", 135)):
        scale = build(name).tokenizer.transformers[0].attention.scale
        assert scale.tolist() == pytest.approx([width**-0.5])


def test_performer_rows_are_orthogonal_and_fixed():
    with torch.device("cpu"):
        model = create_model("t2t_14", num_classes=3, image_size=32)
    rows = model.tokenizer.transformers[0].rows
    assert not rows.requires_grad
    torch.testing.assert_close(rows @ rows.T, 32 * torch.eye(32), rtol=1e-4, atol=1e-4)


def std(tensor):
    return tensor.detach().double().std().item()


def uniform(fan_in):
    """PyTorch's start of a linear layer."""
    return (3 * fan_in) ** -0.5


def test_patches_of_the_spt_paper_start_as_the_linear_layer_they_are():
    for name in ("vit_9_p4", "cait_24_p4"):
        proj = build(name).tokenizer.proj
        assert std(proj.weight) == pytest.approx((2 / (48 + 192)) ** 0.5, rel=0.05)
        assert not proj.bias.any()


def test_small_swin_starts_as_pytorch_does():
    model = build("swin_tiny_p2+spt+lsa")
    assert std(model.tokenizer.proj.weight) == pytest.approx(uniform(60), rel=0.05)
    merging = model.mergings[0].spt if hasattr(model.mergings[0], "spt") else model.mergings[0]
    weights = [p for p in merging.parameters() if p.ndim == 2]
    assert std(weights[0]) == pytest.approx(uniform(20 * 96), rel=0.05)
    for stage, dim in zip(model.stages, (96, 192, 384), strict=True):
        qkv = stage[0].attention.qkv
        assert std(qkv.weight) == pytest.approx(uniform(dim), rel=0.05)
        assert std(qkv.bias) == pytest.approx(uniform(dim), rel=0.2)
    assert std(build("swin_tiny_p2").stages[0][0].attention.bias_table) == pytest.approx(
        0.02, rel=0.2
    )


def test_swin_t_starts_narrow():
    with torch.device("cpu"):
        model = create_model("swin_t", num_classes=3, image_size=224)
    qkv = model.stages[0][0].attention.qkv
    assert std(qkv.weight) == pytest.approx(0.02, rel=0.05)
    assert not qkv.bias.any()


@pytest.mark.parametrize("name", ["vit_lite_7_p4", "compact_vit_7_p4"])
def test_patches_of_compact_transformers_start_kaiming_normal(name):
    assert std(build(name).tokenizer.proj.weight) == pytest.approx((2 / 48) ** 0.5, rel=0.05)


def test_vit_base_starts_narrow_and_drops_nothing():
    with torch.device("cpu"):
        model = create_model("vit_base_p16", num_classes=3, image_size=224, depth=1)
    assert std(model.blocks[0].mlp.fc1.weight) == pytest.approx(0.02, rel=0.05)
    assert not model.blocks[0].attention.qkv.bias.any()
    assert std(model.tokenizer.proj.weight) == pytest.approx(uniform(3 * 16 * 16), rel=0.05)
    assert std(model.positions.table) == pytest.approx(0.02, rel=0.05)
    assert not model.pool.token.any()
    dropouts = [part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)]
    assert not any([*dropouts, model.blocks[0].attention.attn_dropout])


def test_every_published_family_has_a_row_in_the_documentation():
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    text = text.partition("## How weights start")[2]
    families = {
        name
        for line in text.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    missing = {
        name
        for name in list_models()
        if not any(name == family or name.startswith(f"{family}_") for family in families)
    }
    assert missing == set(list_models("hct*"))  # our own, of which the page says it elsewhere


def test_queries_of_cait_start_apart_from_keys_and_values():
    model = build("cait_24_p4")
    for block in (model.blocks[3], model.class_blocks[0]):
        weight = block.attention.qkv.weight
        assert std(weight[:256]) == pytest.approx((2 / (192 + 256)) ** 0.5, rel=0.03)
        assert std(weight[256:]) == pytest.approx((2 / (192 + 512)) ** 0.5, rel=0.03)


@pytest.mark.parametrize(
    ("name", "first", "last", "size"),
    [
        ("vit_9_p4", 0.1, 0.1, 32),
        ("cait_24_p4", 0.1, 0.1, 32),
        ("pit_tiny_p2", 0.1, 0.1, 32),
        ("swin_tiny_p2", 0.0, 0.1, 32),
        ("t2t_12", 0.0, 0.1, 32),
        ("cct_7_3x1", 0.0, 0.1, 32),
        ("vit_base_p16", 0.0, 0.0, 224),
        ("swin_t", 0.0, 0.2, 224),
        ("t2t_14", 0.0, 0.0, 224),
        ("cvt_13", 0.0, 0.0, 224),
    ],
)
def test_stochastic_depth_as_released(name, first, last, size):
    from smallvit.layers import DropPath

    with torch.device("meta"):
        model = create_model(name, num_classes=3, image_size=size)
    rates = [part.rate for part in model.modules() if isinstance(part, DropPath)]
    assert rates[0] == pytest.approx(first)
    assert rates[-1] == pytest.approx(last)
    assert rates == sorted(rates)


def test_performers_drop_at_the_end_of_both_branches():
    with torch.device("meta"):
        performer = create_model("t2t_14", num_classes=3, image_size=32).tokenizer.transformers[0]
    assert performer.dropout.p == 0.1
    assert performer.mlp.dropout.p == 0.0


def xavier(fan_in, fan_out):
    return (2 / (fan_in + fan_out)) ** 0.5


#: Model and parameter, and the standard deviation with which the authors' code starts it.
STARTS = [
    ("pit_tiny_p2", "positions.table", 1.0),
    ("pit_tiny_p2", "tokenizer.proj.weight", xavier(12, 4 * 96)),
    ("pit_tiny_p2", "stages.1.0.attention.qkv.weight", xavier(192, 576)),
    ("pit_tiny_p2", "stages.1.0.mlp.fc1.weight", xavier(192, 384)),
    ("pit_tiny_p2", "poolings.0.depthwise.weight", xavier(9, 9 * 192)),
    ("pit_tiny_p2", "poolings.0.class_proj.weight", xavier(96, 192)),
    ("pit_tiny_p2+spt+lsa", "tokenizer.proj.weight", xavier(60, 96)),
    ("pit_tiny_p2+spt+lsa", "poolings.0.spt.proj.weight", xavier(20 * 96, 192)),
    ("pit_tiny_p2", "stages.1.0.mlp.fc1.bias", 0.0),
    ("swin_tiny_p2", "positions.table", 0.02),
    ("t2t_12", "tokenizer.transformers.0.attention.qkv.weight", 0.02),
    ("t2t_12", "tokenizer.proj.weight", 0.02),
    ("t2t_12", "blocks.3.mlp.fc1.weight", 0.02),
    ("t2t_12", "blocks.3.mlp.fc1.bias", 0.0),
    ("t2t_12", "pool.token", 0.02),
    ("t2t_14", "tokenizer.transformers.0.kqv.weight", 0.02),
    ("t2t_14", "blocks.3.attention.qkv.weight", 0.02),
    ("t2t_14", "pool.token", 0.02),
    ("cvt_13", "stages.1.0.mlp.fc1.weight", uniform(192)),
    ("cvt_13", "stages.1.0.mlp.fc1.bias", uniform(192)),
    ("vit_lite_7_p4", "positions.table", 0.2),
    ("vit_lite_7_p4", "pool.token", 0.0),
    ("vit_lite_7_p4", "blocks.3.attention.qkv.weight", 0.02),
    ("cct_2_3x2", "tokenizer.convs.1.weight", (2 / (9 * 64)) ** 0.5),
]


@pytest.fixture(scope="module")
def parameters():
    built = {name: dict(build(name).named_parameters()) for name, _, _ in STARTS}
    return lambda model, name: built[model][name]


@pytest.mark.parametrize(("model", "name", "expected"), STARTS)
def test_starts_are_those_of_the_released_code(parameters, model, name, expected):
    tensor = parameters(model, name)
    assert std(tensor) == pytest.approx(expected, rel=0.1 if tensor.numel() > 1_000 else 0.25)
