"""Servers on free ports, in a thread of the test or as a process, and models that wait."""

import asyncio
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np

from smallvit.inference import Card, Predictor
from smallvit.server import Limits
from smallvit.server.app import make_app
from smallvit.server.running import listen, make_server

PATIENCE = 60
"""Seconds after which something that should have happened is a failure."""


@contextmanager
def served(
    predictor: Predictor, limits: Limits | None = None, buffer: int = 0, **options: Any
) -> Iterator[str]:
    """The address of a server in a thread; `buffer` is what its sockets hold for a client."""
    listener = listen("127.0.0.1", 0)
    if buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    address = "http://{}:{}".format(*listener.getsockname())
    limits = limits or Limits()
    server = make_server(make_app(predictor, limits, **options), limits)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


@contextmanager
def process(*words: object) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """`smallvit serve` as a process, and the words of its log up to its address, the last."""
    with started("-m", "smallvit", "serve", *words, "--port", "0") as (running, log):
        yield running, log


@contextmanager
def started(*words: object) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """A Python process that serves, and the words of its log up to its address, the last."""
    command = [sys.executable, *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            log: list[str] = []
            while not (log and log[-1].startswith("http://")):
                assert running.stderr is not None
                line = running.stderr.readline()
                assert line, " ".join(log)
                log += line.split()
            yield running, log
        finally:
            running.kill()


def until(true: Callable[[], bool]) -> None:
    """Waits for what is about to happen in another process."""
    pause = threading.Event()
    for _ in range(50 * PATIENCE):
        if true():
            return
        pause.wait(1 / 50)
    raise AssertionError("it did not happen")


JPEG = {"Content-Type": "image/jpeg"}


def post(address: str, content: Any) -> httpx.Response:
    return httpx.post(f"{address}/predict", content=content, headers=JPEG, timeout=PATIENCE)


class Gate:
    """A model that predicts when it is told to: its thread waits, and nothing else."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.calls = self.inside = self.most_inside = 0

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        self.calls += 1
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.entered.release()
        assert self.open.wait(PATIENCE)
        self.inside -= 1
        return np.zeros((len(pixels), 2), np.float32)

    @property
    def predictor(self) -> Predictor:
        return Predictor(Card(**CARD), self)


class Clock:
    """Time that passes when a test says so: what a server takes for `asyncio.timeout`."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self._blocks: list[tuple[asyncio.AbstractEventLoop, asyncio.Timeout]] = []

    def __call__(self, seconds: float) -> asyncio.Timeout:
        block = asyncio.timeout(None)
        self._blocks.append((asyncio.get_running_loop(), block))
        self.begun.release()
        return block

    def expire(self) -> None:
        """The time of all requests since the last call is over."""
        while self._blocks:
            loop, block = self._blocks.pop()
            loop.call_soon_threadsafe(block.reschedule, 0)


CARD: dict = {
    "classes": ("ash", "elm"),
    "image_size": (8, 8),
    "channels": 3,
    "fit": "letterbox",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.2, 0.2, 0.2),
    "model": {"name": "gate"},
}


def metrics_of(address: str) -> dict[str, float]:
    """Samples by name and labels; every line is one the format knows."""
    # A machine that is too busy may miss a short limit of time; asking again is what it is told.
    answers = (httpx.get(f"{address}/metrics", timeout=PATIENCE) for _ in range(20))
    response = next(each for each in answers if each.status_code not in (408, 503))
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples: dict[str, float] = {}
    typed = set()
    for line in response.text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert kind in ("counter", "gauge", "histogram")
            assert name not in typed
            typed.add(name)
        elif not line.startswith("# HELP "):
            sample, _, value = line.rpartition(" ")
            assert sample not in samples
            base = sample.partition("{")[0]
            suffixes = ("", "_bucket", "_sum", "_count")
            assert any(base.removesuffix(end) in typed for end in suffixes), line
            samples[sample] = float(value)
    return samples


def refused(response: httpx.Response, status: int, words: str) -> None:
    """Every refusal is an object with one sentence."""
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert re.search(words, body["error"]), body
    assert body["error"][0].isupper() or body["error"].startswith(("top", "explain"))
    assert body["error"].endswith(".")
