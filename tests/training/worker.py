"""Runs one training or resumes one, as a process of its own that tests may kill.

    python tests/training/worker.py train CONFIG OUT
    python tests/training/worker.py resume OUT
    python tests/training/worker.py smallvit ARGUMENTS

KILL_AT, if set, is `<function>:<number>`: the process kills itself at that call of os.replace, of
os.fsync or of a step, as if the machine had gone down there; `half:<number>` writes half of a file
first, and `stop:<number>` only requests a stop. With SKEW the time is simulated, and processes but
the first have a clock that shows a later time and goes faster. With WITNESS every audit says so,
and files seem to be older than they are.
"""

import logging
import os
import signal
import sys
import time
from pathlib import Path


def arm(kind: str, number: int) -> None:
    """Makes the number-th call of a function the last thing this process does."""
    from smallvit.training.step import Stepper

    calls, synced = [], {}
    owner, name = {
        "step": (Stepper, "__call__"),
        "stop": (Stepper, "__call__"),
        "moved": (os, "replace"),
        "half": (os, "fsync"),
    }.get(kind, (os, kind))
    real = getattr(owner, name)

    def call(*args, **named):
        calls.append(None)
        if kind == "half":
            tear(args[0], synced, cut=len(calls) == number)
        if len(calls) == number and kind in ("moved", "stop"):
            real(*args, **named)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGTERM if kind == "stop" else signal.SIGKILL)
            return None
        return real(*args, **named)

    setattr(owner, name, call)


def tear(file: int, synced: dict[int, int], *, cut: bool) -> None:
    """Cuts off half of what was written since the file was last forced to disk, if `cut`.

    Args:
        synced: Bytes of each file that are on disk, by inode. Of the log of a run that goes on
            that is not known, so its first call cuts nothing.
    """
    about = os.fstat(file)
    log = os.readlink(f"/proc/self/fd/{file}").endswith("log.jsonl")
    before = synced.get(about.st_ino, about.st_size if log else 0)
    if cut:
        os.truncate(file, before + (about.st_size - before) // 2)
    synced[about.st_ino] = about.st_size


def witness() -> None:
    """Reports audits. The cache keeps surveys only of files that were not written just now."""
    import smallvit.data

    real, now = smallvit.data.audit, time.time_ns

    def audit(dataset):
        sys.stdout.write(f"audited by {os.environ.get('RANK')}\n")
        return real(dataset)

    smallvit.data.audit = audit
    time.time_ns = lambda: now() + 10**10


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    if "WITNESS" in os.environ:
        witness()
    if wanted := os.environ.get("KILL_AT"):
        kind, _, number = wanted.partition(":")
        arm(kind, int(number))
    from smallvit.runs.config import RunConfig
    from smallvit.training import resume, train
    from smallvit.training.objective import OBJECTIVES
    from tests.training.makers import Clock

    OBJECTIVES["turning"] = "tests.training.turning:Turning"
    clock = time.monotonic
    if "SKEW" in os.environ:
        clock = Clock(tick=0.02) if os.environ["RANK"] == "0" else Clock(now=1e6, tick=0.06)
    if sys.argv[1] == "smallvit":
        from smallvit.cli import app

        app(sys.argv[2:])
    if sys.argv[1] == "train":
        config = RunConfig.from_yaml(Path(sys.argv[2]).read_text())
        run = train(config, out=sys.argv[3], clock=clock)
    else:
        run = resume(sys.argv[2], clock=clock)
    sys.stdout.write(f"status {run.info['status']}\n")
    if os.environ.get("SKEW") and os.environ["RANK"] == "0":
        sys.stdout.write(f"took {clock.now}\n")


if __name__ == "__main__":
    main()
