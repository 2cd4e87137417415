"""One optimiser step: plain, compiled, or captured as a CUDA graph."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from smallvit.augment import Augmentation
from smallvit.data.loader import Batch
from smallvit.layers.attention import MultiHead
from smallvit.layers.blocks import Block, Stack
from smallvit.layers.tokenizers import ConvTokenizer
from smallvit.runs.checkpoint import below
from smallvit.runs.config import RunConfig
from smallvit.training.compiling import wait_for_compiler
from smallvit.training.distributed import World
from smallvit.training.objective import Objective
from smallvit.training.optim import (
    ema_decay,
    make_optimiser,
    move_towards,
    parameter_groups,
    set_learning_rate,
)
from smallvit.training.statistics import Shown, batch_norms, measure_statistics

logger = logging.getLogger(__name__)

_WARM = 3
_NEVER = 2**62


class NonFiniteError(ValueError):
    """The loss is infinite or not a number, or the weights have become useless.

    Attributes:
        step: Whose loss.
        untouched: Whether the weights are still those of the step before.
    """

    def __init__(self, step: int, exploded: str = "", *, untouched: bool = False) -> None:
        what = f"the weights exploded: {exploded}" if exploded else "the loss is not finite"
        super().__init__(f"{what} at step {step:,}")
        self.step, self.untouched = step, untouched


class _Pass(nn.Module):
    """One pass through an objective; whether it is compiled can change without DDP noticing."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective
        self.compute: Callable[..., tuple[Tensor, Tensor]] = objective.forward

    def forward(self, *batch: Tensor, mixed: bool) -> tuple[Tensor, Tensor]:
        return self.compute(*batch, mixed=mixed)


