"""The command line: thin; it parses, calls and prints. A file a group of commands."""

import os
from collections.abc import MutableMapping

# Each module adds its commands to the application, in this order.
from smallvit.cli import (  # noqa: F401  # isort: skip
    training,
    pretraining,
    data,
    evaluating,
    reporting,
    experiments,
    explaining,
    predicting,
    exporting,
    serving,
    watching,
    models,
    info,
)
from smallvit.cli.app import app, refusal
from smallvit.cli.terminal import adapt_streams

__all__ = ["app", "main", "wait_briefly"]


#: GNU's OpenMP spins this often before a thread sleeps (300,000 times by default), LLVM's for a
#: millisecond (200). Shorter, and idle cores lose more than they gain: docs/experiments.md.
_WAITING = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Has OpenMP's idle threads sleep soon, unless the user has said how they shall wait.

    Threads that spin take the core from the thread they wait for: beside one busy process a step
    of training took twenty times as long. Libraries read this when they are loaded.
    """
    if not environment.keys() & {*_WAITING, "OMP_WAIT_POLICY"}:
        environment.update(_WAITING)


def main() -> None:
    """Runs the command line; what the user got wrong is a sentence, not a traceback."""
    wait_briefly(os.environ)
    adapt_streams()
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(refusal(str(error)).exit_code) from error
