"""Every attention against its literal restatement, and what must hold for each."""

import numpy as np
import pytest
import torch

from smallvit.layers import (
    LSA,
    Attention,
    ConvAttention,
    Performer,
    TokenTransformer,
    WindowAttention,
    attend,
)
from tests.arrays import arrays, assert_equal, noise, scramble
from tests.oracles import attention as oracle

HALVES = [(False, False), (True, False), (False, True), (True, True)]


def each(function, x, *args, **kwargs):
    """An oracle over the images of a batch."""
    return np.stack([function(image.numpy(), *args, **kwargs) for image in x])


def scale_of(module, default):
    return module.scale.detach().numpy() if isinstance(module.scale, torch.Tensor) else default


@pytest.mark.parametrize(("temperature", "masked"), HALVES)
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_attention(temperature, masked, qkv_bias):
    module = Attention(12, 3, qkv_bias=qkv_bias, temperature=temperature, masked=masked)
    x = noise(2, 5, 12)
    expected = each(
        oracle.attention, x, arrays(scramble(module)), 3, scale_of(module, 0.5), masked=masked
    )
    assert_equal(module(x), expected)


@pytest.mark.parametrize(("temperature", "masked"), HALVES)
def test_talking_heads_mask_after_mixing(temperature, masked):
    module = Attention(12, 3, head_dim=8, talking=True, temperature=temperature, masked=masked)
    x = noise(2, 5, 12)
    weights = arrays(scramble(module))
    scale = scale_of(module, 8**-0.5)
    expected = each(oracle.attention, x, weights, 3, scale, masked=masked, talking=True)
    assert_equal(module(x), expected)


def test_attention_to_a_context():
    module = scramble(Attention(12, 3, qkv_bias=True, talking=True))
    x, context = noise(2, 1, 12), noise(2, 7, 12, seed=2)
    expected = np.stack(
        [
            oracle.attention(a.numpy(), arrays(module), 3, 0.5, context=b.numpy(), talking=True)
            for a, b in zip(x, context, strict=True)
        ]
    )
    assert_equal(module(x, context), expected)


