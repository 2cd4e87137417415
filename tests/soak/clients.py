"""Many clients at once, some of which send slowly, read slowly, or never read at all."""

import random
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.runs.test_fuzz import GOLDEN
from tests.server.live import process
from tests.soak.images import image_seeds, mutated_image
from tests.soak.result import Result, is_flat, memory_of

CLIENTS = 32
SECONDS = 10
"""What the server gives a request, and a client to take its answer."""

_PAGE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_ONE_PAGE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
_HEAD = (
    b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: 9000"
    b"\r\n\r\nbeginning"
)


def soak_requests(count: int, folder: Path) -> Result:
    """A place for every client at the model: no answer may be a 5xx."""
    return _soak(count, "--queue", CLIENTS)


def soak_overload(count: int, folder: Path) -> Result:
    """Four places for 32 clients: busy is 503 with Retry-After, and nothing else may be a 5xx."""
    return _soak(count, "--queue", 4, busy=True)


def _soak(count: int, *options: object, busy: bool = False) -> Result:
    crowd, result = Crowd(count), Result()
    with process(GOLDEN, "--device", "cpu", "--seconds", SECONDS, *options) as (running, log):
        errors = _drained(running)
        crowd.run(min(count, 10 * CLIENTS), log[-1])  # so that the first measurement is a warm one
        megabytes = [memory_of(running.pid)]
        for _ in range(2):
            crowd.run(count // 2, log[-1])
            megabytes.append(memory_of(running.pid))
        running.terminate()
        code = running.wait(SECONDS + 20)
    answers = crowd.answers
    result.tried = sum(answers.values())
    allowed = {503} if busy else set()
    for answer, number in answers.items():
        bad = not isinstance(answer, int) or (answer >= 500 and answer not in allowed)
        result.expect(not bad, f"{number} times {answer}")
    for wanted in (200, "slow senders", "slow readers", "never read: cut off", "never sent: 408"):
        known = answers if wanted == 200 else crowd.others
        result.expect(known[wanted], f"there was no {wanted}")
    result.expect(not crowd.wrong, f"wrong answers: {crowd.wrong[:3]}")
    result.expect(code == 0, f"the server ended with {code}")
    said = "".join(errors)
    result.expect("Traceback" not in said, said[:3000])
    result.expect(is_flat(megabytes), f"memory {megabytes}")
    codes = ", ".join(f"{number:,} × {code}" for code, number in sorted(answers.items(), key=str))
    others = ", ".join(f"{number:,} {name}" for name, number in sorted(crowd.others.items()))
    shown = " → ".join(f"{each:.0f}" for each in megabytes)
    result.note = f"{codes}; {others}; memory {shown} MB"
    return result


def _drained(running: "subprocess.Popen[str]") -> list[str]:
    """What the server will have said; a full pipe would hold it up."""
    said: list[str] = []
    assert running.stderr is not None
    threading.Thread(target=lambda: said.extend(running.stderr or ()), daemon=True).start()
    return said


class Crowd:
    """The clients: most ask as fast as they can, each eighth is slow in a way of its own."""

    def __init__(self, seed: int) -> None:
        self.seed, self.seeds = seed, image_seeds()
        self.answers: Counter[int | str] = Counter()
        self.others: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.expected: dict[int, Any] = {}
        self.lock = threading.Lock()

    def run(self, count: int, address: str) -> None:
        """About that many requests from all clients together, and some that are not counted."""
        self.seed += 1
        left = iter(range(count))
        done = threading.Event()
        ways: dict[int, Callable[[str, Callable[[], bool]], None]] = {
            0: self._reads_slowly,
            1: self._never_reads,
            2: self._never_sends,
        }

        def taken() -> bool:
            with self.lock:
                return next(left, None) is None

        def client(number: int) -> None:
            if number in ways:
                ways[number](address, done.is_set)
            else:
                self._asks(address, number, taken)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads[len(ways) :]:
            thread.join()
        done.set()
        for thread in threads:
            thread.join()

    def _asks(self, address: str, number: int, taken: Callable[[], bool]) -> None:
        """Good images whose answer is known, and mutated ones; each eighth client sends slowly."""
        draw = random.Random(f"{self.seed} {number}")
        slow = number % 8 == 3
        with httpx.Client(timeout=60, headers={"content-type": "image/any"}) as client:
            while not taken():
                index = draw.randrange(len(self.seeds)) if draw.random() < 0.5 else None
                data = mutated_image(draw, self.seeds) if index is None else self.seeds[index]
                body = _slowly(data) if slow else data
                try:
                    response = client.post(f"{address}/predict", content=body)
                except httpx.HTTPError as error:
                    self._count(type(error).__name__)
                    continue
                self._count(response.status_code)
                if slow:
                    self._count_other("slow senders")
                if response.status_code == 503:
                    if not response.headers.get("retry-after"):
                        self.wrong.append("503 without Retry-After")
                    time.sleep(0.05)
                elif index is not None:
                    self._compare(index, response.json())

    def _compare(self, index: int, answer: dict[str, Any]) -> None:
        """One image, one answer, whoever asks and when; only the time it took differs."""
        found = answer.get("classes") or answer
        with self.lock:
            if self.expected.setdefault(index, found) != found:
                self.wrong.append(f"{self.expected[index]} and {found}")

    def _count(self, answer: int | str) -> None:
        with self.lock:
            self.answers[answer] += 1

    def _count_other(self, name: str) -> None:
        with self.lock:
            self.others[name] += 1

    def _reads_slowly(self, address: str, done: Callable[[], bool]) -> None:
        """A hundred bytes at a time, and gets all of the page."""
        expected = httpx.get(address).content
        while not done():
            with _connected(address, _ONE_PAGE) as client:
                parts = []
                while part := client.recv(100):
                    parts.append(part)
                    time.sleep(0.001)
            head, _, body = b"".join(parts).partition(b"\r\n\r\n")
            self._count(int(head.split(b" ")[1]))
            self._count_other("slow readers")
            if body != expected:
                self.wrong.append(f"a slow reader got {len(body)} of {len(expected)} bytes")

    def _never_reads(self, address: str, done: Callable[[], bool]) -> None:
        """Asks for many pages and reads none: the server must cut it off in time."""
        while True:
            with _connected(address, b"") as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                began = time.monotonic()
                cut = False
                while not cut and time.monotonic() - began < 4 * SECONDS:
                    try:
                        client.settimeout(1)
                        client.sendall(40 * _PAGE)
                        time.sleep(0.05)
                    except TimeoutError:
                        continue
                    except OSError:
                        cut = True
            self._count_other("never read: cut off" if cut else "never read: still there")
            if not cut:
                self.wrong.append("a client that does not read was not cut off")
            if done():
                return

    def _never_sends(self, address: str, done: Callable[[], bool]) -> None:
        """Announces an upload and sends none of it: 408, in time."""
        while True:
            with _connected(address, _HEAD) as client:
                client.settimeout(4 * SECONDS)
                try:
                    status = client.recv(65_536).split(b" ")[1:2]
                except OSError:
                    status = []
            self._count_other("never sent: 408" if status == [b"408"] else f"never sent: {status}")
            if status not in ([b"408"], [b"503"]):
                self.wrong.append(f"an upload that never came was answered by {status}")
            if done():
                return


def _connected(address: str, text: bytes) -> socket.socket:
    host, _, port = address.removeprefix("http://").partition(":")
    client = socket.create_connection((host, int(port)), 60)
    client.sendall(text)
    return client


def _slowly(data: bytes) -> Iterator[bytes]:
    for first in range(0, len(data), 400):
        time.sleep(0.02)
        yield data[first : first + 400]
