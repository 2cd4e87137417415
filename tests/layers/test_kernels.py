"""Fused attention: its programs under Triton's interpreter, its twin, and both on a GPU.

Triton decides at its import whether it interprets. So the classes below run in processes of their
own, which `test_under_the_interpreter` starts.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from smallvit.augment.randomness import uniform
from smallvit.layers.attention import LSA, Attention
from smallvit.layers.blocks import Block
from smallvit.layers.kernels import (
    Windows,
    exporting,
    fused,
    fused_attention,
    fused_pool,
    fusible,
    plain_attention,
    plain_pool,
    uniform_numbers,
)
from smallvit.layers.kernels.operator import attention
from smallvit.layers.kernels.philox import philox
from smallvit.layers.kernels.plain import keep_mask
from smallvit.layers.kernels.pool import relu_pool
from smallvit.layers.kernels.talking_operator import talking_attention
from smallvit.layers.soft_split import ValueAttention
from smallvit.layers.tokenizers import ConvTokenizer
from smallvit.layers.windows import WindowAttention, shift_mask
from tests.arrays import arrays, assert_equal, noise, scramble
from tests.oracles import attention as oracle

pytestmark = pytest.mark.compiled  # the shape checker and Triton's reading of sources do not mix
ROOT = Path(__file__).parents[2]
TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SEED = torch.tensor([0x123456789ABCDEF])
here = pytest.mark.skipif(not INTERPRETED, reason="runs in test_under_the_interpreter's process")


@pytest.mark.skipif(INTERPRETED, reason="is in that process")
@pytest.mark.skipif(not TRITON, reason="needs Triton, and it is not installed")
@pytest.mark.parametrize("part", ["TestNumbers", "TestPromises", "TestDraws", "TestPool"])
def test_under_the_interpreter(part):
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", f"{__file__}::{part}"],
        cwd=ROOT,
        env={**env, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


class Case:
    """Arguments of an attention in one precision, from numbers that all precisions share."""

    def __init__(
        self, batch, tokens, heads, width, *, windows=None, size=1.0, tempered=True, biased=False,
        masked=True, dropout=0.0, talking=False, dtype=torch.float32, seed=0, device="cpu",
    ):  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        n = windows.tokens if windows else tokens

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(device)

        self.qkv = size * draw(batch, tokens, 3 * heads * width)
        self.scale = (draw(heads).abs() + 0.1) * width**-0.5 if tempered else width**-0.5
        self.bias = draw(heads, n, n) if biased else None
        self.grad = draw(batch, tokens, heads * width)
        self.mixing = {key: draw(heads, heads) for key in ("before", "after")} if talking else {}
        self.heads = heads
        self.options = {"masked": masked, "windows": windows, "dropout": dropout}

    def run(self, function, dtype=None):
        """Output and the gradients of all that have one, by name."""
        dtype = dtype or self.qkv.dtype
        given = {"qkv": self.qkv, "scale": self.scale, "bias": self.bias, **self.mixing}
        leaves = {
            name: value.detach().to(dtype).requires_grad_()
            for name, value in given.items()
            if isinstance(value, torch.Tensor)
        }
        seed = SEED.to(self.qkv.device)
        arguments = given | leaves
        if self.mixing:
            arguments["mixing"] = (arguments.pop("before"), arguments.pop("after"))
        y = function(num_heads=self.heads, seed=seed, **arguments, **self.options)
        y.backward(self.grad.to(dtype))
        return {"out": y.detach()} | {name: leaf.grad for name, leaf in leaves.items()}


def distance(ours, exact):
    """How far numbers are from exact ones, relative to their size."""
    size = exact.norm().clamp(min=1e-3)
    return ((ours.double() - exact).norm() / size).item()


def assert_no_further(ours, plain, exact, name):
    # Of few numbers, sums of many that cancel, chance decides which are nearer.
    floor = 4 * torch.finfo(ours.dtype).eps if exact.numel() < 100 else 1e-4
    assert distance(ours, exact) <= 1.1 * distance(plain, exact) + floor, name


def assert_exact(case, tolerance=1e-5):
    ours, exact = case.run(fused_attention), case.run(plain_attention, torch.float64)
    assert ours.keys() == exact.keys()
    for name in ours:
        torch.testing.assert_close(
            ours[name].double(), exact[name], rtol=tolerance,
            atol=tolerance * max(1.0, exact[name].abs().max().item()), msg=lambda m: f"{name}: {m}",  # noqa: B023
        )  # fmt: skip


def assert_extreme(tokens, talking, device="cpu"):
    """Where one weight is nearly all; then scores have to be the same forward and backward."""
    case = Case(1, tokens, 2, 16, size=100.0, tempered=True, talking=talking, device=device)
    scores = case.qkv[..., :32].abs().max() ** 2 * case.scale.max() * 16
    assert scores > 1e4
    exact = case.run(plain_attention, torch.float64)
    ours, plain = case.run(fused_attention), case.run(plain_attention)
    for key, value in exact.items():
        assert ours[key].isfinite().all()
        assert distance(ours[key], value) <= 4 * distance(plain[key], value) + 1e-5, key


ROLLED = Windows(8, 4, 4, 4, 2, 0)
CASES = {
    "plain": {"shape": (2, 12, 2, 16), "masked": False, "tempered": False},
    "local": {"shape": (2, 17, 2, 16)},
    "vit": {"shape": (1, 65, 1, 16), "biased": True},
    "odd width": {"shape": (1, 33, 2, 20), "biased": True},
    "wide": {"shape": (1, 35, 1, 128)},
    "dropout": {"shape": (2, 18, 2, 16), "dropout": 0.3, "biased": True},
    "windows": {"shape": (2, 32, 2, 16), "windows": Windows(8, 4, 4, 4), "biased": True},
    "rolled": {"shape": (2, 32, 2, 16), "windows": ROLLED, "biased": True, "dropout": 0.2},
    "rolled both": {"shape": (1, 36, 2, 16), "windows": Windows(6, 6, 3, 3, 1, 1), "biased": True},
    "tiles": {"shape": (1, 150, 1, 16), "biased": True, "dropout": 0.1},
    "long": {"shape": (1, 257, 1, 16)},
    "talking": {"shape": (2, 20, 3, 16), "talking": True},
    "talking, dropout": {"shape": (2, 18, 2, 20), "talking": True, "dropout": 0.3},
    "talking, cait": {"shape": (1, 64, 4, 64), "talking": True, "tempered": False},
    "talking, tiles": {"shape": (1, 97, 2, 16), "talking": True, "dropout": 0.1},
    "talking, unmasked": {"shape": (1, 33, 5, 17), "talking": True, "masked": False},
}
HALF = ["vit", "dropout", "rolled", "tiles"]


@here
class TestNumbers:
    """The programs against float64, forward and all gradients."""

    @pytest.mark.parametrize("options", CASES.values(), ids=CASES)
    def test_float32(self, options):
        options = dict(options)
        assert_exact(Case(*options.pop("shape"), **options))

    @pytest.mark.parametrize("seed", range(6))
    def test_random_shapes(self, seed):
        random = np.random.default_rng(seed)
        shape = [int(random.integers(1, high)) for high in (4, 48, 4)]
        flags = {name: bool(random.integers(2)) for name in ("tempered", "biased", "masked")}
        dropout = float(random.choice([0.0, 0.1, 0.5]))
        width = int(random.integers(16, 70))
        assert_exact(Case(*shape, width, seed=seed, dropout=dropout, **flags))
        flags["biased"] = False
        assert_exact(Case(*shape, width, seed=seed, dropout=dropout, talking=True, **flags))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("name", [*HALF, "talking, dropout", "talking, tiles"])
    def test_half_precision_is_no_further_than_the_twin(self, dtype, name):
        options = dict(CASES[name])
        case = Case(*options.pop("shape"), dtype=dtype, **options)
        exact = case.run(plain_attention, torch.float64)
        ours, plain = case.run(fused_attention), case.run(plain_attention)
        for key, value in exact.items():
            assert ours[key].dtype == dtype
            assert_no_further(ours[key], plain[key], value, key)

    @pytest.mark.parametrize("talking", [False, True])
    @pytest.mark.parametrize("tokens", [18, 40])
    def test_extreme_scores(self, tokens, talking):
        assert_extreme(tokens, talking)

    @pytest.mark.parametrize("dropout", [0.0, 0.4])
    def test_blocks_change_nothing(self, dropout):
        from smallvit.layers.kernels.launch import Plan, Task, launch_backward, launch_forward

        case = Case(2, 40, 1, 16, biased=True)
        task = Task(1, 1.0, True, dropout, Windows(1, 40, 1, 40))
        given = (case.qkv, case.scale, case.bias, SEED)
        tiled = Plan(16, 16, 1, whole=False)
        results = []
        for ahead, back in [
            (Plan(16, 32, 1), Plan(16, 32, 1)),
            (Plan(64, 64, 1), Plan(64, 64, 1)),
            (tiled, tiled),
            (Plan(16, 16, 1), Plan(32, 32, 1, whole=False)),
        ]:
            out, lse = launch_forward(*given, task, ahead)
            dqkv, *sums = launch_backward(
                case.grad, case.qkv, out, lse, *given[1:], task, sloped=True, plan=back
            )
            results.append([out, lse, dqkv, *(part.sum(0) for part in sums)])
        for other in results[1:]:
            for ours, first in zip(other, results[0], strict=True):
                torch.testing.assert_close(ours, first, rtol=1e-4, atol=1e-5)
        with pytest.raises(ValueError, match="40 tokens are more than one tile of 16 and a tail"):
            launch_backward(
                case.grad, case.qkv, out, lse, *given[1:], task, sloped=False, plan=Plan(16, 16, 1)
            )

    def test_blocks_change_nothing_in_talking_heads(self):
        from smallvit.layers.kernels.talking_launch import (
            Plan,
            TalkingPlans,
            TalkingTask,
            launch_talking,
            launch_talking_backward,
        )

        case, task = Case(2, 40, 2, 16, talking=True), TalkingTask(2, True, 0.4)
        given = (*case.mixing.values(), SEED, task)
        results = []
        for plans in [
            TalkingPlans(Plan(16, 16, 1), Plan(16, 32, 1), Plan(64, 16, 1)),
            TalkingPlans(Plan(32, 64, 1), Plan(64, 16, 1), Plan(16, 32, 1)),
            TalkingPlans(Plan(64, 32, 1), Plan(16, 64, 1), Plan(32, 64, 1)),
            TalkingPlans(*[Plan(16, 16, 1)] * 3, whole=Plan(16, 64, 1)),
            TalkingPlans(*[Plan(16, 16, 1)] * 3, whole=Plan(32, 64, 1)),
        ]:
            out, lse = launch_talking(case.qkv, *given, plans)
            dqkv, parts = launch_talking_backward(case.grad, case.qkv, lse, *given, plans)
            results.append([out, lse, dqkv, parts.sum(0)])
        for other in results[1:]:
            for ours, first in zip(other, results[0], strict=True):
                torch.testing.assert_close(ours, first, rtol=1e-4, atol=2e-5)


@here
class TestPromises:
    """What else must hold for the programs."""

    @pytest.mark.parametrize("masked", [False, True])
    def test_a_single_token_keeps_itself(self, masked):
        case = Case(2, 1, 2, 16, masked=masked)
        ours = case.run(fused_attention)
        assert torch.equal(ours["out"], case.qkv[..., 64:])
        assert not ours["qkv"][..., :64].any()
        assert not ours["scale"].any()

    @pytest.mark.parametrize("masked", [False, True])
    def test_a_single_token_of_talking_heads(self, masked):
        case = Case(2, 1, 2, 16, masked=masked, talking=True)
        ours = case.run(fused_attention)
        heard = case.mixing["after"].sum(0).repeat_interleave(16)  # every weight is 1
        torch.testing.assert_close(ours["out"], case.qkv[..., 64:] * heard)
        assert not ours["qkv"][..., :64].any()
        assert not ours["scale"].any()
        assert not ours["before"].any()
        assert_exact(case)

    @pytest.mark.parametrize("tokens", [40, 150])
    def test_dropout_mask_is_the_twins(self, tokens):
        width = 64
        for first in range(0, tokens, width):  # values that are one-hot give back the weights
            qkv = torch.zeros(1, tokens, 3 * width)
            here = range(first, min(first + width, tokens))
            qkv[0, here, [2 * width + place - first for place in here]] = 1.0
            options = {"scale": 1.0, "dropout": 0.3, "seed": SEED}
            weights = fused_attention(qkv, 1, **options)[0, :, : len(here)]
            keep = keep_mask(SEED, 1, tokens, 0.3)[0, :, here.start : here.stop]
            assert torch.equal(weights > 0, keep)

    def test_dropout_draws_from_torch(self):
        qkv = noise(1, 20, 48).float()
        torch.manual_seed(0)
        first, second = (fused_attention(qkv, 1, scale=1.0, dropout=0.5) for _ in range(2))
        assert not torch.equal(first, second)
        torch.manual_seed(0)
        assert torch.equal(first, fused_attention(qkv, 1, scale=1.0, dropout=0.5))

    @pytest.mark.parametrize("name", ["dropout", "rolled", "tiles", "talking", "talking, tiles"])
    def test_writes_everything_and_reads_nothing_else(self, name, monkeypatch):
        options = dict(CASES[name])
        case = Case(*options.pop("shape"), **options)
        expected = case.run(fused_attention)
        images, tokens, width = case.qkv.shape
        around = torch.full((images + 2, tokens + 3, width + 16), torch.nan)
        around[1:-1, 2:-1, 8:-8] = case.qkv
        case.qkv = around[1:-1, 2:-1, 8:-8]
        assert not case.qkv.is_contiguous()

        def poisoned(make):
            def made(*args, **kwargs):
                x = make(*args, **kwargs)
                return x.fill_(torch.nan) if x.is_floating_point() else x

            return made

        monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
        for key, value in case.run(fused_attention).items():
            assert torch.equal(value, expected[key]), key

    def test_any_strides(self):
        case = Case(2, 19, 2, 16)
        expected = case.run(fused_attention)
        case.qkv = case.qkv.permute(2, 1, 0).contiguous().permute(2, 1, 0)
        case.grad = case.grad.transpose(1, 2).contiguous().transpose(1, 2)
        for key, value in case.run(fused_attention).items():
            assert torch.equal(value, expected[key]), key

    @pytest.mark.parametrize("name", ["dropout", "rolled", "talking, dropout"])
    def test_the_same_every_time(self, name):
        options = dict(CASES[name])
        case = Case(*options.pop("shape"), **options)
        first, second = case.run(fused_attention), case.run(fused_attention)
        assert all(torch.equal(first[key], second[key]) for key in first)

    @pytest.mark.filterwarnings("ignore::UserWarning")  # torch's checks look at gradients of copies
    @pytest.mark.parametrize("dropout", [0.0, 0.2])
    def test_operator_keeps_torchs_rules(self, dropout):
        case = Case(2, 18, 2, 16, biased=True)
        leaves = [x.requires_grad_() for x in (case.qkv, case.scale, case.bias)]
        seed = SEED if dropout else None
        torch.library.opcheck(
            attention, (*leaves, seed, 2, 1.0, True, dropout, [1, 18, 1, 18, 0, 0])
        )

    @pytest.mark.filterwarnings("ignore::UserWarning")
    @pytest.mark.parametrize("dropout", [0.0, 0.2])
    def test_talking_operator_keeps_torchs_rules(self, dropout):
        case = Case(2, 18, 2, 16, talking=True)
        leaves = [x.requires_grad_() for x in (case.qkv, *case.mixing.values())]
        seed = SEED if dropout else None
        torch.library.opcheck(talking_attention, (*leaves, seed, 2, True, dropout))

    def test_talking_heads_refuse_a_bias(self):
        case = Case(1, 9, 1, 16, biased=True, talking=True)
        with pytest.raises(ValueError, match="talking heads with a bias or windows"):
            case.run(fused_attention)

    @pytest.mark.parametrize("kind", [{"biased": True}, {"talking": True}])
    def test_a_graph_holds_only_what_torch_caches(self, kind):
        """A call of our own class in it made every start compile anew."""
        graphs = []

        def backend(graph, _):
            graphs.append(graph)
            return graph

        case = Case(1, 8, 2, 16, **kind)
        torch._dynamo.reset()
        case.run(torch.compile(fused_attention, fullgraph=True, backend=backend))
        calls = [n.target for g in graphs for n in g.graph.nodes if n.op == "call_function"]
        assert calls
        assert not [
            call for call in calls if getattr(call, "__module__", "").startswith("smallvit")
        ]

    @pytest.mark.parametrize("kind", [{"biased": True}, {"talking": True}])
    def test_compiles_in_one_piece(self, kind):
        case = Case(2, 18, 2, 16, dropout=0.2, **kind)
        expected = case.run(fused_attention)
        torch._dynamo.reset()
        compiled = torch.compile(fused_attention, fullgraph=True, backend="aot_eager")
        for key, value in case.run(compiled).items():
            assert torch.equal(value, expected[key]), key

    @pytest.mark.parametrize("talking", [False, True])
    def test_recomputing_leaves_the_operator_alone(self, talking, monkeypatch):
        from smallvit.layers.kernels import launch, talking_launch

        monkeypatch.setattr("smallvit.layers.attention.fusible", lambda *_, **__: True)
        where, name = (talking_launch, "talking") if talking else (launch, "forward")
        real, calls = getattr(where, f"launch_{name}"), []
        monkeypatch.setattr(where, f"launch_{name}", lambda *a: calls.append(1) or real(*a))
        block = Block(LSA(32, 2, talking=talking, attn_dropout=0.2), 32, 2.0).train()
        x, results = torch.randn(2, 9, 32), []
        for what in ("nothing", "wide"):
            block.recompute = what
            torch.manual_seed(0)
            y = block(x)
            results.append([y, *torch.autograd.grad(y.square().sum(), list(block.parameters()))])
        assert all(map(torch.equal, *results))
        assert len(calls) == 2

    def test_autocast_casts_the_projection_alone(self):
        case = Case(1, 18, 2, 16, dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            y = fused_attention(case.qkv, 2, scale=case.scale)
        half = fused_attention(case.qkv.bfloat16(), 2, scale=case.scale)
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, half)


@here
class TestDraws:
    """Uniform numbers by position."""

    @pytest.mark.parametrize("count", [1, 4, 39])
    def test_the_same_bits_as_written_out(self, count):
        step, positions = torch.tensor(5 * 2**32 + 7), torch.tensor([0, 1, 300, 2**32 - 1])
        ours = uniform_numbers(SEED[0], step, positions, count)
        assert torch.equal(ours, uniform(SEED[0], step, positions, count))

    def test_operator_keeps_torchs_rules(self):
        given = (SEED[0], torch.tensor(3), torch.arange(300), 9)
        torch.library.opcheck(uniform_numbers, given)
        assert uniform_numbers(SEED[0], torch.tensor(3), torch.arange(0), 9).shape == (0, 9)


def pools(function, x, grad):
    x = x.detach().requires_grad_()
    y = function(x)
    return [y.detach(), *torch.autograd.grad(y, x, grad)]


def assert_pools(x, grad):
    ours, exact = pools(fused_pool, x, grad), pools(plain_pool, x.double(), grad.double())
    assert torch.equal(ours[0].double(), exact[0])
    # Windows are added in float32, in which the few numbers of a pixel are all but exact.
    torch.testing.assert_close(ours[1].double(), exact[1], rtol=torch.finfo(x.dtype).eps, atol=1e-6)


@here
class TestPool:
    """ReLU and max-pool of a map."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("shape", [(2, 5, 8, 8), (1, 130, 7, 4), (3, 1, 1, 1), (2, 3, 2, 9)])
    @pytest.mark.parametrize("last", [False, True])
    def test_the_same_numbers_as_the_twin(self, shape, dtype, last):
        x = noise(*shape).to(dtype)
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        grad = torch.randn(plain_pool(x).shape, generator=torch.Generator().manual_seed(1))
        assert_pools(x, grad.to(dtype))

    def test_ties_infinities_and_what_is_no_number(self):
        x = noise(1, 2, 6, 6).float().round()
        x[0, 0, 0, 0], x[0, 0, 5, 5], x[0, 1, :3, :3] = torch.nan, torch.inf, -torch.inf
        grad = torch.ones(1, 2, 3, 3)
        for ours, plain in zip(*(pools(f, x, grad) for f in (fused_pool, plain_pool)), strict=True):
            assert torch.equal(ours.nan_to_num(77.0), plain.nan_to_num(77.0))

    def test_writes_everything(self, monkeypatch):
        x, grad = noise(2, 3, 7, 6).float(), noise(2, 3, 4, 3, seed=1).float()
        expected, make = pools(fused_pool, x, grad), torch.Tensor.new_empty
        monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: make(*a, **k).fill_(77))
        assert all(map(torch.equal, pools(fused_pool, x, grad), expected))

    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_operator_keeps_torchs_rules(self):
        torch.library.opcheck(relu_pool, (noise(2, 3, 7, 6).float().requires_grad_(),))

    def test_compiles_in_one_piece(self):
        x, grad = noise(2, 3, 7, 6).float(), noise(2, 3, 4, 3, seed=1).float()
        torch._dynamo.reset()
        compiled = torch.compile(fused_pool, fullgraph=True, backend="aot_eager")
        for ours, expected in zip(
            pools(compiled, x, grad), pools(fused_pool, x, grad), strict=True
        ):
            assert torch.equal(ours, expected)


