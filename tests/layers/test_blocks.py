"""Blocks and their small parts."""

import re
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from smallvit.layers import (
    Attention,
    Block,
    ChannelNorm,
    ConvAttention,
    DropPath,
    LayerScale,
    Mlp,
    ResidualBlock,
)
from tests.arrays import arrays, assert_equal, noise, scramble
from tests.layers.test_attention import each
from tests.oracles import attention as oracle
from tests.oracles import tokens


def block(x, weights, num_heads, *, post_norm, scaled):
    """A block of one image, branch by branch."""
    inner = {
        key.removeprefix("attention."): value
        for key, value in weights.items()
        if key.startswith("attention.")
    }
    one, two = (weights[f"scale{i}.factor"] if scaled else 1.0 for i in (1, 2))
    y = oracle.attention(oracle.layer_norm(x, weights, "norm1"), inner, num_heads, 0.5)
    x = x + one * y
    if post_norm:
        x = oracle.layer_norm(x, weights, "norm2")
        return x + two * oracle.mlp(x, weights, "mlp")
    return x + two * oracle.mlp(oracle.layer_norm(x, weights, "norm2"), weights, "mlp")


@pytest.mark.parametrize("post_norm", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_block(post_norm, scaled):
    module = Block(
        Attention(8, 2, head_dim=4), 8, 2, post_norm=post_norm, layer_scale=0.1 if scaled else None
    )
    x = noise(2, 5, 8)
    weights = arrays(scramble(module))
    assert_equal(module(x), each(block, x, weights, 2, post_norm=post_norm, scaled=scaled))


def test_mlp():
    module = scramble(Mlp(4, 7))
    x = noise(3, 2, 4)
    weights = {f"mlp.{key}": value for key, value in arrays(module).items()}
    assert_equal(module(x), oracle.mlp(x.numpy(), weights, "mlp"))


@pytest.mark.parametrize("grid", [(2, 3), (1, 4), (1, 1)])
def test_mlp_that_sees_neighbours(grid):
    module = scramble(Mlp(4, 7, grid=grid))
    x = noise(2, grid[0] * grid[1], 4)
    assert_equal(module(x), each(tokens.depthwise_mlp, x, arrays(module), grid))


def test_a_kernel_of_zeros_sees_no_neighbours():
    near, plain = scramble(Mlp(4, 6, grid=(3, 2))), scramble(Mlp(4, 6))
    nn.init.zeros_(near.depthwise.weight)
    plain.load_state_dict({k: v for k, v in near.state_dict().items() if "depthwise" not in k})
    x = noise(2, 6, 4)
    assert torch.equal(near(x), plain(x))


def test_neighbours_are_those_on_the_grid():
    """A change of one token changes the 3×3 tokens around it and no others."""
    module = scramble(Mlp(4, 6, grid=(5, 4)))
    x = noise(1, 20, 4)
    changed = x.clone()
    changed[0, 2 * 4 + 3] += 1  # at the right border: row 2, column 3
    moved = (module(changed) - module(x)).abs().sum(-1).view(5, 4) > 0
    expected = torch.zeros(5, 4, dtype=torch.bool)
    expected[1:4, 2:4] = True
    assert torch.equal(moved, expected)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("channels", "stride"), [(3, 1), (5, 1), (5, 2)])
@pytest.mark.parametrize("size", [(4, 6), (5, 3)])
def test_residual_block(padded, channels, stride, size, activation):
    module = scramble(ResidualBlock(3, channels, stride, padded=padded, activation=activation))
    x = noise(2, 3, *size)
    weights, act = arrays(module), getattr(tokens, activation)
    assert_equal(module(x), each(tokens.residual_block, x, weights, stride, padded=padded, act=act))


def test_a_residual_block_may_start_as_its_shortcut():
    x = noise(2, 3, 4, 4).float()
    module = ResidualBlock(3, 3, zero_start=True).train()
    assert torch.equal(module(x), x.relu())


def test_channel_norm_divides_by_std_plus_eps():
    module = scramble(ChannelNorm(5))
    x = noise(2, 3, 5)
    x[0, 0] = 7.0  # a constant token: 0 / (0 + eps)
    a = x.numpy()
    mean = a.mean(-1, keepdims=True)
    std = np.sqrt(((a - mean) ** 2).mean(-1, keepdims=True))
    weights = arrays(module)
    assert_equal(module(x), (a - mean) / (std + 1e-5) * weights["weight"] + weights["bias"])


def test_channel_norm_of_a_constant_token_has_a_gradient():
    module = ChannelNorm(5)
    x = torch.ones(1, 2, 5, requires_grad=True)
    module(x).square().sum().backward()
    assert x.grad.isfinite().all()


