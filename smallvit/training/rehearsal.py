"""Compiles a run's step while its images are decoded: a rehearsal with a model to throw away.

What the compiler makes of a step depends on the shapes and the config, and not on weights, pixels
or statistics. So a model of the same build and made-up images have the real step find all of its
programs in memory.
"""

import atexit
import ctypes
import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from types import TracebackType

import torch
from torch import nn

from smallvit.data import Dataset
from smallvit.data.loader import Batch
from smallvit.runs.config import RunConfig
from smallvit.training.budget import limit_batch
from smallvit.training.compiling import COMPILING, short_turns, wait_for_compiler
from smallvit.training.distributed import World
from smallvit.training.objective import find_objective, make_objective
from smallvit.training.step import Stepper

logger = logging.getLogger(__name__)

#: Those that were interrupted, and may still be in the compiler.
_interrupted: list["Rehearsal"] = []
#: How often, and every how many seconds, a thread is asked to end before the process does.
_REQUESTS, _PAUSE = 20, 1.0


class _Interrupted(BaseException):
    """Ends a rehearsal that nobody waits for."""


class Rehearsal:
    """Compiles the step beside what is done while this is entered; leaving waits for it.

    Nothing is rehearsed where it would not pay: by several processes, in runs that do not compile,
    or where all images are decoded already. One that fails says nothing, and the real step is
    compiled when it is taken. After an error in what is done meanwhile it is interrupted.

    Args:
        config: The run's.
        dataset: Its data; what is not decoded stays so.
        world: The processes that share the work.
        build: Makes the model.

    Attributes:
        done: Whether the step is compiled.
    """

    def __init__(
        self, config: RunConfig, dataset: Dataset, world: World, build: Callable[[], nn.Module]
    ) -> None:
        self.done = False
        self._config, self._dataset, self._world, self._build = config, dataset, world, build
        self._pays = _pays(config, dataset, world)
        on_gpu = self._pays and world.device.type == "cuda"
        self._gpu = torch.cuda.current_device() if on_gpu else None  # threads choose for themselves
        self._thread = threading.Thread(target=self._run, name="rehearses", daemon=True)

    def __enter__(self) -> "Rehearsal":
        while _interrupted:  # it has seeded torch's generator
            _interrupted.pop().end()
        if self._pays:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._thread.is_alive():
            return
        try:
            if error is None:
                logger.info(COMPILING)
                self._thread.join()
        finally:
            if self._thread.is_alive():  # after an error, or Ctrl-C just now
                self._interrupt()
                _interrupted.append(self)
                atexit.register(self.end)

    def end(self) -> None:
        """Has it end where it next runs Python; a process that ended before would crash."""
        for _ in range(_REQUESTS):
            self._thread.join(_PAUSE)
            if not self._thread.is_alive():
                return
            self._interrupt()  # again: what the compiler called has swallowed the exception

    def _run(self) -> None:
        with _silently_interrupted():
            with suppress(Exception), ExitStack() as stack:
                wait_for_compiler()
                stack.enter_context(short_turns())
                if self._gpu is not None:
                    stack.enter_context(torch.cuda.device(self._gpu))
                stack.enter_context(torch.random.fork_rng([] if self._gpu is None else [self._gpu]))
                self._rehearse()
                self.done = True
            gc.collect()
            if self._gpu is not None:
                with torch.cuda.device(self._gpu):
                    torch.cuda.empty_cache()

    def _rehearse(self) -> None:
        """Goes forward and backward once, with everything as in the first step but the numbers."""
        world, channels = self._world, self._dataset.channels
        dataset = self._dataset.normalised([0.5] * channels, [0.25] * channels)
        config = limit_batch(self._config, dataset, world, told=False)
        config = replace(config, data=replace(config.data, image_size=dataset.image_size))
        model = self._build()
        config, _ = find_objective(config.loss.objective).settled(config, model, dataset)
        stepper = Stepper(config, make_objective(config, model, dataset, world), world)
        count = config.loop.batch_size
        images = torch.zeros(count, channels, *dataset.image_size, dtype=torch.uint8)
        batch = Batch(images, torch.zeros(count, dtype=torch.int64), torch.arange(count))
        on_device = Batch(*(tensor.to(world.device) for tensor in batch))
        stepper.rehearse(on_device, mixed=config.augment.mixed and config.schedule.mixed > 0)

    def _interrupt(self) -> None:
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_Interrupted))


def _pays(config: RunConfig, dataset: Dataset, world: World) -> bool:
    """Whether there is a step to compile, and meanwhile something to decode."""
    if world.size > 1 or not config.compiles(world.device.type):
        return False
    with suppress(ValueError):  # of several sizes: refused where they are decoded
        return not all(map(dataset.is_decoded, dataset.splits))
    return False


@contextmanager
def _silently_interrupted() -> Iterator[None]:
    """Also in callbacks of weak references, of which compilers have many and Python would tell."""
    usual = sys.unraisablehook

    def tell(unraisable: "sys.UnraisableHookArgs") -> None:
        if unraisable.exc_type is not _Interrupted:
            usual(unraisable)

    sys.unraisablehook = tell
    try:
        with suppress(_Interrupted):
            yield
    finally:
        sys.unraisablehook = usual
