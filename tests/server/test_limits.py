"""Too many, too slow, too long: who waits, who is refused, and what goes on."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import httpx
import numpy as np
import pytest

from smallvit.inference import Predictor
from smallvit.server import Limits
from tests.server.live import JPEG, PATIENCE, Clock, Gate, metrics_of, post, refused, served
from tests.untrained import photo_bytes

DATA = photo_bytes(1)


def connect(address: str, text: bytes = b"") -> socket.socket:
    host, _, port = address.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE)
    connection.sendall(text)
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def first_of(futures: "list[Future[httpx.Response]]") -> httpx.Response:
    """The only response that comes while the model is held up; it leaves the list."""
    done, _ = wait(futures, PATIENCE, FIRST_COMPLETED)
    (first,) = done
    futures.remove(first)
    return first.result()


def test_a_full_queue_refuses_and_the_rest_goes_on() -> None:
    gate = Gate()
    limits = Limits(queue=3, requests=4)
    with served(gate.predictor, limits) as address, ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(post, address, DATA) for _ in range(4)]
        response = first_of(waiting)
        refused(response, 503, "model has enough to do")
        assert response.headers["Retry-After"] == "1"
        # The event loop is free while the model works.
        assert httpx.get(f"{address}/healthz", timeout=PATIENCE).status_code == 200
        assert metrics_of(address)["smallvit_requests_in_flight"] == 4  # 3 and the one that asks
        gate.open.set()
        assert [each.result().status_code for each in waiting] == [200] * 3
        assert post(address, DATA).status_code == 200
    assert gate.most_inside == 1


def test_slow_uploads_take_no_place_in_the_queue_and_are_cut_off() -> None:
    gate, clock, go_on = Gate(), Clock(), threading.Event()
    gate.open.set()

    def slowly() -> Iterator[bytes]:
        yield DATA[:100]
        assert go_on.wait(PATIENCE)
        yield DATA[100:]

    limits = Limits(requests=2, queue=1, seconds=1.5)
    with (
        served(gate.predictor, limits, timeout=clock) as address,
        ThreadPoolExecutor(1) as threads,
    ):
        head = "POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: "
        late = threads.submit(post, address, slowly())
        with connect(address, f"{head}{len(DATA)}\r\n\r\n".encode() + DATA[:500]) as never:
            assert clock.begun.acquire(timeout=PATIENCE)
            assert clock.begun.acquire(timeout=PATIENCE)
            refused(post(address, DATA), 503, "server has enough to do")
            clock.expire()
            go_on.set()
            refused(late.result(), 408, "longer than 1.5 seconds")
            response = read_to_end(never)
        assert response.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in response.lower()
        assert metrics_of(address)['smallvit_requests_total{path="/predict",status="408"}'] == 2
        assert post(address, DATA).status_code == 200
    assert gate.calls == 1


def test_a_model_that_takes_too_long() -> None:
    gate, clock = Gate(), Clock()
    with (
        served(gate.predictor, Limits(queue=2), timeout=clock) as address,
        ThreadPoolExecutor(3) as threads,
    ):
        at_model = threads.submit(post, address, DATA)
        assert gate.entered.acquire(timeout=PATIENCE)
        queued = [threads.submit(post, address, DATA) for _ in range(2)]
        refused(first_of(queued), 503, "enough to do")  # so the other one is in the queue
        clock.expire()
        refused(at_model.result(), 504, "took too long")
        response = queued[0].result()
        refused(response, 503, "busy for too long")
        assert response.headers["Retry-After"] == "1"
        # What waited has left the queue; what the model works on keeps its place.
        following = threads.submit(post, address, DATA)
        gate.open.set()
        assert following.result().status_code == 200
    assert gate.calls == 2


def test_silent_connections_are_closed_and_busy_ones_are_not() -> None:
    gate = Gate()
    health = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    limits = Limits(head_seconds=1.0)
    with served(gate.predictor, limits) as address, ThreadPoolExecutor(1) as threads:
        busy = threads.submit(post, address, DATA)
        assert gate.entered.acquire(timeout=PATIENCE)
        texts = (b"", b"GET /healthz HT", health + b"GET /healthz HT")
        connections = [connect(address, text) for text in texts]
        responses = [read_to_end(connection) for connection in connections]
        for connection in connections:
            connection.close()
        assert responses[:2] == [b"", b""]
        assert responses[2].startswith(b"HTTP/1.1 200")
        assert responses[2].count(b"HTTP/1.1") == 1
        # Its connection was open before those, so its time would have been over before theirs.
        assert not busy.done()
        gate.open.set()
        assert busy.result().status_code == 200


def test_a_model_that_fails_is_the_servers_fault(caplog: pytest.LogCaptureFixture) -> None:
    def ask(pixels: np.ndarray) -> np.ndarray:
        return np.full((1, 2), np.nan, np.float32)

    with served(Predictor(Gate().predictor.card, ask)) as address:
        refused(post(address, DATA), 500, "its log says why")
    assert "a request failed" in caplog.text


def test_a_timeout_of_the_model_itself_is_the_servers_fault() -> None:
    def ask(pixels: np.ndarray) -> np.ndarray:
        raise TimeoutError("the disk is asleep")

    with served(Predictor(Gate().predictor.card, ask)) as address:
        refused(post(address, DATA), 500, "its log says why")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"upload": 0}, "upload is 0: allowed is 1 or more"),
        ({"pixels": 10**9}, "pixels is 1,000,000,000: allowed are at most"),
        ({"queue": 0}, "queue is 0"),
        ({"requests": -1}, "requests is -1"),
        ({"seconds": 0}, "seconds is 0"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"head_seconds": float("inf")}, "head_seconds is inf"),
    ],
)
def test_limits_that_make_no_sense(wrong: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Limits(**wrong)


def test_two_servers_count_for_themselves() -> None:
    gate = Gate()
    gate.open.set()
    with served(gate.predictor) as one, served(gate.predictor) as other:
        assert httpx.post(f"{one}/predict", content=DATA, headers=JPEG).status_code == 200
        assert metrics_of(one)["smallvit_images_total"] == 1
        assert metrics_of(other)["smallvit_images_total"] == 0
