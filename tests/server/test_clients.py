"""Clients that ask under other names, do not read, do not send, or stay for ever."""

import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from smallvit.server import Limits, serve
from smallvit.server.hosts import host_name, own_hosts
from tests.server.live import (
    PATIENCE,
    Gate,
    metrics_of,
    post,
    process,
    refused,
    served,
    until,
)
from tests.server.test_limits import connect, read_to_end
from tests.untrained import photo_bytes, untrained

HOSTS = own_hosts("127.0.0.1", "127.0.0.1", ["Birds.example", "192.0.2.7"])
PAGE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPLOAD = (
    b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 999\r\n\r\n"
)
QUICK = Limits(seconds=0.5, head_seconds=PATIENCE)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(Gate().predictor, hosts=HOSTS) as address:
        yield address


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:1", "LOCALHOST", "localhost.", "127.0.0.1", "127.0.0.1:80"),
        *("[::1]", "[::1]:8000", "birds.example", "BIRDS.example.:443", "192.0.2.7:1"),
    ],
)
def test_names_of_this_machine_are_answered(address: str, host: str) -> None:
    assert httpx.get(f"{address}/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost"),
        *("birds.example.evil", "birds.example@evil", "2130706433", "0x7f.1", "[::2]"),
        *("192.0.2.8", "localhost:1:2", "<b>", "", ".", "a" * 300),
    ],
)
@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/predict", "/nothing", "/predict/"])
def test_other_names_are_refused(address: str, host: str, path: str) -> None:
    response = httpx.get(f"{address}{path}", headers={"Host": host})
    refused(response, 421, "does not answer for the host .*--allow-host")
    assert "location" not in response.headers
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_uploads_for_other_names_are_refused_unread(address: str) -> None:
    head = UPLOAD.replace(b"Host: x", b"Host: evil.example\r\nExpect: 100-continue")
    with connect(address, head) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 421")


def test_without_a_name_there_is_no_browser(address: str) -> None:
    with connect(address, b"GET /healthz HTTP/1.0\r\n\r\n") as connection:
        assert read_to_end(connection).startswith(b"HTTP/1.1 200")


def test_slashes_lead_nowhere() -> None:
    with served(Gate().predictor) as address:
        response = httpx.get(f"{address}/healthz/", headers={"Host": "evil.example"})
        refused(response, 404, "nothing at this address")


def test_which_names_there_are() -> None:
    assert own_hosts("0.0.0.0", "0.0.0.0", []) is None
    assert own_hosts("192.0.2.7", "192.0.2.7", []) is None
    named = own_hosts("0.0.0.0", "0.0.0.0", ["a.example"])
    assert named is not None
    assert {"a.example", "localhost", "::1"} <= named
    assert "b.example" not in named
    local = own_hosts("Desk.local", "127.0.0.1", [])
    assert local == {"localhost", "127.0.0.1", "::1", "desk.local"}
    assert host_name("::1") == host_name("[::1]:80") == "::1"


@pytest.mark.parametrize("name", ["http://a.example", "a.example:80", "a/b", "", " ", "*", "a..b"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match="expected is a name such as birds"):
        serve(Gate().predictor, allow_hosts=[name])
    with pytest.raises(TypeError, match="expected is a list, each text"):
        serve(Gate().predictor, allow_hosts=name)


def test_the_command_names_hosts(tmp_path) -> None:
    run = untrained(tmp_path / "run").folder
    with process(run, "--allow-host", "a.example", "--allow-host", "b.example") as (_, log):
        statuses = {
            host: httpx.get(f"{log[-1]}/healthz", headers={"Host": host}).status_code
            for host in ("a.example", "b.example:80", "localhost", "evil.example")
        }
    assert statuses == {
        "a.example": 200,
        "b.example:80": 200,
        "localhost": 200,
        "evil.example": 421,
    }


@contextmanager
def silent_readers(address: str, count: int, text: bytes) -> Iterator[list[socket.socket]]:
    """Clients that ask and never read."""
    host, _, port = address.removeprefix("http://").partition(":")
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(PATIENCE)
            client.connect((host, int(port)))
            client.sendall(text)
            clients.append(client)
        yield clients


def in_flight(address: str) -> int:
    """Requests without a response, but for the one that asks."""
    return int(metrics_of(address)["smallvit_requests_in_flight"]) - 1


def is_cut_off(client: socket.socket) -> bool:
    """Whether a connection ends before all responses, or in a reset."""
    try:
        return read_to_end(client).count(b"HTTP/1.1 200") < 40
    except ConnectionError:
        return True


def test_clients_that_never_read_are_cut_off() -> None:
    gate = Gate()
    gate.open.set()
    with served(gate.predictor, QUICK, buffer=4096) as address:
        with silent_readers(address, 350, 40 * PAGE) as clients:
            until(lambda: in_flight(address) == 0)
            assert all(map(is_cut_off, clients))
        # Who reads is answered, before and after.
        assert len(httpx.get(address).text) > 4096
        assert post(address, photo_bytes(1)).status_code == 200


def test_who_reads_slowly_gets_everything() -> None:
    gate = Gate()
    gate.open.set()
    limits = Limits(seconds=PATIENCE, head_seconds=PATIENCE)
    with served(gate.predictor, limits, buffer=4096) as address:
        expected = httpx.get(address).content
        with silent_readers(
            address, 1, PAGE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        ) as (client,):
            response = b"".join(iter(lambda: client.recv(100), b""))
    assert response.endswith(expected)


def test_it_stops_whatever_clients_do(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    caplog.set_level(logging.ERROR)
    with ExitStack() as clients:
        with served(gate.predictor, QUICK, buffer=4096) as address:
            clients.enter_context(silent_readers(address, 60, 40 * PAGE))
            uploads = clients.enter_context(silent_readers(address, 20, UPLOAD + b"beginning"))
            clients.enter_context(silent_readers(address, 20, b"GET / HT"))
            clients.enter_context(silent_readers(address, 20, b""))
            until(lambda: in_flight(address) > 60)
        # The server's thread has ended, and no request had to be cancelled for it.
        assert caplog.messages == []
        assert all(b"HTTP/1.1 408" in read_to_end(client) for client in uploads)
    gate.open.set()


def test_the_limit_of_pixels_is_the_one_that_is_stated() -> None:
    from tests.server.test_refusals import png_header

    gate = Gate()
    for pixels in (1_000, 50_000_000):
        with served(gate.predictor, Limits(pixels=pixels)) as address:
            for side in (8_000, 20_000, 60_000):
                refused(post(address, png_header(side, side)), 413, f"more than {pixels:,} pixels")
