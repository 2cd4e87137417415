"""Several runs of a set at a time on this machine, each in a process of its own.

Workers are started once and train one member after the other. This process alone hands members
out, writes what is known of the set, and says what happens. A worker ends when this process does.
"""

import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from logging.handlers import QueueHandler
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from smallvit.arguments import Positive, checked
from smallvit.config_io import leaf
from smallvit.experiments.engine import try_member
from smallvit.experiments.folder import alone, note_commit, note_end, read_set, unfinished
from smallvit.experiments.sets import Member, Outcome
from smallvit.recipes import RECIPES
from smallvit.runs.changes import BUDGET
from smallvit.training.pace import Interrupt, Stop, stopping

_SECONDS = 0.5  # between two looks at whether a stop was requested
_STOPPED = 130  # exit code of a worker that a signal stopped


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a worker says.

    Attributes:
        record: A line for the log.
        read: Whether other runs now find the data in the cache.
        error: What `try_member` returned, once it did.
    """

    record: logging.LogRecord | None = None
    read: bool = False
    error: str | None = None


def check_jobs(jobs: int, members: Iterable[Member]) -> None:
    """Refuses to train beside each other what has to have the machine to itself.

    Raises:
        ValueError: The runs are given minutes, or a recipe gives them what it measures.
    """
    if jobs > 1 and any(_is_timed(each.changes) for each in members):
        raise ValueError(
            f"--jobs {jobs} does not go with minutes, or with a recipe that measures how many "
            "epochs fit into them: they are comparable only where each run has the machine to "
            "itself; give --epochs, or leave --jobs out"
        )


def _is_timed(changes: Mapping[str, Any]) -> bool:
    """Whether the time decides how long a run trains: that it is given, or the recipe's."""
    if any(leaf(changes, path) is not None for path in BUDGET):
        return leaf(changes, "schedule.minutes") is not None
    recipe = RECIPES.get(leaf(changes, "recipe") or "auto")
    return recipe is not None and recipe.timed


@checked
def conduct_jobs(
    folder: Path,
    jobs: Positive,
    *,
    started: Callable[[Member], None] = lambda member: None,
    ended: Callable[[Outcome], None] = lambda outcome: None,
) -> bool:
    """Trains what is missing of a set, several runs beside each other.

    In a script it is called below `if __name__ == "__main__"`, as all that starts processes.

    Args:
        folder: Of a set that `begin` wrote.
        jobs: How many runs at a time.
        started: Called before a member is trained or goes on.
        ended: Called after it is finished or has failed.

    Returns:
        Whether all members were tried; False where a stop was requested.

    Raises:
        ValueError: Another process works on this set, or its runs are given minutes.
    """
    with alone(folder):
        check_jobs(jobs, read_set(folder).members)
        with stopping() as stop:
            crew = _Crew(folder, jobs, stop, started, ended)
            try:
                while crew.working and not stop.requested:
                    crew.hand_out()
                    crew.listen()
                crew.dismiss()
            except BaseException as error:
                crew.dismiss(at_once=isinstance(error, KeyboardInterrupt))
                raise
            return not crew.waiting


class _Worker:
    """A process that trains, and the member that it has."""

    def __init__(self, folder: Path, jobs: int) -> None:
        context = get_context("spawn")
        self.calls, theirs = context.Pipe()
        level = logging.getLogger("smallvit").getEffectiveLevel()
        self.process = context.Process(
            target=_work, args=(theirs, folder, jobs, level), daemon=True
        )
        with _ignored_interrupts():
            self.process.start()
        theirs.close()
        self.member: Member | None = None


@contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """What is started meanwhile ignores Ctrl-C: this process has it, and tells its workers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Crew:
    """The workers, and the members that none of them has had yet."""

    def __init__(
        self,
        folder: Path,
        jobs: int,
        stop: Stop,
        started: Callable[[Member], None],
        ended: Callable[[Outcome], None],
    ) -> None:
        self.waiting = deque(unfinished(folder))
        self._folder, self._jobs, self._stop = folder, jobs, stop
        self._started, self._ended = started, ended
        self._workers: list[_Worker] = []
        # The first run reads the data alone: the others find it in the cache.
        self._read = False

    @property
    def working(self) -> bool:
        """Whether there is something to train."""
        return bool(self.waiting or self._busy)

    @property
    def _busy(self) -> int:
        return sum(worker.member is not None for worker in self._workers)

    def hand_out(self) -> None:
        """Has as many workers as are needed, and gives each a member."""
        while len(self._workers) < min(self._jobs, self._busy + len(self.waiting)):
            self._workers.append(_Worker(self._folder, self._jobs))
        for worker in self._workers:
            if worker.member or not self.waiting or not (self._read or not self._busy):
                continue
            worker.member = member = self.waiting.popleft()
            note_commit(self._folder, member)
            self._started(member)
            with suppress(OSError):  # it is gone, which is seen where it should answer
                worker.calls.send(member)

    def listen(self) -> None:
        """Takes one message of each worker that has one."""
        ready = wait([worker.calls for worker in self._workers], timeout=_SECONDS)
        for worker in [each for each in self._workers if each.calls in ready]:
            try:
                message = worker.calls.recv()
            except (EOFError, OSError):  # also in the middle of a message
                self._lose(worker)
            else:
                self._take(worker, message)

    def dismiss(self, at_once: bool = False) -> None:
        """Ends all workers; their runs are saved first, unless it has to be at once."""
        for worker in self._workers:
            (worker.process.kill if at_once else worker.process.terminate)()
        self._stop.requested = True
        while self._workers:
            self.listen()

    def _take(self, worker: _Worker, message: Message) -> None:
        if message.record is not None:
            if worker.member is not None:
                message.record.msg = f"{worker.member.name}: {message.record.msg}"
            logging.getLogger(message.record.name).handle(message.record)
        self._read = self._read or message.read
        if message.error is not None:
            self._end(worker, message.error)

    def _lose(self, worker: _Worker) -> None:
        """A worker has ended: where nobody requested that, its run has failed."""
        worker.process.join()
        worker.calls.close()
        self._workers.remove(worker)
        if worker.member is None:
            return
        if self._stop.requested:
            self.waiting.appendleft(worker.member)
        else:
            self._end(worker, _reason(worker.process.exitcode or 0))

    def _end(self, worker: _Worker, error: str) -> None:
        member, worker.member = worker.member, None
        assert member is not None
        self._read = True  # whatever it came to
        self._ended(note_end(self._folder, member, error))


def _reason(code: int) -> str:
    """Why a run failed whose process ended with this exit code."""
    again = "the same command goes on with it"
    if code == _STOPPED:
        return f"its process alone was told to stop; {again}"
    if code >= 0:
        return f"its process ended with exit code {code}; {again}"
    named = {each.value: each.name for each in signal.Signals}
    memory = ", as happens where memory is full: fewer --jobs need less" if code == -9 else ""
    return f"its process was killed by {named.get(-code, f'signal {-code}')}{memory}; {again}"


def _work(calls: "Connection[Any, Any]", folder: Path, jobs: int, level: int) -> None:
    """What a worker does: trains what it is given, and says how that ended."""
    # As Ctrl-C for a single run, where no step is being taken that would be finished first.
    interrupt = Interrupt()  # until a stop was heard: the signal may come twice
    signal.signal(signal.SIGTERM, interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    telling = threading.Lock()

    def tell(message: Message) -> None:
        with telling:
            calls.send(message)

    logging.getLogger().addHandler(_Telling(tell))
    logging.getLogger("smallvit").setLevel(level)
    try:
        command = read_set(folder).command
        while True:
            member = calls.recv()
            place = folder / member.folder
            error = try_member(
                member, place, command, jobs=jobs, read=lambda: tell(Message(read=True))
            )
            if error is None:
                break
            tell(Message(error=error))
    except KeyboardInterrupt:
        interrupt.heard = True
    sys.exit(_STOPPED)


def _end_with_parent() -> None:
    """Ends this process when the one that started it has ended, however that came about."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Telling(QueueHandler):
    """Sends what is logged in a worker to the process that shows it."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        super().__init__(queue=None)  # type: ignore[arg-type]
        self._tell = tell

    def enqueue(self, record: logging.LogRecord) -> None:
        """Sends a record, which is plain text by now."""
        self._tell(Message(record=record))
