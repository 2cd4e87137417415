"""One process or many: who this process is, and what all of them must agree on."""

import os
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import distributed

from smallvit.devices import choose_device

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes of a training.

    Attributes:
        rank: Number of this process, from 0.
        size: How many there are.
        device: Where this one works.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def agree(self, value: T) -> T:
        """The first process's value, for all."""
        if self.size == 1:
            return value
        values: list[Any] = [value]
        distributed.broadcast_object_list(values, device=self._mail)
        return values[0]

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        if self.size == 1:
            return flag
        told = torch.tensor([float(flag)], device=self._mail)
        distributed.all_reduce(told)
        return bool(told.item())

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

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            distributed.barrier()

    @property
    def _mail(self) -> torch.device:
        """Where small things travel."""
        return self.device if self.device.type == "cuda" else torch.device("cpu")


def join_world(device_name: str) -> World:
    """This process's place, from what torchrun says; alone without it."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = choose_device(device_name)
    if size == 1:
        return World(0, 1, device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return World(rank, size, device)


def leave_world(world: World) -> None:
    """Says goodbye to the others."""
    if world.size > 1 and distributed.is_initialized():
        distributed.destroy_process_group()
