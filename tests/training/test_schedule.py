"""Learning rates, EMA decays and intervals as pure functions of the step."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallvit.runs.config import ScheduleConfig
from smallvit.training.optim import (
    drloc_share,
    ema_decay,
    is_mixed,
    learning_rate,
    validation_interval,
)


def rates(steps, peak, **options):
    config = ScheduleConfig(**options)
    return [learning_rate(step, steps, peak, config) for step in range(steps)]


def test_exact_values():
    curve = rates(100, 1.0, warmup=0.1, cooldown=0.2, start=0.1, end=0.01)
    assert curve[0] == 0.1
    assert curve[5] == pytest.approx(0.1 + 0.9 / 2, abs=1e-15)
    assert curve[9] == pytest.approx(0.1 + 0.9 * 0.9, abs=1e-15)
    assert curve[10] == 1.0
    assert curve[45] == pytest.approx(0.01 + 0.99 / 2, abs=1e-15)
    assert curve[10 + 7] == pytest.approx(0.01 + 0.99 * (1 + math.cos(math.pi / 10)) / 2)
    assert curve[79] > 0.01
    assert curve[80:] == [0.01] * 20


def test_without_warmup_the_first_step_has_the_peak():
    assert rates(7, 2.0, warmup=0.0, end=0.0)[0] == 2.0


def test_all_warmup_and_all_cooldown():
    assert rates(4, 1.0, warmup=1.0, start=0.0) == [0, 0.25, 0.5, 0.75]
    assert rates(4, 1.0, warmup=0.0, cooldown=1.0, end=0.5)[1:] == [0.5] * 3


def test_one_step():
    assert rates(1, 1.0) == [1.0]


@given(
    st.integers(1, 400),
    st.floats(1e-6, 10),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
)
def test_up_then_down_then_flat(steps, peak, warmup, cooldown):
    curve = rates(steps, peak, warmup=warmup, cooldown=cooldown, start=peak / 9, end=peak / 10)
    top = round(warmup * steps)
    assert all(a < b for a, b in pairwise(curve[: top + 1]))
    assert all(a >= b for a, b in pairwise(curve[top:]))
    slack = 1 + 1e-12
    assert all(peak / 10 / slack <= rate <= peak * slack for rate in curve)


def test_mixing_ends():
    config = ScheduleConfig(mixed=0.75)
    assert [is_mixed(step, 8, config) for step in range(8)] == [True] * 6 + [False] * 2
    assert all(is_mixed(step, 8, ScheduleConfig()) for step in range(8))
    assert not any(is_mixed(step, 8, ScheduleConfig(mixed=0.0)) for step in range(8))


def test_the_ema_follows_fast_at_first():
    assert ema_decay(0, 0.999) == 0.1
    assert ema_decay(10**6, 0.999) == 0.999
    decays = [ema_decay(step, 0.99) for step in range(2000)]
    assert decays == sorted(decays)


@pytest.mark.parametrize(
    ("steps", "epoch", "interval"), [(1000, 50, 50), (1000, 5, 10), (3, 50, 3), (1, 1, 1)]
)
def test_interval_of_validation(steps, epoch, interval):
    assert validation_interval(steps, epoch) == interval


def timms(epochs, per_epoch, peak, *, length, warmup, start, end, by_epoch, late=False):
    """The rates that timm's own scheduler sets, one per step, before it or (late) after it."""
    import torch
    from timm.scheduler import CosineLRScheduler

    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    unit = 1 if by_epoch else per_epoch
    options = {"t_initial": length * unit, "lr_min": end, "cycle_limit": 1}
    options |= {"warmup_t": warmup * unit, "warmup_lr_init": start, "t_in_epochs": by_epoch}
    scheduler = CosineLRScheduler(optimiser, **options)
    curve = []
    for step in range(epochs * per_epoch):
        if late:
            curve.append(optimiser.param_groups[0]["lr"])
        if by_epoch:
            scheduler.step(step // per_epoch)
        else:
            scheduler.step_update(step)
        if not late:
            curve.append(optimiser.param_groups[0]["lr"])
    return curve


def test_a_stepped_whole_cosine_is_timms():
    ours = rates(
        31 * 7,
        6e-4,
        epochs=31,
        warmup=3 / 31,
        cooldown=1 / 31,
        start=1e-6,
        end=1e-5,
        whole=True,
        stepped=True,
    )
    shape = {"length": 30, "warmup": 3, "start": 1e-6, "end": 1e-5}
    assert ours == pytest.approx(timms(31, 7, 6e-4, **shape, by_epoch=True), rel=1e-9)


@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_ends_before_its_cosine_is_timms(late):
    ours = rates(
        101 * 3,
        1e-3,
        epochs=101,
        warmup=20 / 101,
        start=1e-6,
        end=1e-5,
        whole=True,
        horizon=300 / 101,
        late=late,
    )
    shape = {"length": 300, "warmup": 20, "start": 1e-6, "end": 1e-5, "late": late}
    assert ours == pytest.approx(timms(101, 3, 1e-3, **shape, by_epoch=False), rel=1e-9)


def test_the_share_of_lambda_is_the_released_codes():
    config = ScheduleConfig(epochs=101, warmup=20 / 101, horizon=300 / 101)
    for step in range(101 * 4):
        epoch = step // 4
        theirs = epoch / 20 if epoch <= 20 else 1 - (epoch - 20) / (300 - 20)
        assert drloc_share(step, 101 * 4, config) == pytest.approx(theirs)
