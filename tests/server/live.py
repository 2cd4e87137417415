"""Servers on free ports: in a thread of the test, or as a process of their own."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import numpy as np

from smallvit.inference import Card, Predictor
from smallvit.server.limits import Limits
from smallvit.server.running import listen, make_server


@contextmanager
def served(predictor: Predictor, limits: Limits | None = None) -> Iterator[str]:
    """The address of a server in a thread."""
    listener = listen("127.0.0.1", 0)
    address = "http://{}:{}".format(*listener.getsockname())
    server = make_server(predictor, limits or Limits())
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        until(lambda: server.started)
        yield address
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def process(*words: object) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """`smallvit serve` as a process, and the words of its log up to its address, the last."""
    with started("-m", "smallvit", "serve", *words, "--port", "0") as (running, said):
        yield running, said


@contextmanager
def started(*words: object) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """A Python process that serves, and the words of its log up to its address, the last."""
    command = [sys.executable, *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            said: list[str] = []
            while not (said and said[-1].startswith("http://")):
                assert running.stderr is not None
                line = running.stderr.readline()
                assert line, " ".join(said)
                said += line.split()
            yield running, said
        finally:
            running.kill()


def until(true, seconds: float = 20.0) -> None:
    """Waits for what is about to happen."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


JPEG = {"Content-Type": "image/jpeg"}


class Gate:
    """A model that answers when it is told to: its thread waits, and nothing else."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked = 0
        self.at_once = self.most = 0

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        self.asked += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        assert self.open.wait(20)
        self.at_once -= 1
        return np.zeros((len(pixels), 2), np.float32)

    @property
    def predictor(self) -> Predictor:
        return Predictor(Card(**CARD), self)


CARD: dict = {
    "classes": ("ash", "elm"),
    "image_size": (8, 8),
    "channels": 3,
    "fit": "letterbox",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.2, 0.2, 0.2),
    "model": {"name": "gate"},
}


def metrics_of(text: str) -> dict[str, float]:
    """Samples by name and labels; every line is one the format knows."""
    found: dict[str, float] = {}
    typed = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert kind in ("counter", "gauge", "histogram")
            assert name not in typed
            typed.add(name)
        elif not line.startswith("# HELP "):
            sample, _, value = line.rpartition(" ")
            assert sample not in found
            base = sample.partition("{")[0]
            suffixes = ("", "_bucket", "_sum", "_count")
            assert any(base.removesuffix(end) in typed for end in suffixes), line
            found[sample] = float(value)
    return found


def refused(response: httpx.Response, status: int, words: str) -> None:
    """Every refusal is an object with one sentence."""
    assert response.status_code == status, response.text
    answer = response.json()
    assert list(answer) == ["error"]
    assert re.search(words, answer["error"]), answer
    assert answer["error"][0].isupper() or answer["error"].startswith(("top", "explain"))
    assert answer["error"].endswith(".")
