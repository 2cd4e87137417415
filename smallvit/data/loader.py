"""Batches as a pure function of (seed, step)."""

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, UInt8, UInt64
from torch import Tensor

from smallvit.arguments import Natural, Positive, Seed, checked, described
from smallvit.data.cache import refuse_truncated
from smallvit.devices import choose_device

logger = logging.getLogger(__name__)

_MEMORY_SHARE = 0.5


class Batch(NamedTuple):
    """What a step works on.

    Attributes:
        images: The images.
        labels: Their classes.
        positions: Their positions in the batch of all ranks, from which random augmentation is
            drawn; in `Loader.ordered` their positions in the split.
    """

    images: UInt8[Tensor, "B C H W"]
    labels: Int64[Tensor, " B"]
    positions: Int64[Tensor, " B"]


def random_keys(seed: int, stream: int, count: int) -> UInt64[np.ndarray, " count"]:
    """Random numbers as a pure function of (seed, stream, index), on any machine and version.

    The finaliser of SplitMix64 over a counter; sorting by them gives a permutation.
    """

    def mix(x: UInt64[np.ndarray, " _"]) -> UInt64[np.ndarray, " _"]:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))

    weyl = np.uint64(0x9E3779B97F4A7C15)
    state = mix(np.array([seed % 2**64], np.uint64) + weyl)
    state = mix((state ^ np.array([stream % 2**64], np.uint64)) + weyl)
    return np.asarray(mix(state + weyl * np.arange(1, count + 1, dtype=np.uint64)))