def test_layer_scale_starts_at_its_value():
    assert torch.equal(LayerScale(3, 0.25)(torch.ones(2, 3)), torch.full((2, 3), 0.25))


def test_drop_path():
    torch.manual_seed(0)
    module = DropPath(0.25)
    x = torch.ones(4000, 2, 3)
    y = module(x)
    kept = y[:, 0, 0] != 0
    assert torch.equal(y, kept.float()[:, None, None].expand_as(x) / 0.75)
    assert abs(kept.float().mean().item() - 0.75) < 0.03
    assert module.eval()(x) is x
    assert torch.equal(DropPath(0.0)(x), x)
    with pytest.raises(ValueError, match=r"drop_path is 1\.0"):
        DropPath(1.0)


class Calls(TorchDispatchMode):
    """Counts what is computed, by the name of the operation."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputing_changes_nothing_but_what_is_kept(dropout):
    attention = Attention(16, 2, attn_dropout=dropout)
    block = Block(attention, 16, 2.0, dropout=dropout, drop_path=dropout).train()
    x, results, counts = torch.randn(2, 9, 16), {}, {}
    for what in ("nothing", "wide", "everything"):
        block.recompute = what
        block.zero_grad()
        torch.manual_seed(0)
        with Calls() as calls:
            y = block(x)
            y.square().sum().backward()
        results[what] = [y.detach(), *(p.grad.clone() for p in block.parameters())]
        counts[what] = calls.counts
    for what in ("wide", "everything"):
        assert all(map(torch.equal, results[what], results["nothing"]))
    if dropout:  # torch has no one kernel for attention with dropout on CPUs
        return
    (attends,) = (name for name in counts["wide"] if re.search("attention.*cpu$", name))
    assert [counts[what][attends] for what in counts] == [1, 1, 2]
    # The projection to queries, keys and values, which has no bias; and the first of the MLP.
    more = counts["wide"] - counts["nothing"]
    assert (more["mm"], more["addmm"]) == (1, 1)
    assert (counts["everything"] - counts["nothing"])["addmm"] >= 2


def test_recomputing_leaves_attention_in_plain_kernels_alone():
    """As it is computed in bf16 on a CPU: a product, a softmax and a product."""
    block, counts = Block(Attention(16, 2), 16, 2.0).train(), []
    for what in ("nothing", "wide", "everything"):
        block.recompute = what
        with Calls() as calls, torch.autocast("cpu", torch.bfloat16):
            block(torch.randn(2, 9, 16)).float().sum().backward()
        counts.append((calls.counts["_softmax"], calls.counts["bmm"]))
    assert counts == [(1, 6), (1, 6), (2, 8)]  # two products, and four backward


def test_recomputing_counts_once_in_batch_norms():
    block = Block(ConvAttention(12, 3, grid=(4, 6), head_dim=4), 12, 2.0).train()
    start = {key: value.clone() for key, value in block.state_dict().items()}
    x, found = torch.randn(2, 24, 12), []
    for what in ("nothing", "wide"):
        block.load_state_dict(start)
        block.recompute = what
        block(x).sum().backward()
        found.append(
            [m.running_mean.clone() for m in block.modules() if hasattr(m, "running_mean")]
        )
    assert len(found[0]) == 2
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("options", [{}, {"post_norm": True}, {"layer_scale": 0.1}])
def test_narrow_tokens(options):
    """They take the products' number format; where that is float32 nothing changes."""
    block = Block(Attention(16, 2), 16, 2.0, **options).train()
    x, found = noise(2, 9, 16).float(), {}
    for narrow in (False, True):
        block.narrow = narrow
        found[narrow] = [block(x)]
        with torch.autocast("cpu", torch.bfloat16):
            y = block(x)
        block.zero_grad()
        y.float().square().sum().backward()
        found[narrow] += [y, *(p.grad.clone() for p in block.parameters())]
    (wide, *rounded), (same, *narrowed) = found.values()
    assert torch.equal(wide, same)
    assert (rounded[0].dtype, narrowed[0].dtype) == (torch.float32, torch.bfloat16)
    for one, other in zip(rounded, narrowed, strict=True):
        assert (one - other.float()).norm() <= 0.02 * one.norm()
    assert not torch.equal(rounded[0], narrowed[0].float())


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")  # torch's advice on in-place operations
def test_recomputing_compiles():
    block = Block(Attention(16, 2), 16, 2.0).train()
    x, results = torch.randn(2, 9, 16), []
    for what in ("nothing", "wide"):
        block.recompute = what
        block.zero_grad()
        torch._dynamo.reset()
        torch.compile(block, fullgraph=True, backend="aot_eager")(x).square().sum().backward()
        results.append([p.grad.clone() for p in block.parameters()])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain)
