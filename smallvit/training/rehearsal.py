"""Compiles a run's step while its images are decoded: a rehearsal with a model to throw away.

What the compiler makes of a step depends on the shapes and the config, and not on weights, pixels
or statistics. So a model of the same build and made-up images have the real step find all of its
programs in memory.
"""

import atexit
import ctypes
import gc
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
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

#: The last one that was begun. One that was interrupted may still be in the compiler.
_begun: list[threading.Thread] = []
#: How often, and every how many seconds, a thread is asked to end before the process does.
_REQUESTS, _PAUSE = 100, 0.1


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
        on_gpu = world.device.type == "cuda"
        self._gpu = torch.cuda.current_device() if on_gpu else None  # threads choose for themselves
        self._thread = threading.Thread(target=self._run, name="rehearses", daemon=True)

    def __enter__(self) -> "Rehearsal":
        for earlier in _begun:  # both would seed torch's generator
            earlier.join()
        _begun.clear()
        if self._pays():
            _begun.append(self._thread)
            atexit.register(self._interrupt, _REQUESTS)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._interrupt()
            return
        if self._thread.is_alive():
            logger.info(COMPILING)
            try:
                self._thread.join()
            except BaseException:  # a second thought: Ctrl-C
                self._interrupt()
                raise
        atexit.unregister(self._interrupt)

    def _pays(self) -> bool:
        if self._world.size > 1 or not self._config.compiles(self._world.device.type):
            return False
        with suppress(ValueError):  # of several sizes: refused where they are decoded
            return not all(map(self._dataset.is_decoded, self._dataset.splits))
        return False

    def _run(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(suppress(Exception))
            wait_for_compiler()
            stack.enter_context(short_turns())
            if self._gpu is not None:
                stack.enter_context(torch.cuda.device(self._gpu))
            devices = [] if self._gpu is None else [self._gpu]
            stack.enter_context(torch.random.fork_rng(devices))
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

    def _interrupt(self, requests: int = 1) -> None:
        """Has the thread end where it next runs Python; a process that ended before would crash.

        Args:
            requests: How often to ask: what the compiler calls may swallow the exception.
        """
        for _ in range(requests):
            if not self._thread.is_alive():
                return
            thread = ctypes.c_ulong(self._thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))
            if requests > 1:
                self._thread.join(_PAUSE)