class Doubled(torch.nn.Module):
    """A wrapper of a layer, as adapters are."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return 2 * self.layer(x)


def test_a_wrapped_projection_is_called_with_and_without_a_context():
    module = scramble(Attention(12, 3, qkv_bias=True))
    x, context = noise(2, 1, 12), noise(2, 7, 12, seed=2)
    plain = module(x, context)
    doubled = scramble(Attention(12, 3, qkv_bias=True))
    with torch.no_grad():
        doubled.qkv.weight.mul_(2)
        doubled.qkv.bias.mul_(2)
    expected = doubled(x, context)
    assert not torch.allclose(plain, expected)
    module.qkv = Doubled(module.qkv)
    torch.testing.assert_close(module(x, context), expected)


def test_hooks_of_the_projection_run_with_a_context():
    module = scramble(Attention(12, 3, qkv_bias=True))
    x, context = noise(2, 1, 12), noise(2, 7, 12, seed=2)
    plain, seen = module(x, context), []
    first = module.qkv.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    then = module.qkv.register_forward_hook(lambda _, given, out: seen.append(out.shape))
    torch.testing.assert_close(module(x, context), plain)
    assert seen == [(2, 1, 12), (2, 1, 36), (2, 7, 12), (2, 7, 36)]
    first.remove()
    then.remove()
    assert torch.equal(module(x, context), plain)


@pytest.mark.parametrize(("temperature", "masked"), HALVES)
@pytest.mark.parametrize("grid", [(4, 6), (2, 4), (2, 2), (6, 6)])
@pytest.mark.parametrize("shifted", [False, True])
def test_window_attention(temperature, masked, grid, shifted):
    module = WindowAttention(
        8, 2, grid=grid, window=2, shifted=shifted, temperature=temperature, masked=masked
    )
    x = noise(2, grid[0] * grid[1], 8)
    weights = arrays(scramble(module))
    scale = scale_of(module, 0.5)
    expected = each(
        oracle.window_attention, x, weights, 2, grid, 2, int(shifted), scale, masked=masked
    )
    assert_equal(module(x), expected)


def test_shares_of_dropout_are_checked():
    with pytest.raises(ValueError, match=r"attn_dropout is 1\.5: allowed is 0 to 1"):
        LSA(8, 2, attn_dropout=1.5)


def test_window_attention_refuses_a_grid_that_does_not_divide():
    with pytest.raises(ValueError, match="6×5 tokens does not divide into windows of 4"):
        WindowAttention(8, 2, grid=(6, 5), window=4)


@pytest.mark.parametrize("grid", [(4, 4), (5, 3)])
def test_conv_attention(grid):
    module = scramble(ConvAttention(8, 2, grid=grid, head_dim=4))
    x = noise(2, grid[0] * grid[1], 8)
    assert_equal(module(x), each(oracle.conv_attention, x, arrays(module), 2, grid, 4))


@pytest.mark.parametrize(("temperature", "masked"), HALVES)
def test_token_transformer(temperature, masked):
    module = scramble(TokenTransformer(9, 6, temperature=temperature, masked=masked))
    scale = scale_of(module.attention, 1 / 3)
    x = noise(2, 5, 9)
    expected = each(oracle.token_transformer, x, arrays(module), scale, masked=masked)
    assert_equal(module(x), expected)


def test_performer():
    module = scramble(Performer(9, 6))
    x = noise(2, 5, 9)
    assert_equal(module(x), each(oracle.performer, x, arrays(module)))


def test_performer_computes_in_float32_under_autocast():
    module, weights = scramble(Performer(9, 6)).float(), []
    with torch.autocast("cpu", torch.bfloat16):
        module(noise(2, 5, 9).float(), weights=weights)
    assert weights[0].dtype == torch.float32
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(2, 1, 5))


def test_temperature_starts_at_the_plain_scale():
    local, plain = LSA(12, 3, masked=False), Attention(12, 3)
    plain.load_state_dict({k: v for k, v in local.state_dict().items() if k != "scale"})
    x = noise(2, 5, 12).float()
    assert local.scale.shape == (3,)
    torch.testing.assert_close(local(x), plain(x))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize("bias", [False, True])
def test_returned_weights_are_those_of_the_fused_path(masked, tokens, bias):
    q, k = noise(2, 3, tokens, 4), noise(2, 3, tokens, 4, seed=2)
    scale = noise(3, 1, 1, seed=3)
    options = {"scale": scale, "masked": masked}
    if bias:
        options["bias"] = noise(3, tokens, tokens, seed=4)
    identity = torch.eye(tokens, dtype=torch.float64).expand(2, 3, -1, -1)
    fused = attend(q, k, identity, **options)  # values that are one-hot give back the weights
    weights = []
    attend(q, k, identity, **options, weights=weights)
    torch.testing.assert_close(weights[0], fused, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(2, 3, tokens, dtype=torch.float64))


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (LSA(12, 3), (2, 5, 12)),
        (Attention(12, 3, talking=True), (2, 5, 12)),
        (WindowAttention(12, 3, grid=(4, 6), window=2, shifted=True, masked=True), (2, 24, 12)),
        (ConvAttention(12, 3, grid=(4, 6), head_dim=4), (2, 24, 12)),
        (TokenTransformer(9, 6, masked=True), (2, 5, 9)),
        (Performer(9, 6), (2, 5, 9)),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, torch.nn.Module) else "",
)
def test_asking_for_weights_changes_nothing(module, x):
    module = scramble(module)
    x = noise(*x)
    weights = []
    torch.testing.assert_close(module(x, weights=weights), module(x), rtol=1e-10, atol=1e-10)
    assert len(weights) == 1
    assert weights[0].ndim == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 2, 65, 257])
def test_lsa_in_every_precision(dtype, tokens):
    module = LSA(16, 2).to(dtype)
    x = (3 * noise(2, tokens, 16)).to(dtype)
    weights = []
    y = module(x, weights=weights)
    assert y.isfinite().all()
    torch.testing.assert_close(y.float(), module(x).float(), rtol=0.05, atol=0.05)
    diagonal = weights[0].diagonal(dim1=-2, dim2=-1)
    assert (diagonal == (1 if tokens == 1 else 0)).all()
    total = weights[0].sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-3, atol=1e-3)


def test_lsa_under_autocast_gives_gradient_to_its_temperature():
    module = LSA(16, 2)
    with torch.autocast("cpu", torch.bfloat16):
        loss = module(noise(2, 5, 16).float()).square().sum()
    loss.backward()
    assert module.scale.grad.abs().min() > 0


def test_mask_follows_the_number_of_tokens():
    module = LSA(16, 2)
    for tokens in (3, 9, 4):
        weights = []
        module(noise(1, tokens, 16).float(), weights=weights)
        assert weights[0].shape == (1, 2, tokens, tokens)
        assert (weights[0].diagonal(dim1=-2, dim2=-1) == 0).all()


def dropped_share(attention, dtype, rate):
    """With equal weights and one value per key, what is left tells which weights were dropped."""
    q, v = torch.zeros(4, 2, 60, 16, dtype=dtype), torch.eye(60, dtype=dtype)
    left = attention(q, q, v.expand(4, 2, 60, 60), scale=1.0, dropout=rate) * 60
    kept = left != 0
    assert (left[kept].float() - 1 / (1 - rate)).abs().max() < 0.02
    return kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_on_a_cpu(dtype, rate):
    torch.manual_seed(0)
    kept, other = (dropped_share(attend, dtype, rate) for _ in range(2))
    assert kept.float().mean() == pytest.approx(1 - rate, abs=0.01)  # of 28,800; std 0.003 at most
    assert kept.float().mean((0, 1, 2)).std() < 0.05  # no key more than another
    assert (kept == other).float().mean() == pytest.approx(rate**2 + (1 - rate) ** 2, abs=0.02)
    torch.manual_seed(0)
    assert torch.equal(kept, dropped_share(attend, dtype, rate))


@pytest.mark.compiled
def test_dropout_on_a_cpu_compiles():
    torch.manual_seed(0)
    torch._dynamo.reset()
    kept = dropped_share(torch.compile(attend, fullgraph=True), torch.float32, 0.1)
    assert kept.float().mean() == pytest.approx(0.9, abs=0.01)


def test_attention_dropout_only_while_training():
    module = Attention(12, 3, attn_dropout=0.5)
    x = noise(2, 5, 12).float()
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


def test_mask_needs_as_many_keys_as_queries():
    with pytest.raises(ValueError, match="1 queries and 7 keys have no diagonal"):
        LSA(12, 3).double()(noise(2, 1, 12), noise(2, 7, 12))


def test_dim_that_does_not_divide():
    with pytest.raises(ValueError, match="dim 10 is not a multiple of num_heads 3"):
        Attention(10, 3)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("scale", [0.3, "learned"])
@pytest.mark.parametrize("size", [1.0, 30.0], ids=["usual", "extreme"])
@pytest.mark.parametrize(("tokens", "masked", "bias"), [(1, True, False), (33, True, True)])
def test_bf16_on_a_cpu_is_as_near_as_the_plain_path(autocast, scale, size, tokens, masked, bias):
    """Output and gradients are as far from float64 as those of the path that returns its weights.

    Scores in the thousands are rounded by more than softmax can bear: there the output counts.
    """
    given = [size * noise(2, 3, tokens, 8, seed=n) for n in range(3)]
    given.append(0.3 * noise(3, 1, 1, seed=3).abs())
    given.append(noise(3, tokens, tokens, seed=4))

    def results(dtype, weights=None):
        q, k, v, learned, added = (x.to(dtype, copy=True).requires_grad_() for x in given)
        wide = torch.promote_types(dtype, torch.float32)  # as parameters are
        factor = learned.to(wide) if scale == "learned" else scale
        options = {"scale": factor, "masked": masked, "bias": added if bias else None}
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast and dtype == torch.bfloat16):
            y = attend(q, k, v, **options, weights=weights)
        assert y.dtype == dtype
        (y * noise(*y.shape, seed=5).to(dtype)).sum().backward()
        leaves = (q, k, v, learned, added)
        return [y, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    exact = results(torch.float64)
    fast, plain = results(torch.bfloat16), results(torch.bfloat16, [])
    assert len(fast) == len(exact)
    for ours, theirs, truth in zip(fast, plain, exact, strict=True):
        far, near = ((x.double() - truth).norm() for x in (ours, theirs))
        assert ours.isfinite().all()
        if size > 1 and truth is not exact[0]:
            continue
        assert far <= 1.5 * near + 1e-2 * truth.norm() + 1e-6
