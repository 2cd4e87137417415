"""Batch norm's statistics of averaged weights are measured, not those of the training."""

import copy

import pytest
import torch
from torch import nn

from smallvit.training import resume, train
from smallvit.training.statistics import Shown, batches_needed, measure_statistics
from tests.training.makers import HYBRID, RANDOM, assemble, assert_same_run, tiny, weights
from tests.training.test_resume import stopped

AVERAGED = (*HYBRID, "optim.ema=0.95", "optim.optimizer=muon", "loop.precision=fp32")


def norms_of(module):
    return [each for each in module.modules() if isinstance(each, nn.BatchNorm2d)]


def shown(loader, steps, *, mixed=False):
    return [Shown(step, loader.batch(step), mixed) for step in steps]


@pytest.fixture
def trained(source):
    """A stepper after six quick steps, and what it was shown."""
    _, loader, stepper = assemble(tiny(source, *AVERAGED, *RANDOM))
    for step in range(6):
        stepper(loader.batch(step), step, lr=5e-3, mixed=True)
    stepper.objective.drop_paths(None)
    return stepper, shown(loader, range(6), mixed=True)


def test_they_are_the_means_over_the_batches(trained):
    stepper, seen = trained
    stepper.settle(6, lambda: seen)
    found = [(n.running_mean.clone(), n.running_var.clone()) for n in norms_of(stepper.ema)]
    assert found
    other, inputs = copy.deepcopy(stepper.ema), {}
    for norm in norms_of(other):
        norm.train()
        norm.register_forward_pre_hook(
            lambda module, given: inputs.setdefault(module, []).append(given[0].double())
        )
    with torch.no_grad():
        for step, batch, mixed in seen:
            other(*batch[:2], torch.tensor(step), batch.positions, mixed=mixed)
    for (mean, var), norm in zip(found, norms_of(other), strict=True):
        parts = inputs[norm]
        assert len(parts) == 6
        means = torch.stack([part.mean((0, 2, 3)) for part in parts]).mean(0)
        variances = torch.stack([part.var((0, 2, 3)) for part in parts]).mean(0)
        torch.testing.assert_close(mean.double(), means, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(var.double(), variances, rtol=1e-4, atol=1e-5)


def test_the_training_does_not_notice(trained):
    stepper, seen = trained
    before = {key: value.clone() for key, value in stepper.objective.state_dict().items()}
    stepper.settle(6, lambda: seen)
    after = stepper.objective.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert not any(module.training for module in stepper.ema.modules())
    for slow, fast in zip(norms_of(stepper.ema), norms_of(stepper.objective), strict=True):
        assert slow.momentum == fast.momentum == 0.1
        assert slow.num_batches_tracked == fast.num_batches_tracked
        assert not torch.equal(slow.running_var, fast.running_var)


def refused():
    raise AssertionError("nothing needs a batch")


def test_they_are_measured_once_a_step_and_only_where_they_matter(trained, source):
    stepper, seen = trained
    stepper.settle(6, lambda: seen)
    first = norms_of(stepper.ema)[0].running_mean.clone()
    stepper.settle(6, refused)
    assert torch.equal(norms_of(stepper.ema)[0].running_mean, first)
    for settings in (("optim.ema=0.9",), (*HYBRID, "optim.ema=0")):
        _, _, plain = assemble(tiny(source, *settings))
        plain.settle(1, refused)
        assert (plain.evaluated is plain.objective) == (plain.ema is None)


@pytest.mark.parametrize(("batch", "expected"), [(8, 16), (32, 4), (1024, 4)])
def test_how_many_batches(batch, expected):
    assert batches_needed(batch) == expected


def test_out_of_memory_takes_smaller_passes(trained, monkeypatch, caplog):
    """And leaves everything as it was where none is small enough."""
    stepper, seen = trained
    sizes, show = [], stepper.ema.show

    def short(images, *others, **named):
        sizes.append(len(images))
        if len(images) > room:
            raise torch.OutOfMemoryError
        show(images, *others, **named)

    monkeypatch.setattr(stepper.ema, "show", short)
    room = 8
    measure_statistics(stepper.ema, seen, stepper.world)
    assert sizes == [32, 16] + 6 * 4 * [8]
    assert "half as large" in caplog.text
    room = 4
    with pytest.raises(torch.OutOfMemoryError):
        measure_statistics(stepper.ema, seen, stepper.world)
    assert all(not n.training and n.momentum == 0.1 for n in norms_of(stepper.ema))


def test_hidden_parts_are_hidden_while_measuring(source):
    """An objective that shows other images in evaluation shows those of the training here."""
    masked = ("loss.objective=masked", "augment.flip=0.5", "augment.mixup=0", "augment.cutmix=0")
    _, loader, stepper = assemble(tiny(source, *AVERAGED, *masked))
    used = []
    for name in ("view", "still"):
        getattr(stepper.ema, name).register_forward_hook(lambda *_, name=name: used.append(name))
    stepper.settle(2, lambda: shown(loader, range(2)))
    assert used == ["view", "view"]
    assert not stepper.ema.training


def test_resuming_is_exact(source, tmp_path):
    config = tiny(source, *AVERAGED, *RANDOM, "loop.every=3", steps=8)
    whole = train(config, out=tmp_path / "whole", shown=False)
    part = stopped(config, tmp_path / "part", 5)
    assert_same_run(resume(part.folder, shown=False), whole)
    assert any("running_var" in name for name in weights(whole))
