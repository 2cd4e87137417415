"""The parts `localize` puts into timm's models, against literal restatements in float64."""

import math

import numpy as np
import pytest
import torch

from smallvit.models.timm_names import localize
from tests.arrays import arrays, assert_equal, noise, scramble
from tests.models.timm_makers import MAKERS, SMALL_VIT
from tests.oracles.attention import heads_of, layer_norm, linear, weights_of
from tests.oracles.tokens import spt as literal_spt


def attend(q, k, v, scale, *, after_bias=0.0, **options):
    """Weights, and the values they mix with the heads side by side."""
    weights = weights_of(q, k, scale, **options) + after_bias
    return weights, np.concatenate([w @ v_ for w, v_ in zip(weights, v, strict=True)], -1)


def compare(part, x, oracle, *args):
    """A layer's output and weights, fused and asked for, against the oracle of each image."""
    weights: list[torch.Tensor] = []
    with torch.no_grad():
        fused, asked = part(x, *args), part(x, *args, weights=weights)
    expected = [oracle(n, image.numpy()) for n, image in enumerate(x)]
    assert_equal(fused, np.stack([y for _, y in expected]))
    assert_equal(asked, np.stack([y for _, y in expected]))
    assert_equal(weights[0], np.stack([w for w, _ in expected]))


def test_attention_with_its_norms():
    model = SMALL_VIT(qk_norm=True, scale_attn_norm=True)
    part = scramble(localize(model, spt=False)).blocks[0].attn
    values = arrays(part)

    def oracle(_, x):
        q, k, v = heads_of(linear(x, values, "qkv"), 3, 3)
        q, k = layer_norm(q, values, "q_norm", 1e-6), layer_norm(k, values, "k_norm", 1e-6)
        weights, y = attend(q, k, v, values["scale"], masked=True)
        return weights, linear(layer_norm(y, values, "norm", 1e-6), values, "proj")

    compare(part, noise(2, 7, 24), oracle)


def test_talking_heads_mask_after_the_mixing():
    part = scramble(localize(MAKERS["cait"](), spt=False)).blocks[0].attn
    values = arrays(part)
    assert values["proj_l.weight"].min() < 0, "a mask before the mixing would make a NaN of this"

    def oracle(_, x):
        q, k, v = heads_of(linear(x, values, "qkv"), 4, 3)
        weights, y = attend(
            q,
            k,
            v,
            values["scale"],
            masked=True,
            before=values["proj_l.weight"].T,
            bias=values["proj_l.bias"][:, None, None],
            after=values["proj_w.weight"].T,
            after_bias=values["proj_w.bias"][:, None, None],
        )
        return weights, linear(y, values, "proj")

    compare(part, noise(2, 6, 48), oracle)


def test_class_attention_learns_its_scale_and_masks_nothing():
    part = scramble(localize(MAKERS["cait"](), spt=False)).blocks_token_only[0].attn
    values = arrays(part)

    def oracle(_, x):
        (q,), (k,), (v,) = (heads_of(linear(x, values, name), 4, 1) for name in "qkv")
        weights, y = attend(q[:, :1], k, v, values["scale"])
        return weights, linear(y, values, "proj")

    compare(part, noise(2, 6, 48), oracle)


@pytest.mark.parametrize("rolled", [False, True])
def test_window_attention_scales_then_biases_then_masks(rolled):
    model = MAKERS["swin"]()
    block = scramble(localize(model, spt=False)).layers[1].blocks[int(rolled)]
    part, mask = block.attn, block.attn_mask
    assert (mask is not None) == rolled
    values, windows = arrays(part), 1 if mask is None else len(mask)

    def oracle(n, x):
        bias = np.zeros((6, 16, 16))
        for i in range(16):
            for j in range(16):
                row, column = i // 4 - j // 4 + 3, i % 4 - j % 4 + 3
                bias[:, i, j] = values["relative_position_bias_table"][7 * row + column]
        if mask is not None:
            bias = bias + mask[n % windows].numpy()
        q, k, v = heads_of(linear(x, values, "qkv"), 6, 3)
        weights, y = attend(q, k, v, values["scale"], masked=True, bias=bias)
        return weights, linear(y, values, "proj")

    compare(part, noise(2 * windows, 16, 48), oracle, mask)


def shifted_map(images, part):
    """SPT of a batch of maps; what is missing to whole patches is zero."""
    p, side = part.patch_size, part.shift
    values, out = arrays(part), []
    for image in images.numpy():
        bottom, right = -image.shape[1] % p, -image.shape[2] % p
        whole = np.pad(image, ((0, 0), (0, bottom), (0, right)))
        tokens = literal_spt(whole, values, p, side, part.directions)
        out.append(tokens.T.reshape(-1, whole.shape[1] // p, whole.shape[2] // p))
    return np.stack(out)


def as_tokens(maps):
    return maps.reshape(*maps.shape[:2], -1).transpose(0, 2, 1)


@torch.no_grad()
def test_a_branch_adds_shifted_patches():
    local = scramble(localize(SMALL_VIT(img_size=12), lsa=False))
    old = SMALL_VIT(img_size=12).patch_embed.double()
    old.load_state_dict(local.patch_embed.state_dict(), strict=False)
    images = noise(2, 3, 12, 12)
    expected = old(images).numpy() + as_tokens(shifted_map(images, local.patch_embed.spt))
    assert_equal(local.patch_embed(images), expected)


@pytest.mark.parametrize("directions", ["diagonal", "cardinal", "all"])
@torch.no_grad()
def test_a_fresh_embedding_is_the_papers(directions):
    local = localize(SMALL_VIT(img_size=12), lsa=False, start="fresh", directions=directions)
    width, dim = local.patch_embed.proj.proj.in_features, 24
    spread = local.patch_embed.proj.proj.weight.std() * math.sqrt((width + dim) / 2)
    assert abs(spread - 1) < 0.1, "xavier"
    embed, images = scramble(local).patch_embed, noise(1, 3, 12, 12)
    assert_equal(embed(images), as_tokens(shifted_map(images, embed.proj)))


@pytest.mark.parametrize("start", ["pretrained", "fresh"])
@torch.no_grad()
def test_pit_pools_with_shifted_patches(start):
    plain = MAKERS["pit"]()
    pool = scramble(localize(plain, lsa=False, start=start)).transformers[1].pool
    x, token = noise(2, 64, 5, 4), noise(2, 1, 64)
    expected = shifted_map(x, pool.conv if start == "fresh" else pool.spt)
    if start == "pretrained":
        old = plain.transformers[1].pool.conv.double()
        old.load_state_dict(pool.conv.state_dict())
        expected = expected + old(x).numpy()
    pooled, widened = pool(x, token)
    assert_equal(pooled, expected)
    assert_equal(widened, linear(token.numpy(), arrays(pool), "fc"))


@pytest.mark.parametrize("start", ["pretrained", "fresh"])
@torch.no_grad()
def test_swin_merges_with_shifted_patches(start):
    plain = MAKERS["swin"]()
    merging = scramble(localize(plain, lsa=False, start=start)).layers[1].downsample
    x = noise(2, 5, 4, 24)
    spt = merging if start == "fresh" else merging.spt
    expected = shifted_map(x.permute(0, 3, 1, 2), spt).transpose(0, 2, 3, 1)
    if start == "pretrained":
        old = plain.layers[1].downsample.double()
        old.load_state_dict(merging.state_dict(), strict=False)
        expected = expected + old(x).numpy()
    assert_equal(merging(x), expected)
