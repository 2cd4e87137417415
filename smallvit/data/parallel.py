"""A function applied to many items in threads, in order, with a progress bar."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_CHUNK = 16
_AHEAD = 4


def cores() -> int:
    """How many cores this process may use."""
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

    Only a few chunks are in flight at a time, so memory does not grow with the number of items.

    Args:
        function: Should release the interpreter's lock while it works, as decoders do.
        items: What it is applied to; an iterator advances as results are consumed.
        description: The text beside the bar.
        progress: Whether to show the bar.
        size: Items per chunk that a thread works on.
    """
    workers = cores()
    pool = ThreadPoolExecutor(workers)
    pending: deque[Future[list[R]]] = deque()
    total = len(items) if isinstance(items, Sized) else None
    remaining = iter(items)
    try:
        with _bar(description, total) if progress else nullcontext(iter) as advance:
            while chunk := list(islice(remaining, size)):
                pending.append(pool.submit(list, map(function, chunk)))
                if len(pending) >= _AHEAD * workers:
                    yield from advance(pending.popleft().result())
            while pending:
                yield from advance(pending.popleft().result())
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _bar(description: str, total: int | None) -> Iterator[Callable[[list[R]], Iterator[R]]]:
    """Yields a function that gives out the results it is given and counts them."""
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

    # All of it fits into 80 columns.
    columns = TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), Rate()
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total)

        def advance(results: list[R]) -> Iterator[R]:
            progress.advance(task, len(results))
            return iter(results)

        yield advance