class Loader:
    """Batches of a split.

    An epoch is a permutation keyed by (seed, epoch), cut into batches. Images that do not fill the
    last batch are left out of that epoch (drop last); the next epoch leaves out others.
    `batch(step)` needs no earlier step, so resuming needs no replay, and the batches of all ranks
    together are the same for any number of ranks.

    Images are kept on a GPU if they take at most half of its free memory. Otherwise a thread
    gathers them before they are needed, and copies them through pinned memory on a stream of its
    own.

    Args:
        pixels: Decoded images; a memory map of a file larger than memory is fine.
        labels: Their classes.
        batch_size: Images per batch, of all ranks together.
        seed: Seed of the order.
        rank: Which share of each batch this process takes.
        world_size: How many processes share a batch.
        device: Where batches go.
        balanced: Whether to show every class equally often. An epoch is as long as otherwise: it
            has a part of the images of larger classes, and repeats those of smaller ones.
        repeats: Repeated augmentation: how often a batch has each of its images. An epoch is as
            long as otherwise, so it has a part of the images.
        resident: Whether to keep all images on the device; None decides by its free memory.
        ahead: How many batches to gather before they are requested.

    Attributes:
        resident: Whether all images are on the device.
    """

    @checked
    def __init__(
        self,
        pixels: UInt8[np.ndarray, "N C H W"],
        labels: Int64[np.ndarray, " N"],
        *,
        batch_size: Positive,
        seed: Seed = 0,
        rank: Natural = 0,
        world_size: Positive = 1,
        device: torch.device | str = "cpu",
        balanced: bool = False,
        repeats: Positive = 1,
        resident: bool | None = None,
        ahead: Natural = 2,
    ) -> None:
        for name, array, kind, sides in (
            ("pixels", pixels, np.uint8, 4),
            ("labels", labels, np.int64, 1),
        ):
            if array.dtype != kind or array.ndim != sides:
                raise ValueError(
                    f"{name} is {described(array)}: expected is {kind.__name__} with {sides} axes"
                )
        if len(pixels) != len(labels):
            raise ValueError(f"there are {len(pixels)} images and {len(labels)} labels")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}: allowed is 0 up to below world_size {world_size}")
        for name, unit in (("world_size", world_size), ("repeats", repeats)):
            if batch_size % unit:
                raise ValueError(f"batch_size {batch_size} is not a multiple of {name} {unit}")
        self.pixels, self.batch_size, self.seed = pixels, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.device = torch.device(choose_device(device) if isinstance(device, str) else device)
        self.balanced, self.repeats, self.ahead = balanced, repeats, ahead
        self._host_labels = labels
        self._labels = torch.from_numpy(labels.copy()).to(self.device)
        self._images = self._upload(resident)
        self.resident = self._images is not None
        share = batch_size // world_size
        self._positions = torch.arange(rank * share, (rank + 1) * share, device=self.device)
        self._epochs: dict[int, tuple[Int64[np.ndarray, " N"], Int64[Tensor, " N"]]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="smallvit-loader")
        self._coming: dict[int, Future[tuple[Tensor, Any]]] = {}
        self._stream: Any = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)
        way = "are kept in the memory of" if self.resident else "are copied batch by batch to"
        megabytes = pixels.nbytes / 1e6
        logger.debug("%d images (%.1f MB) %s %s", len(pixels), megabytes, way, self.device)

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch."""
        steps = len(self) // self.batch_size
        if not steps:
            raise ValueError(
                f"batch_size is {self.batch_size}, but there are only {len(self)} images: choose a "
                f"batch_size of at most {len(self)}"
            )
        return steps

    def batch(self, step: int) -> Batch:
        """This rank's part of a batch; steps count from 0 through all epochs."""
        if not hasattr(step, "__index__") or step < 0:
            raise ValueError(f"step is {described(step)}: allowed is 0 or more")
        indices = self._indices(step)[1]
        labels = self._labels[indices]
        if self._images is not None:
            return Batch(self._images[indices], labels, self._positions)
        self._coming = {
            each: self._coming.get(each) or self._pool.submit(self._gather, self._indices(each)[0])
            for each in range(step, step + 1 + self.ahead)
        }
        images, arrived = self._coming.pop(step).result()
        if arrived is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(arrived)
            images.record_stream(current)
        return Batch(images, labels, self._positions)

    def ordered(self, batch_size: int | None = None) -> Iterator[Batch]:
        """Every image once, in order, the incomplete last batch included.

        With several ranks each takes its share of every batch, and the shares of the last batch
        may differ in length; `positions` say which images they are.
        """
        size = batch_size or self.batch_size
        share = -(-size // self.world_size)
        for start in range(0, len(self), size):
            first = start + self.rank * share
            stop = min(first + share, start + size, len(self))
            if first < stop:
                refuse_truncated(self.pixels)
                positions = torch.arange(first, stop, device=self.device)
                part = slice(first, stop)
                images = (
                    torch.from_numpy(np.array(self.pixels[part])).to(self.device)
                    if self._images is None
                    else self._images[part]
                )
                yield Batch(images, self._labels[part], positions)

    def order(self, epoch: int) -> Int64[np.ndarray, " N"]:
        """The images of an epoch in the order they are shown."""
        return self._order(epoch)[0]

    def _order(self, epoch: int) -> tuple[Int64[np.ndarray, " N"], Int64[Tensor, " N"]]:
        """`order` on the host and on the device."""
        if epoch not in self._epochs:
            plain = np.argsort(random_keys(self.seed, epoch, len(self)), kind="stable")
            chosen = self._balance(plain, epoch) if self.balanced else plain
            shown = np.repeat(chosen[: -(-len(self) // self.repeats)], self.repeats)[: len(self)]
            # The next epoch's first batches are gathered during this one's last.
            self._epochs = {k: v for k, v in self._epochs.items() if abs(k - epoch) == 1}
            self._epochs[epoch] = shown, torch.from_numpy(shown).to(self.device)
        return self._epochs[epoch]

    def _balance(self, plain: Int64[np.ndarray, " N"], epoch: int) -> Int64[np.ndarray, " N"]:
        """As many draws as images, in rounds of one image per class in random order."""
        labels = self._host_labels[plain]
        present = np.unique(labels)
        rounds = -(-len(plain) // len(present))
        # In round r every class gives its r-th image, and begins again when it has no more.
        table = np.stack([np.resize(plain[labels == label], rounds) for label in present], axis=1)
        keys = random_keys(self.seed, ~epoch, table.size).reshape(table.shape)
        mixed = np.take_along_axis(table, np.argsort(keys, axis=1), axis=1)
        return mixed.reshape(-1)[: len(plain)]

    def _indices(self, step: int) -> tuple[Int64[np.ndarray, " B"], Int64[Tensor, " B"]]:
        """The images of this rank's part of a batch, on the host and on the device."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        share = self.batch_size // self.world_size
        start = batch * self.batch_size + self.rank * share
        on_host, on_device = self._order(epoch)
        return on_host[start : start + share], on_device[start : start + share]

    def _gather(self, indices: Int64[np.ndarray, " B"]) -> tuple[Tensor, Any]:
        """Images being copied to the device, and on a GPU the event that the copy is done."""
        shape = (len(indices), *self.pixels.shape[1:])
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=self._stream is not None)
        refuse_truncated(self.pixels)
        np.take(self.pixels, indices, axis=0, out=images.numpy(), mode="clip")
        if self._stream is None:
            return images.to(self.device), None
        with torch.cuda.stream(self._stream):
            moved = images.to(self.device, non_blocking=True)
            arrived = self._stream.record_event()
        return moved, arrived

    def _upload(self, wanted: bool | None) -> UInt8[Tensor, "N C H W"] | None:
        """All images on the device, copied a part at a time, if they are wanted there or fit."""
        if wanted is None and self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            wanted = self.pixels.nbytes <= _MEMORY_SHARE * free
        if not wanted:
            return None
        images = torch.empty(self.pixels.shape, dtype=torch.uint8, device=self.device)
        for start in range(0, len(self), 4096):
            refuse_truncated(self.pixels)
            part = np.array(self.pixels[start : start + 4096])
            images[start : start + 4096] = torch.from_numpy(part)
        return images
