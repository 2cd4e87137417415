"""What one request may cost, and the short queue in front of the model."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from smallvit.arguments import AboveZero, Positive, check_fields
from smallvit.data.images import MAX_PIXELS

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may cost.

    Attributes:
        upload: Bytes of an image file.
        pixels: Pixels of an image. They are read from its header, before it is decoded.
        queue: Images at the model, the one it is working on included.
        requests: Predictions at once, those still being uploaded included. Together with `upload`
            it bounds the memory that uploads take.
        seconds: From the head of a request to its response, and again for the client to take it.
        head_seconds: For which an open connection may send no complete request head; it is closed
            after at most twice this time.
    """

    upload: Positive = 10_000_000
    pixels: Positive = 50_000_000
    queue: Positive = 16
    requests: Positive = 64
    seconds: AboveZero = 30.0
    head_seconds: AboveZero = 10.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.pixels > MAX_PIXELS:
            raise ValueError(f"pixels is {self.pixels:,}: allowed are at most {MAX_PIXELS:,}")


class RefusedError(Exception):
    """A request that gets no prediction.

    Attributes:
        status: The status code of the response.
        sentence: What was expected, what came, what to do.
        retry: Seconds after which to try again; None if that would not help.
    """

    def __init__(self, status: int, sentence: str, retry: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry = status, sentence, retry


class ModelQueue:
    """Runs one job at a time in a thread of its own, and refuses more than a few waiting jobs."""

    def __init__(self, size: int) -> None:
        self._free = threading.Semaphore(size)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="smallvit-model")

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Queues a job.

        A job that has begun cannot be stopped: it counts against the size until its end.

        Raises:
            RefusedError: The queue is full.
        """
        if not self._free.acquire(blocking=False):
            raise RefusedError(503, "The model has enough to do: try again in a moment.", 1)
        future = self._thread.submit(job)
        future.add_done_callback(lambda _: self._free.release())
        return future

    def close(self) -> None:
        """Takes no more jobs and drops the waiting ones; a running job goes on to its end."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def timed_out(job: "Future[Any] | None", seconds: float) -> RefusedError:
    """Why a request took too long; a job that still waits for the model is cancelled.

    Args:
        job: The request's job for the model; None while the image is still being uploaded.
        seconds: What the request was given.
    """
    if job is None:
        return RefusedError(408, f"The upload took longer than {seconds:g} seconds.")
    if job.cancel():
        return RefusedError(503, "The model was busy for too long: try again in a moment.", 1)
    return RefusedError(504, "The model took too long over this image: try a smaller one.")


def megabytes(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / 1e6:,.3g} MB" if count >= 1e5 else f"{count:,} bytes"
