"""Runs one training or resumes one, as a process of its own that tests may kill.

    python tests/training/worker.py train CONFIG OUT
    python tests/training/worker.py resume OUT

KILL_AT, if set, is `<function>:<number>`: the process kills itself at that call of os.replace, or
of os.fsync, as if the machine had gone down there; `half:<number>` writes half of a file first.
With SKEW, processes but the first have a clock that shows a later time and goes faster.
"""

import logging
import os
import signal
import sys
import time
from pathlib import Path


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kind: str, number: int) -> None:
    """Makes the number-th call of a function the last thing this process does."""
    counted = [0]
    name = "replace" if kind == "moved" else "fsync" if kind == "half" else kind
    real = getattr(os, name)

    def call(*args: object) -> object:
        counted[0] += 1
        if counted[0] != number:
            return real(*args)
        if kind == "half":
            size = os.fstat(args[0]).st_size
            os.truncate(args[0], size // 2)
        if kind == "moved":
            real(*args)
        _die()
        return None

    setattr(os, name, call)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    if wanted := os.environ.get("KILL_AT"):
        kind, _, number = wanted.partition(":")
        arm(kind, int(number))
    if os.environ.get("SKEW") and os.environ.get("RANK") != "0":
        real = time.monotonic
        time.monotonic = lambda: 1e6 + 3 * real()
    from smallvit.runs.config import RunConfig
    from smallvit.training import resume, train

    if sys.argv[1] == "train":
        config = RunConfig.from_yaml(Path(sys.argv[2]).read_text())
        run = train(config, out=sys.argv[3])
    else:
        run = resume(sys.argv[2])
    sys.stdout.write(f"status {run.info['status']}\n")


if __name__ == "__main__":
    main()
