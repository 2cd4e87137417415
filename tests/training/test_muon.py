"""Muon: orthogonal steps for matrices, AdamW for the rest, and everything a run asks of it."""

import numpy as np
import pytest
import torch
from torch import nn

from smallvit.models.build import make_model
from smallvit.runs.config import OptimConfig
from smallvit.training import muon, train
from smallvit.training.optim import freeze, make_optimiser, parameter_groups, set_learning_rate
from tests.models.shrunk import shrunk
from tests.oracles import muon as oracle
from tests.training.makers import HYBRID, arrays, assemble, losses, tiny

MUON = OptimConfig(optimizer="muon", lr=1e-3, weight_decay=0.3, muon_lr=0.02, muon_decay=0.5)


@pytest.fixture
def exact(monkeypatch):
    """Newton–Schulz in float32 also where a CPU is faster in bf16."""
    monkeypatch.setattr(muon, "prefers_bf16", lambda _: False)


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(48, 48), (16, 96), (96, 16), (2, 5)])
def test_singular_values_come_near_one(shape, dtype):
    """And the singular vectors stay: what was U S Vᵀ is U S' Vᵀ."""
    batch = random(3, *shape, dtype=dtype) * 1e-3
    u, s, vt = torch.linalg.svd(batch.double(), full_matrices=False)
    turned = muon.orthogonalised(batch)
    assert turned.dtype == dtype
    seen = u.mT @ turned.double() @ vt.mT
    values = seen.diagonal(dim1=1, dim2=2)
    kept = s > 0.02 * s.amax(1, keepdim=True)
    assert values[kept].min() > 0.6
    assert values.max() < 1.3
    beside = seen - torch.diag_embed(values)
    assert beside.abs().max() < (1e-4 if dtype == torch.float32 else 0.06)


