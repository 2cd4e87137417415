"""Threads of a command: as many as there are free cores, and those of the run that goes on."""

import os

import pytest
import torch

from smallvit.cli.threads import Neighbours, leave_room, take_as_many

TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture(autouse=True)
def as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Machine:
    """A made-up machine: seconds of user, nice, system and idle time of each core."""

    def __init__(self, folder, monkeypatch, cores):
        self.folder, self.times = folder, {core: [0.0] * 4 for core in range(cores)}
        self.own = 0.0
        monkeypatch.setattr(os, "times", lambda: (self.own, 0.0, 0.0, 0.0, 0.0))
        self.write()

    def write(self):
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        for core, times in self.times.items():
            words = [f"{round(TICKS * seconds)}" for seconds in times]
            lines.append(f"cpu{core} {' '.join(words)} 0 0 0 0 0 0")
        (self.folder / "stat").write_text("\n".join([*lines, "intr 1 2 3", "ctxt 4"]))

    def passes(self, own=0.0, **shares):
        """Two seconds, of which core0=(user, nice) took these shares."""
        for core, times in self.times.items():
            user, nice = shares.get(f"core{core}", (0.0, 0.0))
            for index, share in enumerate((user, nice, 0.0, 1 - user - nice)):
                times[index] += 2 * share
        self.own += 2 * own
        self.write()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch, 2)


def neighbours(machine, cores=(0, 1)):
    return Neighbours(machine.folder, set(cores))


def test_what_others_take(machine):
    others = neighbours(machine)
    assert others.busy() == 0  # no time has passed
    machine.passes(core0=(1.0, 0.0))
    assert others.busy() == pytest.approx(1)
    machine.passes(core0=(1.0, 0.0), core1=(0.5, 0.0))
    assert others.busy() == pytest.approx(1.25)


def test_our_own_work_and_that_of_the_nice_do_not_count(machine):
    others = neighbours(machine)
    machine.passes(own=1.0, core0=(1.0, 0.0), core1=(0.0, 1.0))
    assert others.busy() == pytest.approx(0)


def test_cores_that_we_may_not_use_do_not_count(machine):
    others = neighbours(machine, [1])
    machine.passes(core0=(1.0, 0.0))
    assert others.busy() == 0
    machine.passes(core1=(1.0, 0.0))
    assert others.busy() == pytest.approx(0.5)


@pytest.mark.parametrize("text", [None, "", "cpu0 nonsense here\n", "cpu0 1 2\n"])
def test_a_machine_that_does_not_tell(tmp_path, text):
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert Neighbours(tmp_path, {0, 1}).busy() == 0


@pytest.mark.parametrize(
    ("busy", "expected"), [(0.0, 4), (0.7, 4), (0.8, 3), (1.6, 3), (2.0, 2), (4.0, 2), (9.0, 2)]
)
def test_threads_are_as_many_as_free_cores(tmp_path, capsys, busy, expected):
    others = Neighbours(tmp_path, {0, 1, 2, 3})
    others.busy = lambda: busy
    torch.set_num_threads(4)
    leave_room(others, {})
    assert torch.get_num_threads() == expected
    said = capsys.readouterr().err
    assert bool(said) == (expected < 4)
    if busy == 9:
        assert said.startswith("other processes keep 4 of 4 cores busy: computing with 2 threads (")


def test_the_user_decides(tmp_path):
    others = Neighbours(tmp_path, {0, 1})
    others.busy = lambda: 2.0
    torch.set_num_threads(2)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        leave_room(others, {name: "2"})
        take_as_many(1, {name: "2"})
    assert torch.get_num_threads() == 2


def test_fewer_threads_than_cores_stay(tmp_path, capsys):
    """Torch takes one per real core, of which there are half as many."""
    others = Neighbours(tmp_path, {0, 1, 2, 3})
    others.busy = lambda: 1.0
    torch.set_num_threads(2)
    leave_room(others, {})
    assert torch.get_num_threads() == 2
    assert not capsys.readouterr().err


def test_a_run_goes_on_with_its_threads(capsys):
    torch.set_num_threads(2)
    take_as_many(None, {})
    assert torch.get_num_threads() == 2
    take_as_many(1, {})
    assert torch.get_num_threads() == 1
    assert capsys.readouterr().err.startswith("going on with 1 thread, as before")
    take_as_many(2, {})  # this machine has fewer
    assert torch.get_num_threads() == 1
