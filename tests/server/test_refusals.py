"""Whatever is sent, the response holds an image's classes or a sentence."""

import io
import socket
import struct
import zlib

import httpx
import numpy as np
import pytest
import tifffile

from tests.server.live import JPEG, PATIENCE, refused
from tests.untrained import mutated, photo_bytes


def png_header(width: int, height: int) -> bytes:
    """A few bytes that promise an image of any size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + data + chunk(b"IEND", b"")


def many_channels() -> bytes:
    """A small TIFF of thousands of channels, which is large once it is decoded."""
    file = io.BytesIO()
    pixels = np.zeros((16, 16, 4000), np.uint8)
    tifffile.imwrite(file, pixels, compression="zlib", photometric="minisblack", planarconfig=1)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"", 400, "no bytes"),
        (b"hello", 415, "none of JPEG, PNG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "none of JPEG, PNG"),
        (b"GIF89a", 415, "none of JPEG, PNG"),
        (photo_bytes(1)[:700], 422, "truncated"),
        (photo_bytes(1, "PNG")[:-400], 422, "cannot be read"),
        (png_header(0, 10), 415, "none of JPEG, PNG"),
        (png_header(500, 401), 413, "more than 200,000 pixels"),
        (png_header(60_000, 60_000), 413, "more than .* pixels"),
        (png_header(2**31 - 1, 2**31 - 1), 413, "more than .* pixels"),
        (many_channels(), 413, "more than 200,000 pixels"),
        (bytes(300_001), 413, "more than 0.3 MB"),
        (bytes(5_000_000), 413, "more than 0.3 MB"),
    ],
    ids=[
        *("empty", "text", "svg", "short", "cut-jpeg", "cut-png", "flat", "pixels", "bomb"),
        *("largest", "channels", "bytes", "megabytes"),
    ],
)
def test_bad_images_are_refused_with_a_sentence(
    client: httpx.Client, data: bytes, status: int, words: str
) -> None:
    refused(client.post("/predict", content=data, headers=JPEG), status, words)
    refused(client.post("/predict", files={"image": ("a.jpg", data)}), status, words)
    # Without a Content-Length, in pieces.
    pieces = (data[i : i + 65_536] for i in range(0, len(data), 65_536))
    refused(client.post("/predict", content=pieces, headers=JPEG), status, words)


def test_channels_the_model_cannot_take(client: httpx.Client) -> None:
    file = io.BytesIO()
    tifffile.imwrite(file, np.zeros((9, 9, 5), np.uint8), photometric="minisblack", planarconfig=1)
    response = client.post("/predict", content=file.getvalue(), headers=JPEG)
    refused(response, 422, "5 channels where 3 are expected")


def test_bad_requests_are_refused_with_a_sentence(client: httpx.Client) -> None:
    data = photo_bytes(1)
    for kind in ("application/x-www-form-urlencoded", "text/plain", "application/octet-stream"):
        response = client.post("/predict", content=data, headers={"Content-Type": kind})
        refused(response, 415, "Expected an image")
    refused(client.post("/predict", content=data), 415, "'missing'")
    refused(client.post("/predict"), 415, "Expected an image")
    refused(client.post("/predict", files={"photo": data}), 400, "the form has none")
    refused(client.post("/predict", files=[("image", data), ("image", data)]), 400, "one file")
    text = {"Content-Type": "multipart/form-data; boundary=x"}
    field = b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\nhello\r\n--x--\r\n'
    refused(client.post("/predict", content=field, headers=text), 400, "the form has none")
    for form in (b"", b"--x", b"garbage" * 9, field[:40], b"--x\r\n\r\n\r\n--x--\r\n"):
        refused(client.post("/predict", content=form, headers=text), 400, "[Ff]orm|field")
    none = {"Content-Type": "multipart/form-data"}
    refused(client.post("/predict", content=field, headers=none), 400, "cannot be read")
    refused(client.get("/nothing"), 404, "nothing at this address")
    refused(client.post("/docs", content=data), 404, "nothing at this address")
    refused(client.get("/predict"), 405, "GET is not allowed")
    refused(client.delete("/"), 405, "DELETE is not allowed")


def test_a_client_that_waits_for_100_continue_is_refused_first(address: str) -> None:
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
            b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
        )
        response = b"".join(iter(lambda: connection.recv(4096), b""))
    assert response.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in response.lower()


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 1060), marks=pytest.mark.slow)], ids=len
)
def test_mutated_images_never_fail_the_server(client: httpx.Client, seeds: range) -> None:
    statuses = set()
    for seed in seeds:
        data, explain = mutated(seed), str(seed % 5 == 0).lower()
        if seed % 2:
            response = client.post(f"/predict?explain={explain}", files={"image": data})
        else:
            response = client.post(f"/predict?explain={explain}", content=data, headers=JPEG)
        assert response.status_code in (200, 413, 415, 422), (seed, response.text)
        if response.status_code == 200:
            probabilities = [each["probability"] for each in response.json()["classes"]]
            assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        else:
            assert list(response.json()) == ["error"]
        statuses.add(response.status_code)
    assert len(statuses) >= 3


def test_mutated_forms_never_fail_the_server(client: httpx.Client) -> None:
    head = b'--xx\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    form = head + photo_bytes(2) + b"\r\n--xx--\r\n"
    for seed in range(40):
        random = np.random.default_rng(seed)
        data = bytearray(form)
        for _ in range(3):
            at = int(random.integers(0, 90))
            data[at : at + int(random.integers(0, 3))] = random.bytes(int(random.integers(0, 3)))
        response = client.post(
            "/predict",
            content=bytes(data),
            headers={"Content-Type": "multipart/form-data; boundary=xx"},
        )
        assert response.status_code < 500, (seed, response.text)
