"""One optimiser step: plain, compiled, or captured as a CUDA graph."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from smallvit.data.loader import Batch
from smallvit.runs.config import OptimConfig
from smallvit.training.distributed import World
from smallvit.training.learner import Learner
from smallvit.training.optim import set_learning_rate
from smallvit.training.schedule import average_decay

logger = logging.getLogger(__name__)

_WARM = 3
_NEVER = 2**62


class NonFiniteError(ValueError):
    """The loss is infinite or no number.

    Attributes:
        step: Whose.
        untouched: Whether the weights are still those of the step before.
    """

    def __init__(self, step: int, *, untouched: bool = False) -> None:
        super().__init__(f"the loss is not finite at step {step:,}")
        self.step, self.untouched = step, untouched


class Stepper:
    """Takes steps, and adds up what they say.

    Args:
        learner: From bytes to a loss.
        optimiser: Of everything in the learner that is trained.
        average: A copy of the model that follows it slowly, or None.
        optim: Clipping and averaging.
        accumulation: Passes a step is made of.
        world: Who shares the work.
        compiled: Whether to compile.
        captured: Whether to capture the whole step, on a GPU.
        seed: The run's, for dropout.
    """

    def __init__(
        self,
        learner: Learner,
        optimiser: torch.optim.Optimizer,
        *,
        average: nn.Module | None,
        optim: OptimConfig,
        accumulation: int,
        world: World,
        compiled: bool,
        captured: bool,
        seed: int,
    ) -> None:
        self.learner, self.optimiser, self.average, self.optim = learner, optimiser, average, optim
        self.accumulation, self.world, self.seed = accumulation, world, seed
        self.compiled, self.captured = compiled, captured
        device = world.device
        self.sums = torch.zeros(
            3, device=device, dtype=torch.float32 if device.type == "mps" else torch.float64
        )
        self._bad = torch.tensor(_NEVER, device=device)
        self._step = torch.tensor(0, device=device)
        self._keep = torch.tensor(0.0, device=device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=learner.precision == "fp16")
        self._graphs: dict[bool, tuple[Any, Batch]] = {}
        self._work: nn.Module = learner
        if world.size > 1:
            devices = [device] if device.type == "cuda" else None
            self._work = DistributedDataParallel(learner, device_ids=devices)
        if compiled:
            learner.compile(dynamic=False)
            learner.path_draws = torch.compile(learner.path_draws, dynamic=False)  # type: ignore[method-assign]

    def __call__(self, batch: Batch, step: int, *, lr: float, mixed: bool) -> None:
        """Takes one step.

        Raises:
            NonFiniteError: The loss is; on the CPU before anything has changed.
            torch.OutOfMemoryError: Nothing has changed; `halve` and try again.
        """
        set_learning_rate(self.optimiser, lr)
        self._step.fill_(step)
        self._keep.fill_(average_decay(step, self.optim.ema))
        self._seed_dropout(step)
        if self.captured:
            try:
                self._replay(batch, step, mixed)
                return
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, TypeError) as error:
                self._plainly("capture the step", error)
        if self.compiled:
            try:
                self._run(batch, mixed)
                return
            except (torch.OutOfMemoryError, NonFiniteError):
                raise
            except Exception as error:  # whatever a compiler may come up with
                self._plainly("compile", error)
        self._run(batch, mixed)

    def halve(self, share: int, group: int) -> None:
        """Doubles the passes of a step.

        Args:
            share: This process's images of a step.
            group: Images that must stay in one pass.

        Raises:
            ValueError: A pass cannot become smaller.
        """
        if self.world.size > 1:
            raise ValueError(
                "out of memory: with several processes choose a smaller batch_size, or more "
                "accumulation"
            )
        more = 2 * self.accumulation
        if share % more or (share // more) % group:
            raise ValueError(
                f"out of memory, and a step of {share} images in {self.accumulation} passes "
                "cannot be divided further: choose a smaller model or image_size"
            )
        self.accumulation = more
        self._graphs.clear()
        self.optimiser.zero_grad(set_to_none=True)
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()

    def take_sums(self) -> tuple[float, float, int]:
        """Mean loss, accuracy and number of images since the last call, of all processes."""
        loss, hits, count = self.world.total(self.sums).tolist()
        self.sums.zero_()
        return loss / max(count, 1), hits / max(count, 1), round(count)

    def check(self) -> None:
        """Raises NonFiniteError if a loss was, on any device; waits for the device."""
        first = int(self._bad)
        if first != _NEVER:
            raise NonFiniteError(first)

    def _run(self, batch: Batch, mixed: bool) -> None:
        """The step itself; nothing in it asks the device."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = torch.zeros_like(self._keep)
        hits = torch.zeros_like(self._step)
        for number, part in enumerate(self._parts(batch)):
            self.learner.draw_paths(self._step, part.positions)
            with self._unsynchronised(number + 1 < self.accumulation):
                own, right = self._work(
                    part.images, part.labels, self._step, part.positions, mixed=mixed
                )
                own = own / self.accumulation
                self.scaler.scale(own).backward()
            loss += own.detach()
            hits += right
        if loss.device.type == "cpu" and not torch.isfinite(loss):
            raise NonFiniteError(int(self._step), untouched=True)
        self._update()
        self._note(loss, hits, batch.labels.shape[0])

    def _update(self) -> None:
        if self.optim.clip:
            self.scaler.unscale_(self.optimiser)
            trained = [p for group in self.optimiser.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, self.optim.clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        if self.average is not None:
            pairs = zip(self.average.parameters(), self.learner.model.parameters(), strict=True)
            with torch.no_grad():
                for slow, fast in pairs:
                    slow.lerp_(fast, 1 - self._keep)

    def _note(self, loss: Tensor, hits: Tensor, count: int) -> None:
        fine = torch.isfinite(loss)
        self._bad.copy_(torch.where(fine, self._bad, torch.minimum(self._bad, self._step)))
        self.sums += torch.stack([loss * count, hits.float(), torch.full_like(loss, count)])

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        chunks = (tensor.chunk(self.accumulation) for tensor in batch)
        return (Batch(*part) for part in zip(*chunks, strict=True))

    def _unsynchronised(self, wanted: bool) -> AbstractContextManager[None]:
        if wanted and isinstance(self._work, DistributedDataParallel):
            return self._work.no_sync()
        return nullcontext()

    def _seed_dropout(self, step: int) -> None:
        """Dropout draws from torch's generator: so that a step does not depend on those before."""
        torch.manual_seed((self.seed * 1_000_003 + step) * 4096 + self.world.rank)

    def _replay(self, batch: Batch, step: int, mixed: bool) -> None:
        if mixed not in self._graphs:
            self._graphs[mixed] = self._capture(batch, mixed)
            self._seed_dropout(step)  # capturing has drawn
        graph, static = self._graphs[mixed]
        for old, new in zip(static, batch, strict=True):
            old.copy_(new)
        graph.replay()

    def _capture(self, batch: Batch, mixed: bool) -> tuple[Any, Batch]:
        """Records a step as a graph; weights and sums are afterwards what they were."""
        static = Batch(*(tensor.clone() for tensor in batch))
        saved = self.snapshot()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(side):
                for _ in range(_WARM):
                    self._run(static, mixed)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph):
                self._run(static, mixed)
        finally:
            self.restore(saved)
        return graph, static

    def _tensors(self) -> list[Tensor]:
        """Everything a step changes."""
        state = [
            value
            for held in self.optimiser.state.values()
            for value in held.values()
            if isinstance(value, Tensor)
        ]
        slow = [] if self.average is None else list(self.average.parameters())
        own = [*self.learner.parameters(), *self.learner.buffers(), self.sums, self._bad]
        return [*own, *slow, *state]

    @torch.no_grad()
    def snapshot(self) -> list[Tensor]:
        """A copy of everything a step changes."""
        return [tensor.detach().clone() for tensor in self._tensors()]

    @torch.no_grad()
    def restore(self, saved: list[Tensor]) -> None:
        """Puts a snapshot back, in place; optimiser state that is new since then starts at zero."""
        tensors = self._tensors()
        for tensor, old in zip(tensors[: len(saved)], saved, strict=True):
            tensor.copy_(old)
        for tensor in tensors[len(saved) :]:
            tensor.zero_()

    def _plainly(self, what: str, error: Exception) -> None:
        """Goes on without what failed, and says so."""
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        logger.warning("could not %s (%s); going on without", what, first[:200])
        if self.captured:
            self.captured = False
            torch.cuda.synchronize()
        else:
            self.compiled = False
            self.learner._compiled_call_impl = None
            self.learner.__dict__.pop("path_draws", None)
        self.optimiser.zero_grad(set_to_none=True)
