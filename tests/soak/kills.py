"""Kills at random moments of training, folds, fine-tuning and two processes.

Each training is a process of its own, forked from this one, which spares it the imports. It is
killed at a random moment of the clock, or at a random call of what writes files or takes a step;
then another process goes on, up to four times, and the last one comes to the end. Every file must
be the one of the run that nobody disturbed.
"""

import logging
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run
from smallvit.runs.places import FINAL
from smallvit.training import resume, train
from smallvit.training.folds import FOLDS, config_of_folds, resume_folds, train_folds
from tests.soak.result import Result
from tests.training.makers import RANDOM, arrays, assert_same_run, tiny
from tests.training.worker import arm

PATIENCE = 60
"""Seconds in which a process must end: when another of its training has died, or by itself."""

STEPS = 24
_OFTEN = (*RANDOM, "optim.ema=0.9", "loop.every=3", "loop.checkpoint_seconds=0")


class Kind(NamedTuple):
    """A way of training."""

    config: RunConfig
    processes: int = 1

    @property
    def folds(self) -> int:
        return self.config.data.folds

    def work(self, out: Path) -> None:
        """Begins, or goes on with what is there, as a person would who sees that it was killed."""
        if self.folds:
            if config_of_folds(out) is not None:
                resume_folds(out, shown=False)
            else:
                train_folds(self.config, out=out, shown=False)
        elif (out / "run.json").exists():
            resume(out, shown=False)
        else:
            train(self.config, out=out, shown=False)

    def finished(self, out: Path) -> bool:
        last = out / FINAL if self.folds else out
        return (last / "run.json").exists() and Run.open(last).finished

    def finish(self, out: Path, log: Path) -> None:
        """Comes to the end, and removes what a process left that was killed right after it."""
        if self.finished(out):
            codes, _ = end(begin(self, out, log, {}))
            said = log.read_text()
            assert set(codes) == {0 if self.folds else 1}, (codes, said)
            assert self.folds or "is finished" in said, said
        else:
            finish(self, out, log)

    def compare(self, out: Path, whole: Path) -> None:
        """Refuses a run that is not the whole one to the last bit."""
        folds = [f"fold-{fold}" for fold in range(self.folds)]
        for name in [*folds, FINAL] if folds else ["."]:
            assert_same_run(out / name, whole / name)
            left = sorted((out / name).glob("checkpoints/*"))
            assert not left, f"left behind: {left}"
        if self.folds:
            text = (out / FOLDS).read_text().replace(str(out), str(whole))
            assert text == (whole / FOLDS).read_text(), "another summary"


