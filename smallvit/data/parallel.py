"""Many small jobs on all cores, in order, with a bar that shows the rate."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_CHUNK = 16
_AHEAD = 4


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spread(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    description: str,
    progress: bool = False,
    size: int = _CHUNK,
) -> Iterator[R]:
    """Applies a function in threads and yields the results in order.

    Only a few chunks are under way at a time, so results that are consumed at once take no memory
    however many items there are.

    Args:
        function: Spends its time where the interpreter's lock is released, as decoders do.
        items: What it is applied to; an iterator is drawn from as results are consumed.
        description: What the bar is called.
        progress: Whether to show the bar.
        size: Items that a thread takes at once.
    """

    def chunk(some: list[T]) -> list[R]:
        return [function(item) for item in some]

    workers = cores()
    pool = ThreadPoolExecutor(workers)
    pending: deque[Future[list[R]]] = deque()
    total = len(items) if isinstance(items, Sized) else None
    drawn = iter(items)
    try:
        with _bar(description, total, progress) as advance:
            while some := list(islice(drawn, size)):
                pending.append(pool.submit(chunk, some))
                if len(pending) >= _AHEAD * workers:
                    yield from advance(pending.popleft().result())
            while pending:
                yield from advance(pending.popleft().result())
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _bar(
    description: str, total: int | None, shown: bool
) -> Iterator[Callable[[list[R]], list[R]]]:
    """Yields a function that lets results pass and counts them."""
    if not shown:
        yield lambda results: results
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            seconds = task.finished_time or task.elapsed
            return Text(f"{task.completed / seconds:,.0f} images/s" if seconds else "")

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate()
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total)

        def advance(results: list[R]) -> list[R]:
            progress.advance(task, len(results))
            return results

        yield advance