def test_zeros_stay_zeros():
    assert torch.equal(muon.orthogonalised(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


@pytest.mark.parametrize("shape", [(7, 12), (12, 7)])
def test_a_batch_is_its_matrices_one_by_one(shape):
    batch = random(4, *shape)
    alone = torch.cat([muon.orthogonalised(matrix[None]) for matrix in batch])
    torch.testing.assert_close(muon.orthogonalised(batch), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
@pytest.mark.parametrize("bf16", [False, True])
def test_steps_are_those_of_the_oracle(monkeypatch, last, bf16):
    monkeypatch.setattr(muon, "prefers_bf16", lambda _: bf16)
    starts = [random(6, 4, seed=1), random(4, 6, seed=2), random(6, 4, seed=3)]
    starts += [random(5, 3, 3, 3, seed=4)]
    gradients = [
        [random(*w.shape, seed=10 * i + n) for n in range(3)] for i, w in enumerate(starts)
    ]
    parameters = [nn.Parameter(w.clone()) for w in starts]
    if last:
        form = torch.channels_last
        parameters[3] = nn.Parameter(starts[3].clone(memory_format=form))
    group = {"params": parameters, "lr": 0.02, "weight_decay": 0.5, "orthogonal": True}
    optimiser = muon.Muon([group])
    for number in range(3):
        for parameter, given in zip(parameters, gradients, strict=True):
            parameter.grad = given[number].clone(memory_format=torch.preserve_format)
        optimiser.step()
    for parameter, start, given in zip(parameters, starts, gradients, strict=True):
        expected = oracle.steps(
            start.double().numpy(), [g.double().numpy() for g in given], 0.02, 0.5
        )
        found = parameter.detach().numpy()
        np.testing.assert_allclose(found, expected, atol=5e-3 if bf16 else 2e-6, rtol=0)
    assert {key for state in optimiser.state.values() for key in state} == {"momentum"}


def test_the_rest_takes_the_steps_of_adamw(exact):
    torch.manual_seed(0)
    models = [shrunk("hct_s_p8") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    names = muon.matrices(models[0])
    for model, config in zip(models, (MUON, OptimConfig(lr=1e-3, weight_decay=0.3)), strict=True):
        optimiser = make_optimiser(parameter_groups(model, config), config)
        for seed in range(3):
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = random(*parameter.shape, seed=100 * seed + number)
            optimiser.step()
    for (name, ours), theirs in zip(
        models[0].named_parameters(), models[1].parameters(), strict=True
    ):
        assert torch.equal(ours, theirs) == (name not in names), name


def kinds(name):
    model = make_model(name, num_classes=3, image_size=32, in_channels=1)
    turned = muon.matrices(model)
    return model, turned, dict(model.named_parameters()).keys() - turned


def test_what_it_moves_of_our_own_family():
    model, turned, rest = kinds("hct_s_p8")
    assert {key for key in rest if model.get_parameter(key).ndim > 1} == {
        *("tokenizer.conv1.weight", "positions.table", "mergings.0.positions.table"),
        *(f"stages.{i}.mlp.depthwise.weight" for i in ("0.0", "1.0", "1.1")),
        *("pool.score.weight", "head.weight"),
    }
    assert "tokenizer.residuals.0.conv2.weight" in turned
    assert "mergings.0.block.shortcut.conv.weight" in turned


@pytest.mark.parametrize(
    ("name", "first", "head"),
    [
        ("vit_9_p4+spt+lsa", "tokenizer.proj", "head"),
        ("cct_2_3x2", "tokenizer.convs.0", "head"),
        ("cait_24_p4", "tokenizer.proj", "head"),
        ("swin_tiny_p2", "tokenizer.proj", "head"),
        ("cvt_13", "embeddings.0.conv", "head"),
        ("cifar_resnet56", "stem", "head"),
        ("resnet18", "conv1", "fc"),
        ("timm/vit_tiny_patch16_224", "patch_embed.proj", "head"),
    ],
)
def test_what_it_moves_of_other_models(name, first, head):
    model, turned, rest = kinds(name)
    assert {f"{first}.weight", f"{head}.weight"} <= rest
    assert turned
    for key in turned:
        part = model.get_submodule(key.removesuffix(".weight"))
        assert isinstance(part, nn.Linear | nn.Conv2d)
        assert getattr(part, "groups", 1) == 1
    wide = {key for key in rest if model.get_parameter(key).ndim > 1} - {f"{first}.weight"}
    left = {"head", "fc", "depthwise", "table", "pos_embed", "cls_token", "token", "talking"}
    left |= {"bias_table", "conv", "score"}  # CvT's depthwise projections, SeqPool's single row
    assert all(set(key.split(".")) & left for key in wide), wide


def test_learning_rates_and_decays():
    model = shrunk("hct_s_p8")
    config = OptimConfig(**{**vars(MUON), "layer_decay": 0.5})
    freeze(model, 1)
    optimiser = make_optimiser(parameter_groups(model, config), config)
    told = {
        id(p): (g["orthogonal"], g["weight_decay"], g["scale"])
        for g in optimiser.param_groups
        for p in g["params"]
    }
    assert len(told) == sum(p.requires_grad for p in model.parameters())
    share = 0.02 / 1e-3
    attention = model.stages[1][1].attention  # one layer below the head
    assert told[id(attention.proj.weight)] == (True, 0.5, 0.5 * share)
    assert told[id(attention.proj.bias)] == (False, 0.0, 0.5)
    assert told[id(model.head.weight)] == (False, 0.3, 1.0)
    assert id(model.tokenizer.conv2.weight) not in told
    set_learning_rate(optimiser, 5e-4)  # half of the highest
    rates = {id(p): g["lr"] for g in optimiser.param_groups for p in g["params"]}
    assert rates[id(attention.proj.weight)] == pytest.approx(0.02 / 2 * 0.5)
    assert rates[id(model.head.weight)] == pytest.approx(5e-4)
    still = OptimConfig(optimizer="muon", lr=0.0)
    assert {g["scale"] for g in parameter_groups(shrunk("vit_9_p4"), still)} == {0.0, 1.0}


def test_bad_values_are_refused():
    with pytest.raises(ValueError, match="muon_lr is -1: allowed is 0 or more"):
        OptimConfig(muon_lr=-1)
    with pytest.raises(ValueError, match="muon_decay is -1: allowed is 0 or more"):
        OptimConfig(muon_decay=-1)


def test_scaled_losses_take_the_same_steps(exact):
    """As in fp16: the scaler divides the gradients, and drops a step that is not finite."""
    found = []
    for scaled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3))
        groups = [
            {"params": [model[1].weight], "weight_decay": 0.1, "orthogonal": True},
            {"params": [model[0].weight, model[2].weight], "orthogonal": False},
        ]
        optimiser = muon.Muon(groups, lr=0.01, fused=True)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**10)
        for number in range(3):
            optimiser.zero_grad()
            loss = model(random(8, 4, seed=number)).square().mean()
            scaler.scale(loss * (float("inf") if scaled and number == 1 else 1)).backward()
            if scaled or number != 1:
                scaler.step(optimiser)
                scaler.update()
        found.append([parameter.detach().clone() for parameter in model.parameters()])
    for plain, divided in zip(*found, strict=True):
        torch.testing.assert_close(divided, plain, rtol=1e-4, atol=1e-6)


def test_steps_can_be_undone(source):
    """As a run with `minutes` does, which measures first."""
    config = tiny(source, *HYBRID, "optim.optimizer=muon", "optim.ema=0.9")
    found = []
    for undone in (0, 2):
        _, loader, stepper = assemble(config)
        saved = stepper.snapshot()
        for step in range(undone):
            stepper(loader.batch(step), step, lr=1e-3, mixed=False)
        stepper.restore(saved)
        for step in range(2):
            stepper(loader.batch(step), step, lr=1e-3, mixed=False)
        found.append(stepper.state_dict())
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])
    assert any(key.endswith(".momentum") for key in found[0])


def test_a_hybrid_learns_by_heart(tmp_path):
    data = arrays(tmp_path / "a.npz", train=32, val=0, test=0, classes=4)
    rates = ("optim.optimizer=muon", "optim.muon_lr=0.02", "optim.lr=3e-3", "loop.every=10")
    config = tiny(data, *HYBRID, *rates, "data.val=0", "data.test=0", steps=40)
    run = train(config, out=tmp_path / "run", shown=False)
    assert run.log()[-1]["accuracy"] == 1.0
    assert losses(run)[-1] < 0.2
