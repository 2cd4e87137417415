"""What an attack of the long test found, and how much memory a process holds."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Result:
    """What came of an attack.

    Attributes:
        tried: How often it was tried.
        broken: One sentence for each break.
        note: What else is worth a place in the table.
    """

    tried: int = 0
    broken: list[str] = field(default_factory=list)
    note: str = ""

    def expect(self, true: object, sentence: str) -> None:
        """Takes down a break unless something is true."""
        if not true:
            self.broken.append(sentence)


def memory_of(pid: int | None = None) -> float:
    """Megabytes that a process holds, this one by default; Linux only."""
    text = Path(f"/proc/{pid or os.getpid()}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def is_flat(megabytes: Iterable[float]) -> bool:
    """Whether the last of three measurements is no more than a little above the second."""
    _, middle, end = megabytes
    return end <= 1.05 * middle + 10
