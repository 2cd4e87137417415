"""The promise about time, on a machine that becomes slower or faster at any moment."""

import math
import signal
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smallvit.runs.checkpoint import Progress
from smallvit.runs.config import ScheduleConfig
from smallvit.training.optim import learning_rate, position
from smallvit.training.pace import Interrupt, Pace, stopping


class Machine:
    """A clock that advances by work, which takes `factor` times as long after a moment.

    At that moment nothing happens for `pause` seconds. The work takes as long as before after
    `lasts` seconds more.
    """

    def __init__(self, moment, factor, pause=0.0, lasts=math.inf):
        self.now, self.moment, self.factor, self.pause = 0.0, moment, factor, pause
        self.until = moment + lasts

    def __call__(self):
        return self.now

    def work(self, seconds):
        before = max(min(seconds, self.moment - self.now), 0.0)
        if 0 < before < seconds:
            self.now += self.pause
        self.now += before
        slow = max(min((seconds - before) * self.factor, self.until - self.now), 0.0)
        self.now += slow + seconds - before - slow / self.factor


def simulated(machine, seconds, *, step, validation, end, test, every, asked=1, ahead=1):
    """The loop of a training, without the training; what it measured was true at the beginning.

    Args:
        asked: Steps between two questions whether to plan again, as several processes have it.
        ahead: Steps that a GPU is given at once; they are computed when it is waited for.
    """
    machine.work(4.0)  # to read and build
    pace = Pace(
        started=0.0,
        seconds=seconds,
        step_seconds=step,
        validation=validation / step,
        end=end / step,
        test=test / step,
        every=every,
        clock=machine,
        waits=ahead == 1,
    )
    progress, pending = Progress(steps=pace.affordable()), 0

    def wait():
        nonlocal pending
        machine.work(step * pending)
        pending = 0

    pace.begin(0)
    while not progress.ended:
        progress.step += 1
        pending += 1
        if ahead > 1:
            machine.work(1e-4)  # to ask for it
        if pending == ahead:
            wait()
        last = progress.step == progress.steps
        if last or progress.step % every == 0:
            wait()
            before = machine()
            machine.work(validation)
            pace.validated(machine() - before)
        if last:
            progress.ended = "finished"
        elif progress.step % asked == 0 and pace.due(progress.step, progress.steps):
            wait()
            steps = pace.plan(progress.step, progress.steps)
            if steps != progress.steps:
                progress.replan(steps)
        if pace.over and not progress.ended:
            progress.replan(progress.step)
            progress.ended = "time"
    machine.work(end)
    for part in range(20):
        if part and pace.late:
            break
        machine.work(test / 20)
        progress.tested = part + 1
    return progress


@pytest.mark.parametrize("seconds", [60.0, 300.0])
@pytest.mark.parametrize("factor", [1.0, 3.0, 1 / 3])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99])
@pytest.mark.parametrize(("step", "end"), [(0.05, 1.0), (0.1, 5.0), (0.5, 3.0)])
def test_minutes_are_kept_whatever_the_machine_does(seconds, factor, share, step, end):
    machine = Machine(share * seconds, factor)
    every = max(1, int(0.05 * seconds / step))
    progress = simulated(
        machine, seconds, step=step, validation=end / 10, end=end / 3, test=end, every=every
    )
    assert machine.now <= 1.05 * seconds
    assert progress.tested == 20 or (factor > 1 and share > 0.7 and progress.tested >= 2)
    if factor > 1 and share < 0.9:
        assert machine.now >= 0.8 * seconds
    config = ScheduleConfig(warmup=0.1)
    last = learning_rate(*position(progress.step - 1, progress.plans), 1.0, config)
    assert last < 0.05  # it is annealed


@settings(deadline=None, max_examples=50)
@given(
    st.floats(0, 1),
    st.floats(1 / 3, 3),
    st.floats(30, 300),
    st.floats(0.05, 0.5),
    st.floats(0.5, 6),
)
def test_minutes_are_kept_at_any_moment(share, factor, seconds, step, end):
    machine = Machine(share * seconds, factor)
    progress = simulated(
        machine, seconds, step=step, validation=end / 10, end=end / 3, test=end, every=200
    )
    assert machine.now <= 1.05 * seconds
    assert progress.tested >= 2


@pytest.mark.parametrize("share", [0.2, 0.5, 0.7])
def test_a_pause_is_no_slower_machine(share):
    machine = Machine(60 * share + 0.001, 1.0, pause=5.0)
    progress = simulated(machine, 60.0, step=0.02, validation=0.1, end=2.0, test=4.0, every=200)
    assert progress.ended == "finished"
    assert 0.95 * 60 < machine.now <= 1.05 * 60
    assert progress.tested == 20
    last = learning_rate(*position(progress.step - 1, progress.plans), 1.0, ScheduleConfig())
    assert last < 0.05


@pytest.mark.parametrize("way", [{}, {"asked": 10}, {"ahead": 50}], ids=str)
def test_a_steady_machine_keeps_its_plan(way):
    machine, options = Machine(0, 1.0), {"validation": 0.5, "end": 1.0, "test": 2.0, "every": 100}
    progress = simulated(machine, 300.0, step=0.1, **options, **way)
    assert len(progress.plans) <= 3
    assert 0.9 * 300 < machine.now <= 300


def test_the_schedule_of_one_plan_is_its_steps():
    assert [position(step, [(0, 7)]) for step in range(8)] == [(step, 7) for step in range(8)]


@pytest.mark.parametrize("factor", [8, 20, 50, 100])
@pytest.mark.parametrize("share", [0.15, 0.2, 0.4, 0.6])
@pytest.mark.parametrize("lasts", [0.5, 2.5, 3.0, 5.0])
@pytest.mark.parametrize("step", [0.02, 0.08])
@pytest.mark.parametrize("ahead", [1, 20])
def test_a_very_slow_moment_does_not_end_a_run(factor, share, lasts, step, ahead):
    """It was over after 18 of 60 seconds: few steps were left of the slow moment's plan."""
    machine = Machine(share * 60, factor, lasts=lasts)
    times = {"step": step, "validation": 0.3, "end": 0.9, "test": 0.6}
    progress = simulated(machine, 60.0, **times, every=40, ahead=ahead)
    assert 0.95 * 60 <= machine.now <= 1.05 * 60
    assert progress.tested == 20
    last = learning_rate(*position(progress.step - 1, progress.plans), 1.0, ScheduleConfig())
    assert last < 0.05


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 200)), max_size=6))
def test_plans_bend_the_schedule_without_jumps(changes):
    """It rises at every step, and ends with the last plan."""
    plans, start = [(0, 100)], 0
    for after, left in changes:
        if start + after >= plans[-1][1]:
            break
        start += after
        plans.append((start, start + left))
    steps = plans[-1][1]
    curve = [position(step, plans)[0] for step in range(steps + 1)]
    assert all(a < b for a, b in pairwise(curve))
    assert curve[0] == 0
    assert curve[-1] == pytest.approx(100)
    for start, _ in plans[1:]:  # a later plan does not change what was before it
        earlier = [plan for plan in plans if plan[0] < start]
        assert curve[start] == pytest.approx(position(start, earlier)[0])


def test_a_stop_that_was_heard_in_the_steps_interrupts_nothing_afterwards():
    """Signals come twice where a command tells its workers what the terminal has told them."""
    interrupt = Interrupt()
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with stopping():
            pass
        with pytest.raises(KeyboardInterrupt):  # nothing was heard
            signal.raise_signal(signal.SIGTERM)
        with stopping() as stop:
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stop.requested
