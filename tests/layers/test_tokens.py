"""Tokenizers, merging, pooling and positions against their literal restatements."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smallvit.layers import (
    SPT,
    ClassToken,
    ConvTokenizer,
    MeanPool,
    PatchMerging,
    PatchTokenizer,
    PiTPooling,
    Positions,
    SeqPool,
    SPTPooling,
    resample,
    shifted_stack,
    sinusoid,
    soft_split,
)
from tests.arrays import arrays, assert_equal, noise, scramble
from tests.layers.test_attention import each
from tests.oracles import tokens as oracle


@pytest.mark.parametrize("directions", ["diagonal", "cardinal", "all"])
@pytest.mark.parametrize(("channels", "size"), [(3, (8, 8)), (1, (8, 12)), (4, (12, 4))])
@pytest.mark.parametrize("shift", [0.25, 0.5])
def test_spt(directions, channels, size, shift):
    module = scramble(SPT(channels, 6, 4, shift=shift, directions=directions))
    x = noise(2, channels, *size)
    assert_equal(module(x), each(oracle.spt, x, arrays(module), 4, int(4 * shift), directions))


@settings(max_examples=25, deadline=None)
@given(
    patch=st.integers(2, 7),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    channels=st.integers(1, 5),
    shift=st.floats(0.5, 1.5),
)
def test_spt_of_any_shape(patch, rows, columns, channels, shift):
    module = scramble(SPT(channels, 3, patch, shift=shift))
    x = noise(1, channels, rows * patch, columns * patch)
    pixels = int(np.floor(shift * patch))
    assert_equal(module(x), each(oracle.spt, x, arrays(module), patch, pixels))


def test_spt_rounds_the_shift_of_odd_patches_down():
    assert SPT(3, 8, 5).shift == 2
    assert SPT(3, 8, 3).shift == 1


def test_spt_refuses_a_shift_of_no_pixel():
    with pytest.raises(ValueError, match=r"at least 0\.25"):
        SPT(3, 8, 4, shift=0.2)
    with pytest.raises(ValueError, match="'sideways': allowed are"):
        SPT(3, 8, 4, directions="sideways")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 10, 8), "images of 10×8 do not divide into patches of 4"),
        ((1, 4, 8, 8), r"expected images of \(batch, 3, height, width\) and got \(1, 4, 8, 8\)"),
        ((3, 8, 8), r"expected images of \(batch, 3, height, width\) and got \(3, 8, 8\)"),
    ],
)
def test_spt_says_which_images_it_takes(shape, message):
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(SPT.forward)(SPT(3, 8, 4), torch.zeros(shape))


def test_conv_tokenizer_needs_a_layer():
    with pytest.raises(ValueError, match="layers is 0: allowed is 1 to"):
        ConvTokenizer(3, 8, kernel=3, layers=0, stride=1)


def test_spt_sees_twice_the_patch():
    """The receptive field of a token is 2P with SPT and P without."""
    x = torch.zeros(1, 3, 32, 32, requires_grad=True)
    for module, side in ((SPT(3, 8, 4), 8), (PatchTokenizer(3, 8, 4), 4)):
        token = module(x + torch.rand(x.shape))[0, 8 * 4 + 4]
        (gradient,) = torch.autograd.grad(token.square().sum(), x)
        rows = gradient.abs().sum((0, 1, 3)).nonzero().flatten()
        assert (rows[-1] - rows[0] + 1).item() == side


def test_shifted_stack():
    x = noise(2, 3, 6, 8)
    for directions in ("diagonal", "cardinal", "all"):
        expected = each(oracle.shifted_stack, x, 2, directions)
        assert_equal(shifted_stack(x, 2, directions), expected)


def test_patch_tokenizer_is_a_linear_layer_on_patches():
    module = scramble(PatchTokenizer(3, 6, 4))
    x = noise(2, 3, 8, 12)
    weight = module.proj.weight.detach().permute(0, 2, 3, 1).flatten(1).numpy()
    bias = module.proj.bias.detach().numpy()
    assert_equal(module(x), each(lambda image: oracle.patches(image, 4) @ weight.T + bias, x))


@pytest.mark.parametrize(("kernel", "layers", "stride"), [(3, 1, 1), (3, 2, 1), (7, 2, 2)])
def test_conv_tokenizer(kernel, layers, stride):
    module = scramble(ConvTokenizer(2, 5, kernel=kernel, layers=layers, stride=stride))
    x = noise(1, 2, 13, 16)
    expected = each(oracle.conv_tokenizer, x, arrays(module), layers, stride, kernel // 2)
    assert_equal(module(x), expected)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (7, 4, 2)])
def test_soft_split(kernel, stride, padding):
    x = noise(2, 3, 8, 12)
    assert_equal(
        soft_split(x, kernel, stride, padding), each(oracle.soft_split, x, kernel, stride, padding)
    )


def test_patch_merging():
    module = scramble(PatchMerging(5, (4, 6)))
    x = noise(2, 24, 5)
    assert module.grid == (2, 3)
    assert_equal(module(x), each(oracle.patch_merging, x, arrays(module), (4, 6)))


@pytest.mark.parametrize("grid", [(4, 6), (5, 3)])
def test_pit_pooling(grid):
    module = scramble(PiTPooling(4, grid))
    x = noise(2, 1 + grid[0] * grid[1], 4)
    y = module(x)
    assert y.shape[1] == 1 + module.grid[0] * module.grid[1]
    assert_equal(y, each(oracle.pit_pooling, x, arrays(module), grid))


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_spt_pooling(prefix):
    module = scramble(SPTPooling(3, (4, 6), prefix=prefix))
    x = noise(2, prefix + 24, 3)
    assert_equal(module(x), each(oracle.spt_pooling, x, arrays(module), (4, 6), prefix))


def test_spt_pooling_needs_an_even_grid():
    with pytest.raises(ValueError, match="even grid, not 4×5"):
        SPTPooling(3, (4, 5))


def test_seq_pool():
    module = scramble(SeqPool(6))
    x = noise(2, 5, 6)
    assert_equal(module(x), each(oracle.seq_pool, x, arrays(module)))
    torch.testing.assert_close(module.weights(x).sum(-1), torch.ones(2, dtype=torch.float64))


def test_mean_pool_and_class_token():
    x = noise(2, 5, 6)
    assert_equal(MeanPool()(x), x.numpy().mean(1))
    pool = scramble(ClassToken(6))
    assert torch.equal(pool(pool.prepend(x)), pool.token[0].expand(2, -1))
    assert torch.equal(pool.prepend(x)[:, 1:], x)


def test_sinusoid():
    np.testing.assert_allclose(sinusoid(9, 6).numpy(), oracle.sinusoid(9, 6), atol=1e-7)


def test_positions_add_their_table():
    x = noise(2, 7, 4).float()
    assert torch.equal(Positions("none", (2, 3), 4, prefix=1)(x), x)
    fixed = Positions("sine", (2, 3), 4, prefix=1)
    assert not fixed.table.requires_grad
    torch.testing.assert_close(fixed(x), x + sinusoid(7, 4))
    learned = Positions("learned", (2, 3), 4, prefix=1, std=1.0)
    assert torch.equal(learned(x), x + learned.table)


@pytest.mark.parametrize("new", [(8, 8), (3, 7), (12, 4)])
def test_resampling_agrees_with_timm(new):
    from timm.layers import resample_abs_pos_embed

    table = noise(1, 1 + 6 * 5, 4).float()
    theirs = resample_abs_pos_embed(
        table, list(new), old_size=[6, 5], num_prefix_tokens=1, verbose=False
    )
    torch.testing.assert_close(resample(table, (6, 5), new, prefix=1), theirs)


def test_resampling_keeps_a_plane_and_the_class_token():
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
    table = torch.cat([torch.tensor([[99.0]]), (rows + 10 * columns).reshape(-1, 1)])[None]
    assert torch.equal(resample(table, (4, 6), (4, 6), 1), table)
    new = resample(table, (4, 6), (8, 12), 1)
    assert new[0, 0, 0] == 99
    inside = new[0, 1:, 0].view(8, 12)[3:5, 5:7]
    torch.testing.assert_close(inside.diff(dim=0).mean(), torch.tensor(0.5), rtol=0.05, atol=0)


def test_resampling_refuses_a_table_that_does_not_fit():
    with pytest.raises(ValueError, match="10 entries does not fit a grid of 3×4"):
        resample(torch.zeros(1, 10, 2), (3, 4), (4, 4))