class Stepper:
    """Takes steps, and adds up their losses and numbers.

    Args:
        config: The run's: optimiser, EMA, passes per step, how to compute, seed of dropout.
        objective: From images to a loss.
        world: The processes that share the work.

    Attributes:
        optimiser: Of everything in the objective that is trained.
        ema: A copy of the objective with moving averages of its parameters, or None.
        accumulation: Passes per step; more after memory ran out.
        sums: Over the images since `take_means`: the loss, the objective's numbers, the images.
    """

    def __init__(self, config: RunConfig, objective: Objective, world: World) -> None:
        self.config, self.objective, self.world = config, objective, world
        loop, device, on_gpu = config.loop, world.device, world.device.type == "cuda"
        wait_for_compiler()  # what follows may import it too
        groups = parameter_groups(objective.model, config.optim, *objective.extra)
        self.optimiser = make_optimiser(groups, config.optim)
        self.scaler = torch.amp.GradScaler(device.type, enabled=objective.precision == "fp16")
        for module in _modules(objective):
            if isinstance(module, MultiHead | ConvTokenizer):
                module.fused = loop.fused
            elif isinstance(module, Block):
                module.recompute = "wide" if loop.recompute else "nothing"
                module.narrow = loop.narrow
        self.ema: Objective | None = None
        if config.optim.ema:
            self.ema = copy.deepcopy(objective).requires_grad_(False).eval()
        self.accumulation = loop.accumulation
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self.sums = torch.zeros(2 + len(objective.numbers), device=device, dtype=dtype)
        self._settled: int | None = None
        self._bad = torch.tensor(_NEVER, device=device)
        self._step = torch.tensor(0, device=device)
        self._keep = torch.tensor(0.0, device=device)
        self.compiled = loop.compiles(device.type, config.schedule.minutes)
        capturable = on_gpu and world.size == 1 and not self.scaler.is_enabled()
        self.captured = capturable and loop.captured is not False
        self._tells = self.compiled or (on_gpu and loop.compiled is None)
        self._graphs: dict[bool, tuple[Any, Batch]] = {}
        self._pass = _Pass(objective)
        self._draw_paths = objective.path_draws
        if self.compiled and loop.regional:
            _by_regions(objective)
        if self.compiled:
            self._pass.compute = torch.compile(objective.forward, dynamic=False)
            self._draw_paths = torch.compile(objective.path_draws, dynamic=False)
        self._run_pass: nn.Module = self._pass
        if world.size > 1:
            self._run_pass = DistributedDataParallel(
                self._pass,
                device_ids=[device] if on_gpu else None,
                # Without labels, a loss may leave out the classifier.
                find_unused_parameters=not objective.needs_labels,
            )

    def __call__(self, batch: Batch, step: int, *, lr: float, mixed: bool) -> None:
        """Takes one step, in more passes from now on if memory runs out.

        Raises:
            NonFiniteError: The loss is; on the CPU before anything has changed.
            ValueError: Memory ran out and a pass cannot become smaller.
        """
        while True:
            try:
                self._take(batch, step, lr, mixed)
                return
            except torch.OutOfMemoryError:
                pass  # what the failed pass holds is free only after this
            self._halve(len(batch.images))

    def _take(self, batch: Batch, step: int, lr: float, mixed: bool) -> None:
        """One try; when memory runs out nothing has changed."""
        set_learning_rate(self.optimiser, lr)
        self._step.fill_(step)
        self._keep.fill_(ema_decay(step, self.config.optim.ema))
        self._seed_dropout(step)
        if self._tells:
            logger.info(
                "compiling the step: up to two minutes the first time, less once it is cached; "
                "--set loop.compiled=false does without"
                if self.compiled
                else "the step is not compiled: in so few minutes waiting for it would not pay; "
                "--set loop.compiled=true compiles it"
            )
            self._tells = False
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

    def _seed_dropout(self, step: int) -> None:
        """So that dropout, which draws from torch's generator, does not depend on earlier steps."""
        seed = (self.config.seed * 1_000_003 + step) * 4096 + self.world.rank
        # As torch.manual_seed does, without looking for other devices: that takes longer.
        torch.default_generator.manual_seed(seed)
        if self.world.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)
        elif self.world.device.type == "mps":
            torch.mps.manual_seed(seed)

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

    def _run(self, batch: Batch, mixed: bool) -> None:
        """The step itself; nothing in it waits for a GPU."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = torch.zeros_like(self._keep)
        numbers = torch.zeros(len(self.objective.numbers), device=loss.device)
        parts = zip(*(tensor.chunk(self.accumulation) for tensor in batch), strict=True)
        one_pass = self._run_pass
        for index, (images, labels, positions) in enumerate(parts):
            if self.objective.paths:
                self.objective.drop_paths(self._draw_paths(self._step, positions))
            waits = index + 1 < self.accumulation
            with (
                one_pass.no_sync()  # processes exchange the gradients of all passes in the last one
                if waits and isinstance(one_pass, DistributedDataParallel)
                else nullcontext()
            ):
                mean, sums = one_pass(images, labels, self._step, positions, mixed=mixed)
                mean = mean / self.accumulation
                self.scaler.scale(mean).backward()
            loss += mean.detach()
            numbers += sums.detach()
        # All processes stop at the same step: the others would wait for one that has left.
        if loss.device.type == "cpu" and self.world.any(not torch.isfinite(loss)):
            raise NonFiniteError(int(self._step), untouched=True)
        if clip := self.config.optim.clip:
            self.scaler.unscale_(self.optimiser)
            trained = [p for group in self.optimiser.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        if self.ema is not None:
            move_towards(self.ema.parameters(), self.objective.parameters(), 1 - self._keep)
        count = torch.full_like(loss[None], len(batch.images))
        self.sums += torch.cat([loss * count, numbers, count])
        first_bad = torch.minimum(self._bad, self._step)
        self._bad.copy_(torch.where(torch.isfinite(loss), self._bad, first_bad))

    def _plainly(self, what: str, error: Exception) -> None:
        """Goes on without what failed, and says so."""
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        logger.warning("could not %s (%s); going on without", what, first[:200])
        if self.captured:
            self.captured = False
            torch.cuda.synchronize()
        else:
            self.compiled = False
            self._pass.compute, self._draw_paths = self.objective.forward, self.objective.path_draws
        self.optimiser.zero_grad(set_to_none=True)

    def _halve(self, share: int) -> None:
        """Doubles the passes of a step of `share` images in this process."""
        if self.world.size > 1:
            raise ValueError(
                "out of memory: with several processes choose a smaller batch_size, or more "
                "accumulation"
            )
        more = 2 * self.accumulation
        if not self.objective.divides(share, more):
            raise ValueError(
                f"out of memory, and a step of {share} images in {self.accumulation} passes "
                "cannot be divided further: choose a smaller model or image_size"
            )
        self.accumulation = more
        self._graphs.clear()
        self.optimiser.zero_grad(set_to_none=True)
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()
        logger.warning(
            "out of memory: a step is now made of %d passes of %d images", more, share // more
        )

    def take_means(self) -> dict[str, float]:
        """Loss and numbers per image since the last call, of all processes."""
        *sums, count = self.world.total(self.sums).tolist()
        self.sums.zero_()
        means = [value / max(count, 1) for value in sums]
        return dict(zip(("loss", *self.objective.numbers), means, strict=True))

    def check(self) -> None:
        """Raises NonFiniteError if a loss was, on any device; waits for the device."""
        first = min(self.world.gather(int(self._bad)))
        if first != _NEVER:
            raise NonFiniteError(first)

    @property
    def evaluated(self) -> Objective:
        """What is validated and saved: the EMA as `settle` left it, or else the objective."""
        return self.objective if self.ema is None else self.ema

    @torch.no_grad()
    def settle(self, step: int, shown: Callable[[], Sequence[Shown]]) -> None:
        """Brings the EMA up to date after a step: statistics are measured, other buffers copied.

        Args:
            step: How many steps were taken.
            shown: Gives the batches to measure the statistics of batch norm on.
        """
        if self.ema is None or self._settled == step:
            return
        for slow, fast in zip(self.ema.buffers(), self.objective.buffers(), strict=True):
            slow.copy_(fast)
        if batch_norms(self.ema):
            measure_statistics(self.ema, shown(), self.world, self.accumulation)
        self._settled = step

    def _tensors(self) -> list[Tensor]:
        """Everything a step changes."""
        state = [value for state in self.optimiser.state.values() for value in state.values()]
        ema = [] if self.ema is None else list(self.ema.parameters())
        trained = [*self.objective.parameters(), *self.objective.buffers()]
        return [*trained, self.sums, self._bad, *ema, *state]

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
        self._settled = None

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors that decide how the run goes on."""
        owners = {"objective": self.objective.state_dict()}
        if self.ema is not None:
            owners["ema"] = self.ema.state_dict()
        for number, state in self.optimiser.state_dict()["state"].items():
            owners[f"optimiser.{number}"] = state
        return {f"{owner}.{key}": x for owner, owned in owners.items() for key, x in owned.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """The reverse.

        Raises:
            ValueError: They belong to another model.
        """
        weights = below(tensors, "objective.")
        try:
            self.objective.load_state_dict(weights)
            if self.ema is not None:
                self.ema.load_state_dict({**weights, **below(tensors, "ema.")})
        except RuntimeError as error:
            raise ValueError(f"the checkpoint belongs to another model: {error}") from error
        trained = [p for group in self.optimiser.param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in below(tensors, "optimiser.").items():
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = _laid_out_as(trained[int(number)], value)
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})


def _modules(objective: Objective) -> Iterator[nn.Module]:
    """All that a pass goes through, trained or not."""
    return chain.from_iterable(part.modules() for part in (objective, *objective.helpers))


def _by_regions(objective: Objective) -> None:
    """Leaves what calls parts that are alike to Python: each part is then compiled once.

    Such are the blocks of a model, and the steps of an augmentation policy.
    """
    for module in _modules(objective):
        part: Any = module
        if isinstance(module, Stack):
            part.forward = torch.compiler.disable(part.forward, recursive=False)
        elif isinstance(module, Augmentation):
            part.alike = True
            part.apply_policy = torch.compiler.disable(part.apply_policy, recursive=False)


def _laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    """A value in its parameter's memory layout, which fused optimisers expect."""
    if value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, requires_grad=False).copy_(value)
