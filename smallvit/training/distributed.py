"""One process or many: which one this is, and what all of them must agree on."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

from smallvit.devices import choose_device
from smallvit.training.compiling import wait_for_compiler

T = TypeVar("T")

_STRICT = 2  # torch's mode in which what is not deterministic is refused
_PATIENCE = timedelta(hours=2)  # in which the first process has to read the data

#: Words of gloo and NCCL for a process that is gone.
_BROKEN = ("gloo", "Connection closed", "Connection reset", "Broken pipe", "NCCL")


@dataclass(frozen=True)
class World:
    """The processes of a training.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        device: Where this process computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this is the first process, the only one that writes files and messages."""
        return self.rank == 0

    @contextmanager
    def first(self) -> Iterator[None]:
        """Runs its body in the first process, and only then in all others.

        Raises:
            ValueError: It failed in the first process, and so it does in all.
        """
        if not self.leads and (problem := self.agree("")):
            raise ValueError(f"the first process stopped: {problem}")
        try:
            yield
        except Exception as error:
            if self.leads:
                self.agree(str(error) or type(error).__name__)
            raise
        if self.leads:
            self.agree("")

    def agree(self, value: T) -> T:
        """The first process's value, for all."""
        if self.size == 1:
            return value
        values: list[Any] = [value]
        distributed.broadcast_object_list(values, device=self._messages)
        return values[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is true in any process."""
        if self.size == 1:
            return flag
        count = torch.tensor([float(flag)], device=self._messages)
        distributed.all_reduce(count)
        return bool(count.item())

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """The sum over all processes."""
        if self.size > 1:
            numbers = numbers.clone()
            distributed.all_reduce(numbers)
        return numbers

    def gather(self, value: T) -> list[T]:
        """Every process's value, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def compare(self, **values: str) -> None:
        """Refuses to go on where processes have different values.

        Raises:
            ValueError: In every process; names what differs and where.
        """
        everywhere = self.gather(values)
        for name in values:
            if others := [r for r, v in enumerate(everywhere) if v[name] != everywhere[0][name]]:
                numbers = ", ".join(map(str, others))
                raise ValueError(
                    f"the processes do not have the same {name}: that of process {numbers} is not "
                    "that of process 0; give all of them the same files and the same command"
                )

    def explained(self, error: RuntimeError) -> Exception:
        """An error, or if it says that a connection broke, a sentence."""
        if self.size > 1 and any(word in str(error) for word in _BROKEN):
            return ValueError("another process of this training has ended: see what it said")
        return error

    @property
    def _messages(self) -> torch.device:
        """Where small messages must lie to be sent: NCCL sends only from a GPU."""
        return self.device if self.device.type == "cuda" else torch.device("cpu")


def join_world(device_name: str) -> World:
    """This process among those that torchrun started; without torchrun, the only one.

    The connections stay open until the process ends: trainings may follow each other.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = choose_device(device_name)
    if size == 1:
        return World(0, 1, device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, timeout=_PATIENCE)
        atexit.register(distributed.destroy_process_group)
    return World(rank, size, device)


def set_determinism(wanted: bool) -> None:
    """Has a GPU give the same numbers again, or else compute fast."""
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    if torch.get_deterministic_debug_mode() != (_STRICT if wanted else 0):
        wait_for_compiler()  # torch imports it here, in order to tell it as well
        torch.use_deterministic_algorithms(wanted)
    torch.backends.cuda.matmul.allow_tf32 = not wanted
    torch.backends.cudnn.allow_tf32 = not wanted
