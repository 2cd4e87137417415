"""Requests over real connections: predictions, maps, headers, metrics."""

import base64
import io
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from smallvit.data import read_image
from smallvit.explaining.probes import SAYS_EVEN, SAYS_WHOLE, receptive_field
from smallvit.inference import Predictor
from smallvit.server.predictions import predict_file
from tests.server.live import JPEG, PATIENCE, Gate, metrics_of, refused, served
from tests.untrained import CLASSES, photo, photo_bytes, sharpen, untrained


def test_the_numbers_are_those_of_the_predictor(client: httpx.Client, predictor: Predictor) -> None:
    for seed, kind in enumerate(("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")):
        data = photo_bytes(seed, kind)
        expected = predictor.predict([read_image(data)])[0]
        as_form = client.post("/predict", files={"image": ("../<b>.jpg", data)})
        as_body = client.post("/predict", content=data, headers={"Content-Type": "image/any"})
        for response in (as_form, as_body):
            assert response.status_code == 200, response.text
            body = response.json()
            assert body["model"] == "cct_2_3x2"
            assert body["milliseconds"] > 0
            assert body["map"] is None
            by_class = {each["name"]: each["probability"] for each in body["classes"]}
            assert list(by_class.values()) == sorted(by_class.values(), reverse=True)
            np.testing.assert_allclose([by_class[name] for name in CLASSES], expected, atol=1e-6)


def test_many_at_once_get_their_own_predictions(client: httpx.Client, predictor: Predictor) -> None:
    files = [photo_bytes(seed) for seed in range(12)]
    expected = predictor.predict([read_image(data) for data in files])

    def ask(number: int) -> list[float]:
        data = files[number % 12]
        classes = client.post("/predict", content=data, headers=JPEG).json()["classes"]
        by_class = {each["name"]: each["probability"] for each in classes}
        return [by_class[name] for name in CLASSES]

    with ThreadPoolExecutor(8) as threads:
        received = list(threads.map(ask, range(48)))
    np.testing.assert_allclose(received, np.tile(expected, (4, 1)), atol=1e-5)


def test_top(client: httpx.Client) -> None:
    for top, count in ((1, 1), (3, 3), (4, 4), (1000, 4)):
        response = client.post(f"/predict?top={top}", content=photo_bytes(1), headers=JPEG)
        assert len(response.json()["classes"]) == count
    for query in ("top=0", "top=-3", "top=many", "top=", "explain=perhaps"):
        response = client.post(f"/predict?{query}", content=photo_bytes(1), headers=JPEG)
        refused(response, 422, f"^{query.split('=')[0]} is .*: expected is ")


def image_of(body: dict) -> Image.Image:
    head, _, text = body["map"]["image"].partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(text, validate=True)))


@pytest.mark.parametrize("fit", ["letterbox", "crop", "stretch", "imagenet"])
def test_a_map_is_the_image_with_heat(fit: str, tmp_path: Path) -> None:
    predictor = Predictor.open(untrained(tmp_path / "run", fit=fit, sharpness=30), "cpu")
    with served(predictor) as address:
        for size in ((90, 60), (60, 90), (1200, 700), (5, 5), (300, 1)):
            file = io.BytesIO()
            photo(3).resize(size).save(file, "PNG")
            response = httpx.post(
                f"{address}/predict?explain=true",
                files={"image": file.getvalue()},
                timeout=PATIENCE,
            )
            body = response.json()
            assert body["map"]["kind"] == "attention"
            map_ = image_of(body)
            assert 256 <= max(map_.size) <= 512
            ratio = size[0] / size[1] if fit not in ("crop", "imagenet") else 1
            if min(size) > 1:
                assert map_.width / map_.height == pytest.approx(ratio, rel=0.03)
            pixels = np.asarray(map_).astype(int)
            assert pixels.std(2).max() > 5  # the image is grey there, so colour is heat


