"""Too many, too slow, too long: who waits, who is sent away, and what goes on."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from smallvit.inference import Predictor
from smallvit.server import Limits
from tests.server.live import JPEG, Gate, metrics_of, refused, served, until
from tests.untrained import photo_bytes


def flight(address: str) -> float:
    found = metrics_of(httpx.get(f"{address}/metrics", timeout=20).text)
    return found["smallvit_requests_in_flight"]


def test_a_full_queue_sends_away_and_the_rest_goes_on() -> None:
    gate, data = Gate(), photo_bytes(1)
    limits = Limits(queue=3, requests=4)
    with served(gate.predictor, limits) as address, ThreadPoolExecutor(4) as threads:

        def ask() -> httpx.Response:
            return httpx.post(f"{address}/predict", content=data, headers=JPEG, timeout=20)

        waiting = [threads.submit(ask) for _ in range(3)]
        until(lambda: flight(address) == 4)  # the three, and the one that asks
        until(lambda: gate.asked == 1)
        response = ask()
        refused(response, 503, "enough to do")
        assert response.headers["Retry-After"] == "1"
        # The event loop is free while the model works.
        assert httpx.get(f"{address}/healthz", timeout=2).status_code == 200
        gate.open.set()
        assert [each.result().status_code for each in waiting] == [200] * 3
        assert ask().status_code == 200
    assert gate.most == 1


def test_uploads_that_never_end_fill_no_queue() -> None:
    gate, data = Gate(), photo_bytes(1)
    gate.open.set()
    with served(gate.predictor, Limits(requests=2, seconds=1.5)) as address:

        def slowly() -> Iterator[bytes]:
            yield data[:100]
            assert stop.wait(10)
            yield data[100:]

        stop = threading.Event()
        with ThreadPoolExecutor(2) as threads:
            slow = [
                threads.submit(
                    httpx.post, f"{address}/predict", content=slowly(), headers=JPEG, timeout=20
                )
                for _ in range(2)
            ]
            until(lambda: flight(address) == 3)
            response = httpx.post(f"{address}/predict", content=data, headers=JPEG, timeout=20)
            refused(response, 503, "enough to do")
            until(lambda: flight(address) == 1)  # they were cut
            stop.set()
            for each in slow:
                # What httpx makes of an answer that comes while it still sends.
                if each.exception() is None:
                    refused(each.result(), 408, "longer than 1.5 seconds")
        counted = metrics_of(httpx.get(f"{address}/metrics").text)
        assert counted['smallvit_requests_total{path="/predict",status="408"}'] == 2
        assert httpx.post(f"{address}/predict", content=data, headers=JPEG).status_code == 200


def test_a_model_that_takes_too_long() -> None:
    gate, data = Gate(), photo_bytes(1)
    limits = Limits(queue=2, seconds=0.5)
    with served(gate.predictor, limits) as address, ThreadPoolExecutor(2) as threads:

        def ask() -> httpx.Response:
            return httpx.post(f"{address}/predict", content=data, headers=JPEG, timeout=20)

        first = threads.submit(ask)
        until(lambda: gate.asked == 1)
        second = ask()
        refused(first.result(), 504, "took too long")
        refused(second, 503, "busy for too long")
        assert second.headers["Retry-After"] == "1"
        gate.open.set()
        until(lambda: ask().status_code == 200)
    assert gate.asked >= 2


def test_a_model_that_fails_is_the_servers_fault(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    def ask(pixels: np.ndarray) -> np.ndarray:
        return np.full((1, 2), np.nan, np.float32)

    with served(Predictor(gate.predictor.card, ask)) as address:
        response = httpx.post(f"{address}/predict", content=photo_bytes(1), headers=JPEG)
    refused(response, 500, "its log says why")
    assert "a request failed" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"upload": 0}, "upload is 0: allowed is 1 or more"),
        ({"pixels": 10**9}, "pixels is 1,000,000,000: allowed are at most"),
        ({"queue": 0}, "queue is 0"),
        ({"requests": -1}, "requests is -1"),
        ({"seconds": 0}, "seconds is 0"),
        ({"seconds": float("nan")}, "seconds is nan"),
    ],
)
def test_limits_that_make_no_sense(wrong: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Limits(**wrong)
