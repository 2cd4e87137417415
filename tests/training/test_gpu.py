"""Training on a GPU: captured is plain, stopped is not stopped. Skipped without one."""

import numpy as np
import pytest
import torch

from smallvit.runs import RunConfig
from smallvit.runs.changes import changes_of
from smallvit.training import resume, train
from smallvit.training.step import Stepper

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.filterwarnings("ignore"),  # Inductor and deterministic algorithms give advice
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none"),
]

TINY = [
    "model.name=vit_9_p4+spt+lsa",
    "model.options.dim=32",
    "model.options.depth=2",
    "model.options.num_heads=2",
    "model.options.dropout=0.1",
    "data.val=0.2",
    "loop.batch_size=32",
    "loop.every=10",
    "schedule.steps=30",
    "schedule.mixed=0.6",
    "augment.padding=2",
    "augment.policy=auto_cifar10",
    "augment.cutmix=1.0",
    "augment.mixup=0.8",
    "optim.ema=0.9",
    "optim.clip=1.0",
]


#: The same with our own family and its optimiser.
HYBRID = [
    "model.name=hct_xs_p4",
    "model.options.narrow_dim=16",
    "model.options.narrow_heads=2",
    "optim.optimizer=muon",
]
#: One for each of the kernels.
FAMILIES = {
    "vit": [],
    "hybrid": HYBRID,
    "talking": ["model.name=cait_24_p4+spt+lsa", "model.options.class_depth=1"],
    "pooled": ["model.name=cct_7_3x1"],
    "windows": [
        "model.name=swin_tiny_p2+spt+lsa",
        "model.options.depths=[2,2]",
        "model.options.num_heads=[2,4]",
    ],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    random = np.random.default_rng(0)
    labels = np.arange(400) % 4
    images = random.integers(0, 120, (400, 16, 16, 3), dtype=np.uint8)
    images[:, :8] += (30 * labels[:, None, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "four.npz"
    np.savez(path, images=images, labels=labels)
    return path


def losses(run, kind="train"):
    return [line["loss"] for line in run.log() if line["kind"] == kind]


def config(source, *more):
    staged = any(line.startswith("model.options.depths=") for line in more)
    tiny = [line for line in TINY if not (staged and line.startswith("model.options.depth="))]
    return RunConfig().changed(changes_of([f"data.source={source}", *tiny, *more]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_and_compiled_steps_learn_what_plain_ones_do(source, tmp_path, precision, family):
    same = [*FAMILIES[family], f"loop.precision={precision}", "model.options.dropout=0"]
    # Gradients of convolutions are otherwise added in any order.
    exact = [*same, "loop.compiled=false", "loop.deterministic=true"]
    plain = train(config(source, *exact, "loop.captured=false"), out=tmp_path / "plain")
    captured = train(config(source, *exact), out=tmp_path / "captured")
    compiled = train(config(source, *same), out=tmp_path / "compiled")
    unfused = train(
        config(source, *same, "loop.compiled=false", "loop.fused=false"), out=tmp_path / "unfused"
    )
    np.testing.assert_allclose(losses(captured), losses(unfused), rtol=2e-2)
    np.testing.assert_allclose(losses(captured), losses(plain), rtol=1e-3)
    np.testing.assert_allclose(losses(compiled), losses(plain), rtol=2e-2)
    np.testing.assert_allclose(losses(captured, "val"), losses(plain, "val"), rtol=2e-3)


@pytest.mark.parametrize("hybrid", [[], HYBRID], ids=["vit", "hybrid"])
def test_half_precision_learns(source, tmp_path, hybrid):
    half = config(source, *hybrid, "loop.precision=fp16", "loop.compiled=false")
    run = train(half, out=tmp_path / "run")
    assert losses(run)[-1] < losses(run)[0]


@pytest.mark.parametrize("compiled", ["false", "true"])
def test_recomputing_learns_the_same(source, tmp_path, compiled):
    same = ["model.name=cct_7_3x1", "model.options.attn_dropout=0.1", f"loop.compiled={compiled}"]
    kept = train(config(source, *same), out=tmp_path / "kept")
    again = train(config(source, *same, "loop.recompute=true"), out=tmp_path / "again")
    np.testing.assert_allclose(losses(again), losses(kept), rtol=2e-2)


def test_regions_learn_the_same(source, tmp_path):
    same = "model.options.dropout=0"
    whole = train(config(source, same), out=tmp_path / "whole")
    parts = train(config(source, same, "loop.regional=true"), out=tmp_path / "parts")
    np.testing.assert_allclose(losses(parts), losses(whole), rtol=2e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_deterministic_runs_are_the_same_and_resume_exactly(source, tmp_path, monkeypatch, family):
    same = ("loop.deterministic=true", "loop.compiled=false", "loop.checkpoint_seconds=0")
    exact = config(source, *FAMILIES[family], *same)
    try:
        first, second = (train(exact, out=tmp_path / name) for name in ("first", "second"))
        weights = (first.folder / "last.safetensors").read_bytes()
        assert (second.folder / "last.safetensors").read_bytes() == weights
        take = Stepper.__call__

        def stop_after_25(stepper, batch, step, **named):
            if step == 25:
                raise KeyboardInterrupt
            take(stepper, batch, step, **named)

        monkeypatch.setattr(Stepper, "__call__", stop_after_25)
        with pytest.raises(KeyboardInterrupt):
            train(exact, out=tmp_path / "third")
        monkeypatch.undo()
        third = resume(tmp_path / "third")
        assert (third.folder / "last.safetensors").read_bytes() == weights
        assert losses(third) == losses(first)
    finally:
        torch.use_deterministic_algorithms(False)
