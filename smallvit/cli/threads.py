"""Threads of a command: how they wait for each other, and how many of them compute."""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from smallvit.cli.terminal import say
from smallvit.devices import THREADS
from smallvit.text import counted

#: GNU's OpenMP spins this often before a thread sleeps (300,000 times by default), LLVM's for a
#: millisecond (200). Shorter, and idle cores lose more than they gain: docs/experiments.md.
_WAITING = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}
_LEAST = 0.5  # seconds that others are watched for
_BUSY = 0.75  # a core that is busy for this share of them is left to whoever has it


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Has OpenMP's idle threads sleep soon, unless the user has said how they shall wait.

    Threads that spin take the core from the thread they wait for: beside one busy process a step
    of training took twenty times as long. Libraries read this when they are loaded.
    """
    if not environment.keys() & {*_WAITING, "OMP_WAIT_POLICY"}:
        environment.update(_WAITING)


class Neighbours:
    """What other processes take of the cores that this one may use, since this was made.

    Only Linux tells. Work of a process that was made nice does not count: it makes room.

    Args:
        proc: Where Linux tells about itself.
        cores: Numbers of the cores; by default those that this process may use.
    """

    def __init__(self, proc: Path = Path("/proc"), cores: set[int] | None = None) -> None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self.cores = allowed if cores is None else cores
        self._proc = proc
        self._before = self._ticks(), self._own()

    def busy(self) -> float:
        """How many cores they kept busy, on average; 0 if that cannot be told."""
        (work, passed), own = self._ticks(), self._own()
        (work_before, passed_before), own_before = self._before
        seconds = (passed - passed_before) / max(len(self.cores), 1)
        if seconds < _LEAST:
            return 0.0
        return max((work - work_before - (own - own_before)) / seconds, 0.0)

    def _own(self) -> float:
        """Seconds that this process and those it waited for have computed."""
        return sum(os.times()[:4])

    def _ticks(self) -> tuple[float, float]:
        """Seconds of work on the cores, and all their seconds, since the machine was started."""
        work = passed = 0.0
        try:
            for line in (self._proc / "stat").read_text().splitlines():
                name, *words = line.split()
                if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in self.cores:
                    times = [float(word) for word in words[:8]]
                    _, nice, _, idle, waiting, *_ = times  # user, nice, system, …
                    work += sum(times) - nice - idle - waiting
                    passed += sum(times)
        except (OSError, ValueError):
            return 0.0, 0.0
        ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        return work / ticks, passed / ticks


def leave_room(neighbours: Neighbours, environment: Mapping[str, str]) -> None:
    """Has torch compute with a thread per free core, unless the user said how many.

    The threads of a step wait for the slowest of them, and that is the one that shares its core.
    Half of the cores are its fair share, however busy they are now.
    """
    if THREADS & environment.keys():
        return
    import torch

    cores, usual = len(neighbours.cores), torch.get_num_threads()
    busy = int(neighbours.busy() + 1 - _BUSY)
    threads = max(cores - busy, (cores + 1) // 2)
    if threads < min(usual, cores):
        torch.set_num_threads(threads)
        say(
            f"other processes keep {min(busy, cores)} of {cores} cores busy: computing with "
            f"{counted(threads, 'thread')} (OMP_NUM_THREADS={usual} to have all)",
            err=True,
        )


def take_as_many(threads: int | None, environment: Mapping[str, str]) -> None:
    """Has torch compute with as many threads as a run had before, unless the user said how many.

    So the run ends as if it had never been stopped.
    """
    if not threads or THREADS & environment.keys():
        return
    import torch

    usual = torch.get_num_threads()
    if threads < usual:
        torch.set_num_threads(threads)
        say(
            f"going on with {counted(threads, 'thread')}, as before, so that no bit differs "
            f"(OMP_NUM_THREADS={usual} to have all)",
            err=True,
        )