def make_kinds(folder: Path) -> dict[str, Kind]:
    """Small trainings of every kind; two processes have no dropout of their own."""
    source, still = arrays(folder / "noise.npz"), ("model.options.attn_dropout=0.0",)
    first = folder / "pre"
    finish(Kind(tiny(source, steps=2)), first, folder / "pre.log")
    tuned = (f"model.pretrained={first}", "model.frozen=1", "optim.layer_decay=0.7")
    return {
        "train": Kind(tiny(source, *_OFTEN, steps=STEPS)),
        "folds": Kind(tiny(source, *_OFTEN, "data.folds=3", steps=STEPS // 2)),
        "fine-tuning": Kind(tiny(source, *_OFTEN, *tuned, steps=STEPS)),
        "two processes": Kind(tiny(source, *_OFTEN, *still, steps=STEPS), 2),
    }


def begin(kind: Kind, out: Path, log: Path, kill: dict[int, str]) -> list[int]:
    """Forks the processes of a training; `kill` has the rank and the moment of those that die."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(kind.processes):
        if (child := os.fork()) == 0:
            try:
                _be_a_process(kind, out, log, rank, port, kill.get(rank, ""))
            finally:
                os._exit(3)  # nothing of the parent's may run here
        children.append(child)
    return children


def _be_a_process(kind: Kind, out: Path, log: Path, rank: int, port: int, moment: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    logging.disable(logging.NOTSET)
    logging.basicConfig(level=logging.WARNING, stream=sys.__stderr__, force=True)
    if kind.processes > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
        os.environ |= {"WORLD_SIZE": str(kind.processes), "MASTER_ADDR": "127.0.0.1"}
    where, _, number = moment.partition(":")
    if number:
        arm(where, int(number))
    code = 0
    try:
        kind.work(out)
    except (ValueError, OSError) as error:
        os.write(1, f"refused: {error}\n".encode())
        code = 1
    except BaseException:
        os.write(1, traceback.format_exc().encode())
        code = 2
    os._exit(code)


@contextmanager
def alarm(children: list[int], after: float | None) -> Iterator[None]:
    """Kills processes after some seconds."""
    timer = threading.Timer(after or 0.0, lambda: [os.kill(c, signal.SIGKILL) for c in children])
    if after is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if after is not None:
            timer.join()


def end(children: list[int], limit: float = PATIENCE) -> tuple[list[int], float]:
    """Exit codes of the processes, and the seconds between the first end and the last."""
    codes: dict[int, int] = {}
    first, began = None, time.monotonic()
    while len(codes) < len(children):
        for child in children:
            if child not in codes:
                found, status = os.waitpid(child, os.WNOHANG)
                if found:
                    codes[child] = os.waitstatus_to_exitcode(status)
                    first = first or time.monotonic()
        now = time.monotonic()
        if (first and now - first > limit) or now - began > 5 * limit:
            for child in set(children) - codes.keys():
                os.kill(child, signal.SIGKILL)
                codes[child] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) - 1000
        time.sleep(0.005)
    return [codes[child] for child in children], time.monotonic() - (first or began)


def finish(kind: Kind, out: Path, log: Path) -> float:
    """Trains to the end; returns the seconds it took."""
    began = time.monotonic()
    codes, _ = end(begin(kind, out, log, {}))
    assert codes == [0] * kind.processes, (codes, log.read_text()[-2000:])
    return time.monotonic() - began


def soak_kills(count: int, folder: Path, seed: int = 0) -> Result:
    """Kills until there were that many, over all kinds in turn."""
    draw, result = random.Random(seed), Result()
    kinds = make_kinds(folder)
    seconds = {name: finish(k, folder / name, folder / "log") for name, k in kinds.items()}
    kills, runs, slowest = dict.fromkeys(kinds, 0), 0, 0.0
    while result.tried < count:
        name = min(kinds, key=lambda each: kills[each])
        kind, place = kinds[name], folder / "killed"
        place.mkdir()
        out, log = place / "run", place / "log"
        for _ in range(4):
            if result.tried == count or kind.finished(out):
                break
            dies = draw.choice([[0], [1], [0, 1]]) if kind.processes > 1 else [0]
            where = draw.choice(["clock", "step", "fsync", "replace", "moved", "half"])
            moment = f"{where}:{draw.randint(1, STEPS)}"
            late = draw.uniform(0, 1.2 * seconds[name]) if where == "clock" else None
            children = begin(
                kind, out, log, {} if late is not None else dict.fromkeys(dies, moment)
            )
            with alarm([children[rank] for rank in dies], late):
                codes, between = end(children)
            killed = -signal.SIGKILL in codes
            kills[name] += killed
            result.tried += killed
            started = kind.processes == 1 or (out / "run.json").exists()
            if killed and started:
                slowest = max(slowest, between)
            fine = (0, 1, -signal.SIGKILL) if killed else (0,)
            result.expect(
                all(code in fine for code in codes) or not started,
                f"{name}, killed at {moment}: exit codes {codes}: {log.read_text()[-1500:]}",
            )
        runs += 1
        try:
            kind.finish(out, log)
            kind.compare(out, folder / name)
        except (AssertionError, ValueError, OSError) as error:
            result.broken.append(f"{name}: {error!r:.600}: {log.read_text()[-1500:]}")
        result.expect("Traceback" not in log.read_text(), f"{name}: {log.read_text()[-3000:]}")
        shutil.rmtree(place)
    shares = ", ".join(f"{number} {name}" for name, number in kills.items())
    result.note = f"{shares}; {runs} runs; the other process ended within {slowest:.1f} s"
    return result
