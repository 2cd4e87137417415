"""One thread for all that is heavy, and a short queue in front of it."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from smallvit.server.limits import RefusedError

T = TypeVar("T")

_RETRY = 1


class Desk:
    """Does one job at a time in a thread of its own; who finds the queue full is sent away."""

    def __init__(self, places: int) -> None:
        self._places, self._taken = places, 0
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="smallvit-model")

    async def ask(self, job: Callable[[], T], seconds: float) -> T:
        """What a job gives.

        Raises:
            RefusedError: The queue is full, or the time is over. A job that has not begun by then
                never does; one that has begun cannot be stopped, and keeps its place until its end.
        """
        with self._lock:
            if self._taken >= self._places:
                raise RefusedError(
                    503, "The model has enough to do: try again in a moment.", _RETRY
                )
            self._taken += 1
        future = self._thread.submit(job)
        future.add_done_callback(self._leave)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), max(0.0, seconds))
        except TimeoutError:
            if future.cancel():
                raise RefusedError(
                    503, "The model was busy for too long: try again in a moment.", _RETRY
                ) from None
            if future.done():  # just in time, or it was the job's own error
                return future.result()
            raise RefusedError(
                504, "The model took too long over this image: try a smaller one."
            ) from None

    def _leave(self, _: "Future[Any]") -> None:
        with self._lock:
            self._taken -= 1

    def close(self) -> None:
        """Takes no more jobs; what is running goes on to its end."""
        self._thread.shutdown(wait=False, cancel_futures=True)