def test_attention_that_is_even_is_not_shown_as_a_finding(tmp_path: Path) -> None:
    def explained(predictor: Predictor) -> tuple[str, str]:
        body = predict_file(predictor, photo_bytes(3), top=1, explain=True, pixels=10**6)
        return body["map"]["kind"], body["map"]["note"]

    predictor = Predictor.open(untrained(tmp_path / "run", sharpness=30), "cpu")
    assert explained(predictor) == ("attention", "")
    sharpen(predictor.model, 0.0)
    assert explained(predictor) == ("gradient", SAYS_EVEN)
    wide = Predictor.open(untrained(tmp_path / "wide", "hct_s_p8", sharpness=30), "cpu")
    assert receptive_field(wide.model) >= max(wide.card.image_size)
    assert explained(wide) == ("gradient", SAYS_WHOLE)


def test_a_model_without_attention_gets_a_gradient_map(tmp_path: Path) -> None:
    import torch

    from smallvit.models.build import make_model

    card = Predictor.open(untrained(tmp_path / "run"), "cpu").card
    model = make_model(
        "cifar_resnet56", options={}, num_classes=4, image_size=(32, 32), in_channels=3
    )

    def ask(pixels: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            images = torch.from_numpy(pixels.copy()).permute(0, 3, 1, 2).float() / 255
            return model(images).numpy()

    with served(Predictor(card, ask, model.eval())) as address:
        response = httpx.post(
            f"{address}/predict?explain=true",
            content=photo_bytes(1),
            headers=JPEG,
            timeout=PATIENCE,
        )
    assert response.json()["map"]["kind"] == "gradient"
    assert image_of(response.json()).mode == "RGB"


def test_headers(client: httpx.Client) -> None:
    for response in (
        *(client.get(path) for path in ("/", "/healthz", "/metrics", "/openapi.json", "/no")),
        client.post("/predict", content=photo_bytes(1), headers=JPEG),
        client.post("/predict", content=b"no", headers={**JPEG, "Origin": "http://example.org"}),
    ):
        headers = response.headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "Access-Control-Allow-Origin" not in headers
        assert "Server" not in headers


def test_the_other_addresses(client: httpx.Client) -> None:
    health = client.get("/healthz")
    assert health.json() == {"status": "ok", "model": "cct_2_3x2", "classes": 4}
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {"/predict", "/healthz", "/metrics"}
    operation = described["paths"]["/predict"]["post"]
    assert set(operation["requestBody"]["content"]) == {"multipart/form-data", "image/*"}
    assert {each["name"] for each in operation["parameters"]} == {"top", "explain"}
    page = client.get("/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "cct_2_3x2" in page.text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page.text)


def test_metrics_count(client: httpx.Client, address: str) -> None:
    before = metrics_of(address)
    for _ in range(3):
        client.post("/predict", content=photo_bytes(1), headers=JPEG)
    client.post("/predict", content=b"no", headers=JPEG)
    client.get("/one")
    client.get("/two")
    after = metrics_of(address)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("smallvit_images_total") == 3
    assert grown('smallvit_requests_total{path="/predict",status="200"}') == 3
    assert grown('smallvit_requests_total{path="/predict",status="415"}') == 1
    assert grown('smallvit_requests_total{path="other",status="404"}') == 2
    assert grown('smallvit_requests_total{path="/metrics",status="200"}') == 1
    assert after["smallvit_requests_in_flight"] == 1  # the one that asks
    assert grown("smallvit_predict_seconds_count") == 4
    assert grown("smallvit_predict_seconds_sum") > 0
    buckets = [value for name, value in after.items() if "_bucket" in name]
    assert buckets == sorted(buckets)
    assert buckets[-1] == after["smallvit_predict_seconds_count"]
    assert after['smallvit_predict_seconds_bucket{le="+Inf"}'] == buckets[-1]


def test_no_name_reaches_the_page_unescaped(predictor: Predictor) -> None:
    name = "<script>alert(1)</script>"
    card = replace(predictor.card, model={"name": name}, classes=(name, *CLASSES[1:]))
    gate = Gate()
    gate.open.set()
    with served(Predictor(card, gate)) as address:
        page = httpx.get(address).text
        assert name not in page
        assert "&lt;script&gt;alert(1)" in page
        assert page.count("<script>") == 1
