"""Loads the compiler while images are decoded: it takes seconds, and its helpers more."""

import importlib
import sys
import threading
from contextlib import suppress

_loading: list[threading.Thread] = []
#: Seconds after which threads take turns while it is loaded. Reading a file lets go of the
#: interpreter for each part, and would wait Python's usual 5 ms to get it back: thousands of times.
_TURN = 1e-4


def _load() -> None:
    """Imports the compiler, and starts the processes in which it compiles."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(_TURN, usual))
    with suppress(Exception):  # whoever compiles will hear of it
        importlib.import_module("torch._dynamo")
        importlib.import_module("torch._inductor.compile_fx")
        helpers = importlib.import_module("torch._inductor.async_compile").AsyncCompile
        helpers.warm_pool()
        helpers.wakeup()
    sys.setswitchinterval(usual)


def load_compiler(needed: bool) -> None:
    """Begins to load it in the background if a run will compile, see `LoopConfig.compiles`."""
    if needed and not _loading:
        # What it shares with the rest must be there before: imports that meet half way fail.
        importlib.import_module("smallvit.training.train")
        _loading.append(threading.Thread(target=_load, name="loads the compiler"))
        _loading[0].start()


def wait_for_compiler() -> None:
    """Returns when it is loaded: two threads that import one package get in each other's way."""
    if _loading:
        _loading[0].join()
