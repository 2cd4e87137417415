"""Our own family: its stem and merging restated, its stages, its switches."""

import numpy as np
import pytest
import torch

from smallvit.explaining.explain import look
from smallvit.explaining.probes import receptive_field, temperatures
from smallvit.models import create_model
from smallvit.models.hct import ConvMerging, ConvStem
from smallvit.models.parameters import depths
from tests.arrays import arrays, assert_equal, noise, scramble
from tests.layers.test_attention import each
from tests.models.shrunk import shrunk
from tests.oracles import tokens as oracle


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("size", [(8, 12), (7, 9)])
@pytest.mark.parametrize(("strides", "residuals"), [((1, 1), 0), ((2, 1), 1), ((2, 2), 2)])
def test_stem(strides, residuals, size, activation):
    module = scramble(ConvStem(2, (3, 4), strides, residuals, activation=activation))
    images, act = noise(2, 2, *size), getattr(oracle, activation)
    expected = each(oracle.conv_stem, images, arrays(module), strides, residuals, act)
    assert_equal(module(images), expected)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("pooled", [None, 0, 2])
@pytest.mark.parametrize("grid", [(4, 2), (3, 5)])
def test_merging(grid, pooled, activation):
    module = ConvMerging(3, grid, 4, 5, "learned", pooled=pooled, activation=activation)
    module, act = scramble(module), getattr(oracle, activation)
    x = noise(2, grid[0] * grid[1], 3)
    assert_equal(module(x), each(oracle.conv_merging, x, arrays(module), grid, act))
    assert module.view(torch.ones(1, 1, *grid)).shape == (1, module(x).shape[1], 4)


@pytest.mark.parametrize(("patch", "side"), [(4, 32), (8, 64), (16, 128)])
def test_two_grids(patch, side):
    with torch.device("meta"):
        model = create_model(f"hct_xs_p{patch}", num_classes=3, image_size=side)
    assert model.grids == [(16, 16), (8, 8)]
    assert [stage.grid for stage in model.attention_stages()] == model.grids


def test_without_the_narrow_stage():
    """The stem's tokens then belong to no attention, and the merging to the first layer."""
    model = shrunk("hct_s_p8", narrow_depth=0).eval()
    x = torch.randn(2, 3, 16, 16)
    assert model.grids == [(2, 2)]
    assert len(model.attention_maps(x)) == len(model.stages[-1]) == 2
    assert [stage.view for stage in model.attention_stages()] == [None]
    assert receptive_field(model) == 25 + (3 - 1) * 4 + (3 - 1) * 8
    layers, last = depths(model)
    assert last == 3
    assert layers["mergings.0.proj.weight"] == layers["tokenizer.conv1.weight"] == 0
    assert model.resized((24, 16)).eval()(torch.randn(1, 3, 24, 16)).isfinite().all()


@pytest.mark.parametrize("narrow_depth", [0, 1])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_second_merging(narrow_depth, pooled):
    """It halves the grid behind the attention, which a rollout is carried through."""
    options = {"narrow_depth": narrow_depth, "tail_dim": 20, "pooled": pooled}
    model = shrunk("hct_s_p8", image_size=(24, 40), **options).eval()
    x = torch.randn(2, 3, 24, 40)
    assert model.grids[-2:] == [(3, 5), (2, 3)]
    assert [len(stage.attentions) for stage in model.attention_stages()] == [
        *[1] * narrow_depth,
        2,
        0,
    ]
    features = model.forward_features(x)
    assert (features.tokens.shape, features.grid) == ((2, 6, 20), (2, 3))
    assert model.head.in_features == 20
    shares = look(model, x).shares.places
    assert shares.shape == (2, *model.grids[0])
    np.testing.assert_allclose(shares.sum((1, 2)), np.ones(2), rtol=1e-5)
    layers, last = depths(model)
    assert layers["mergings.1.proj.weight"] == last


def test_what_the_attention_of_hct2_sees():
    model = shrunk("hct2_s_p8")
    assert receptive_field(model) == 25 + (3 - 1) * 4 + (2 - 1) * 4


def test_residual_blocks_before_the_attention_widen_what_it_sees():
    model = shrunk("hct2_s_p8", merge_residuals=1, activation="gelu")
    assert receptive_field(model) == receptive_field(shrunk("hct2_s_p8")) + 2 * (3 - 1) * 8
    assert len(model.mergings[0].block.residuals) == 1
    parts = (part for part in model.modules() if isinstance(part, torch.nn.ReLU | torch.nn.GELU))
    assert {type(part) for part in parts} == {torch.nn.GELU}
    with pytest.raises(ValueError, match="merge_residuals follow a maximum: they need pooled=True"):
        shrunk("hct_s_p8", merge_residuals=1)


def test_lsa_is_built_in_and_comes_apart():
    np.testing.assert_allclose(temperatures(shrunk("hct_s_p8")), np.ones((3, 2)), rtol=1e-6)
    plain = shrunk("hct_s_p8", temperature=False, masked=False).eval()
    assert temperatures(plain) == []
    maps = plain.attention_maps(torch.randn(1, 3, 16, 16))
    assert all(part.diagonal(dim1=-2, dim2=-1).min() > 0 for part in maps)


def test_positions():
    for kind, count in (("learned", 2), ("sine", 2), ("none", 0)):
        model = shrunk("hct_s_p8", position=kind)
        tables = [key for key in model.state_dict() if key.endswith("table")]
        assert len(tables) == count
        assert sum(model.get_parameter(key).requires_grad for key in tables) == (
            2 if kind == "learned" else 0
        )


def test_stochastic_depth_rises_through_both_stages():
    model = shrunk("hct_s_p8", drop_path=0.2)
    blocks = [block for stage in model.stages for block in stage]
    assert [block.drop_path1.rate for block in blocks] == pytest.approx([0, 0.1, 0.2])


def test_other_strides_are_refused():
    with pytest.raises(ValueError, match="patch_size is 5: allowed are 4, 8, 16"):
        create_model("hct_s_p8", num_classes=3, image_size=32, patch_size=5)