@pytest.mark.parametrize("layers", [1, 2])
def test_convolutions_ask_for_the_pool_they_compute(layers, monkeypatch):
    layer = scramble(ConvTokenizer(3, 8, kernel=3, layers=layers, stride=1))
    results = []
    for there in (False, True):
        monkeypatch.setattr("smallvit.layers.tokenizers.poolable", lambda x, there=there: there)
        monkeypatch.setattr("smallvit.layers.tokenizers.fused_pool", plain_pool)
        y = layer(noise(2, 3, 9, 8))
        results.append([y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr("smallvit.layers.tokenizers.poolable", lambda x: 1 / 0)
    layer.fused = False
    assert torch.equal(layer(noise(2, 3, 9, 8)), results[0][0])


def test_twin_is_the_oracle():
    qkv, scale, bias = noise(2, 5, 24), noise(2, seed=2), noise(2, 5, 5, seed=3)
    y = plain_attention(qkv, 2, scale=scale, bias=bias, masked=True)
    for image, ours in zip(qkv, y, strict=True):
        q, k, v = oracle.heads_of(image.numpy(), 2, 3)
        weights = oracle.weights_of(q, k, scale.numpy(), masked=True, bias=bias.numpy())
        assert_equal(ours, np.concatenate([weights[head] @ v[head] for head in range(2)], -1))


def test_twin_with_talking_heads_is_the_oracle():
    qkv, before, after = noise(2, 5, 24), noise(2, 2, seed=2), noise(2, 2, seed=3)
    y = plain_attention(qkv, 2, scale=0.5, masked=True, mixing=(before, after))
    for image, ours in zip(qkv, y, strict=True):
        q, k, v = oracle.heads_of(image.numpy(), 2, 3)
        mixing = {"before": before.numpy(), "after": after.numpy()}
        weights = oracle.weights_of(q, k, 0.5, masked=True, **mixing)
        assert_equal(ours, np.concatenate([weights[head] @ v[head] for head in range(2)], -1))


@pytest.mark.parametrize("grid", [(4, 6), (2, 4), (2, 2), (6, 6)])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_twin_in_windows_is_the_oracle(grid, shifted, masked):
    module = scramble(WindowAttention(8, 2, grid=grid, window=2, shifted=shifted, masked=masked))
    x = noise(2, grid[0] * grid[1], 8)
    windows = Windows(*grid, *module.window, *module.shift)
    bias = module.bias_table[module.index].permute(2, 0, 1)
    y = plain_attention(module.qkv(x), 2, scale=0.5, bias=bias, windows=windows, masked=masked)
    assert torch.equal(
        windows.apart(x.device) * -100.0, shift_mask(grid, module.window, module.shift)
    )
    for image, ours in zip(x, module.proj(y), strict=True):
        expected = oracle.window_attention(
            image.numpy(), arrays(module), 2, grid, 2, int(shifted), 0.5, masked=masked
        )
        assert_equal(ours, expected)


def test_philox_gives_the_published_words():
    """The known answers that come with Random123, for a counter and a key of zeros."""
    zero = torch.tensor([0])
    words = [int(word) for word in philox((zero, zero, zero, zero), (zero, zero))]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_dropout_is_fair():
    keep = keep_mask(SEED, 200, 65, 0.25).double()
    assert abs(keep.mean() - 0.75) < 0.003
    rest = keep - 0.75
    for one, other in [
        (rest[1:], rest[:-1]),
        (rest[:, 1:], rest[:, :-1]),
        (rest[:, :, 1:], rest[:, :, :-1]),
    ]:
        assert abs((one * other).mean() / (0.25 * 0.75)) < 4 / one.numel() ** 0.5


def test_dropout_needs_a_seed():
    with pytest.raises(ValueError, match="dropout without a seed"):
        plain_attention(noise(1, 2, 48), 1, scale=1.0, dropout=0.5)


LAYERS = {
    "plain": lambda: Attention(32, 2, head_dim=16, qkv_bias=True),
    "local": lambda: LSA(32, 2, head_dim=17),
    "talking": lambda: LSA(32, 2, head_dim=16, talking=True),
    "tokens to token": lambda: ValueAttention(32, 1, head_dim=16, out_dim=16, scale=0.2),
    "windows": lambda: WindowAttention(32, 2, grid=(4, 6), window=2, temperature=True),
    "rolled": lambda: WindowAttention(32, 2, grid=(6, 6), window=3, shifted=True, masked=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_ask_for_what_they_compute(name, monkeypatch):
    """With the twin in the place of the kernel, a layer's numbers and gradients are its own."""
    layer, x = scramble(LAYERS[name]()), noise(2, 24 if name == "windows" else 36, 32)
    results = []
    for there in (False, True):
        for module in ("attention", "windows"):
            where = f"smallvit.layers.{module}"
            monkeypatch.setattr(f"{where}.fusible", lambda *_, there=there, **__: there)
            monkeypatch.setattr(f"{where}.fused_attention", plain_attention)
        y = layer(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)
    asked = []
    layer(x, weights=asked)
    assert len(asked) == 1


def test_switched_off_a_layer_never_asks(monkeypatch):
    monkeypatch.setattr("smallvit.layers.attention.fusible", lambda *_, **__: 1 / 0)
    layer, x = LSA(24, 3), torch.randn(2, 9, 24)
    with pytest.raises(ZeroDivisionError):
        layer(x)
    layer.fused = False
    assert layer(x).shape == x.shape


def test_not_on_the_cpu():
    assert not fusible(noise(2, 5, 48).float(), 1)


def test_a_tracer_takes_the_answer_as_it_is(monkeypatch):
    """Looking for Triton and asking the driver are nothing that Dynamo could trace."""
    for answer in (True, False):
        monkeypatch.setattr(fused, "_known", {torch.device("cpu"): answer})
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x: x + 1 if fused.runs_on(x.device) else x, fullgraph=True, backend="eager"
        )
        assert compiled(torch.zeros(1)).item() == answer


def test_importing_needs_no_triton():
    code = (
        "import sys\nsys.modules['triton'] = None\n"
        "from smallvit.layers.kernels import plain_attention, fusible\nimport torch\n"
        "qkv = torch.randn(2, 5, 48)\n"
        "assert not fusible(qkv, 1)\nplain_attention(qkv, 1, scale=1.0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.skipif(INTERPRETED, reason="needs the compiler, and this process interprets")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
class TestOnGpu:
    """The compiled programs."""

    @pytest.mark.parametrize("options", CASES.values(), ids=CASES)
    def test_float32(self, options):
        options = dict(options)
        assert_exact(Case(*options.pop("shape"), device="cuda", **options))

    @pytest.mark.parametrize("talking", [False, True])
    @pytest.mark.parametrize("tokens", [18, 40, 300])
    def test_extreme_scores(self, tokens, talking):
        assert_extreme(tokens, talking, "cuda")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("shape", [(2, 577, 2, 32), (1, 1025, 2, 16), (1, 1040, 1, 128)])
    def test_the_longest(self, shape, dtype):
        """The interpreter would take minutes."""
        case = Case(*shape, dtype=dtype, device="cuda", dropout=0.1)
        if dtype == torch.float32:
            assert_exact(case)
            return
        exact = case.run(plain_attention, torch.float64)
        ours, plain = case.run(fused_attention), case.run(plain_attention)
        for key, value in exact.items():
            assert_no_further(ours[key], plain[key], value, key)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("options", CASES.values(), ids=CASES)
    def test_half_precision(self, dtype, options):
        options = dict(options)
        case = Case(*options.pop("shape"), dtype=dtype, device="cuda", **options)
        exact = case.run(plain_attention, torch.float64)
        ours, plain = case.run(fused_attention), case.run(plain_attention)
        for key, value in exact.items():
            assert_no_further(ours[key], plain[key], value, key)

    @pytest.mark.filterwarnings("ignore::UserWarning")  # Inductor gives advice on speed
    def test_inductor_and_capture(self):
        case = Case(4, 65, 4, 16, dtype=torch.bfloat16, device="cuda", dropout=0.1)
        assert fusible(case.qkv, 4, dropout=0.1)
        expected = case.run(fused_attention)
        torch._dynamo.reset()
        compiled = torch.compile(fused_attention, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            for key, value in case.run(compiled).items():
                assert torch.equal(value, expected[key]), key

    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_inductor_draws_the_seed(self):
        qkv = Case(2, 40, 2, 16, dtype=torch.bfloat16, device="cuda").qkv
        torch._dynamo.reset()
        compiled = torch.compile(fused_attention, fullgraph=True)
        torch.manual_seed(0)
        first, second = (compiled(qkv, 2, scale=1.0, dropout=0.5) for _ in range(2))
        assert not torch.equal(first, second)
        torch.manual_seed(0)
        assert torch.equal(first, compiled(qkv, 2, scale=1.0, dropout=0.5))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_pool(self, dtype):
        x, grad = noise(3, 130, 9, 8).to("cuda", dtype), noise(3, 130, 5, 4, seed=1)
        assert_pools(x, grad.to("cuda", dtype))

    def test_draws(self):
        given = (SEED[0], torch.tensor(7), torch.arange(2**32 - 500, 2**32 + 500))
        ours = uniform(*(x.cuda() for x in given), 39)
        assert torch.equal(ours.cpu(), uniform(*given, 39))

    @pytest.mark.parametrize("name", LAYERS)
    def test_layers(self, name):
        layer, x = scramble(LAYERS[name]()), noise(2, 24 if name == "windows" else 36, 32)

        def run(layer, x):
            y = layer(x)
            return [y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))]

        exact = run(layer, x)
        layer, x = layer.cuda().float(), x.cuda().float()
        ours = run(layer, x)
        layer.fused = False
        for one, other, right in zip(ours, run(layer, x), exact, strict=True):
            assert distance(one.cpu(), right) <= 2 * distance(other.cpu(), right) + 1e-5


def test_no_sum_in_arbitrary_order():
    """Atomic additions would, and no run would come out twice the same."""
    sources = sorted((ROOT / "smallvit/layers/kernels").glob("*.py"))
    assert len(sources) > 10
    assert [path.name for path in sources if "tl.atomic" in path.read_text()] == []


class Adds(torch.nn.Module):
    def forward(self, x):
        return x + exporting()


def test_a_compiled_program_is_not_taken_for_an_exported_one():
    x = torch.zeros(1)
    assert torch.compile(Adds(), backend="eager", fullgraph=True)(x) == 0
    assert torch.export.export(Adds(), (x,)).module()(x) == 1


def test_importing_does_not_import_the_compiler():
    """It takes as long as torch itself, and a short run on a CPU has no use for it."""
    code = (
        "import sys\nimport smallvit.cli, smallvit.recipes.plan, smallvit.training.train\n"
        "assert 'torch' in sys.modules and 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
