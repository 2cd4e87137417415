"""How busy this machine is: its processors, its memory, its GPUs."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_QUERY = "name,utilization.gpu,memory.used,memory.total"
_SECONDS = 5.0  # that the question about GPUs may take


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        name: Its name.
        used: Share of the last moments in which it computed; None where it does not say.
        memory: Bytes in use.
        memory_total: Bytes it has.
    """

    name: str
    used: float | None
    memory: float | None
    memory_total: float | None


@dataclass(frozen=True, kw_only=True)
class Use:
    """How busy a machine is.

    Attributes:
        cores: Processors.
        cpu: Share of them that worked since the last question; None where it cannot be told.
        memory: Bytes in use; None where it cannot be told.
        memory_total: Bytes it has.
        gpus: Its GPUs.
    """

    cores: int
    cpu: float | None = None
    memory: float | None = None
    memory_total: float | None = None
    gpus: tuple[Gpu, ...] = ()


class Machine:
    """This machine.

    Args:
        clock: Seconds; GPUs are asked at most every two.
        proc: Where Linux tells about itself.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, proc: Path = Path("/proc")
    ) -> None:
        self._clock, self._proc = clock, proc
        self._before = self._ticks()
        self._gpus: tuple[Gpu, ...] = ()
        self._asked = -1e9

    def use(self) -> Use:
        """How busy it is now, compared with the last question."""
        ticks, cpu = self._ticks(), None
        if ticks and self._before and ticks[1] > self._before[1]:
            work, passed = (now - then for now, then in zip(ticks, self._before, strict=True))
            cpu = min(max(work / passed, 0.0), 1.0)
        self._before = ticks
        if self._clock() - self._asked >= 2:
            self._asked, self._gpus = self._clock(), ask_gpus()
        total, free = self._memory()
        memory = total - free if total is not None and free is not None else None
        return Use(
            cores=os.cpu_count() or 1, cpu=cpu, memory=memory, memory_total=total, gpus=self._gpus
        )

    def _ticks(self) -> tuple[float, float] | None:
        """Ticks of work, and all ticks, since the machine was started."""
        try:
            words = (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
            ticks = [float(word) for word in words]
        except (OSError, ValueError):
            return None
        idle = sum(ticks[3:5])  # idle, and waiting for a disk
        return sum(ticks) - idle, sum(ticks)

    def _memory(self) -> tuple[float | None, float | None]:
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
            known = {line.split(":")[0]: 1024 * float(line.split()[1]) for line in lines}
        except (OSError, ValueError, IndexError):
            return None, None
        return known.get("MemTotal"), known.get("MemAvailable")


def ask_gpus() -> tuple[Gpu, ...]:
    """NVIDIA's GPUs, as its own tool describes them; none where there is no such tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    words = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    rows = [line.rsplit(",", 3) for line in done.stdout.splitlines()] if not done.returncode else []
    return tuple(
        Gpu(
            name=name.strip(),
            used=_scaled(used, 0.01),
            memory=_scaled(memory, 2**20),
            memory_total=_scaled(total, 2**20),
        )
        for name, used, memory, total in (row for row in rows if len(row) == 4)
    )


def _scaled(text: str, unit: float) -> float | None:
    try:
        return float(text) * unit
    except ValueError:  # "[N/A]"
        return None
