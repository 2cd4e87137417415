"""The page in a real browser: an image goes in by every way, and classes and a map come out."""

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from smallvit.data import read_image
from smallvit.explaining.probes import SAYS_EVEN
from smallvit.inference import Predictor
from tests.browser import needs_browser, open_browser, requests, show
from tests.server.live import served, until
from tests.untrained import CLASSES, photo_bytes, sharpen, untrained

pytestmark = needs_browser

NASTY = "<img src=x onerror=alert(1)> 'ש' " + "long" * 30


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(autouse=True)
def forgotten(browser: Any) -> None:
    """What the test before left in the logs."""
    browser.get("about:blank")
    requests(browser), browser.get_log("browser")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    large = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    Image.fromarray(noise).save(large, "PNG")
    contents = {
        "a.jpg": photo_bytes(3),
        "b.png": photo_bytes(4, "PNG"),
        "c.tiff": photo_bytes(5, "TIFF"),
        "text.jpg": b"no image",
        "large.png": large.getvalue(),
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    return {name: tmp_path / name for name in contents}


def text(browser: Any, selector: str) -> str:
    return browser.find_element("css selector", selector).text


def visible(browser: Any, selector: str) -> bool:
    return browser.find_element("css selector", selector).is_displayed()


def shares(browser: Any) -> dict[str, str]:
    rows = browser.find_elements("css selector", "#classes li")
    return {text(row, ".name"): text(row, ".share") for row in rows}


def loaded(browser: Any, selector: str) -> bool:
    image = f"document.querySelector({selector!r})"
    return browser.execute_script(f"return {image}.complete && {image}.naturalWidth > 0")


def test_a_chosen_image(browser: Any, address: str, files: dict, predictor: Predictor) -> None:
    show(browser, f"{address}/")
    assert not visible(browser, "#result")
    browser.find_element("id", "file").send_keys(str(files["a.jpg"]))
    until(lambda: visible(browser, "#result"))
    shown = shares(browser)
    expected = predictor.predict([read_image(files["a.jpg"])])[0]
    assert shown == {
        CLASSES[k]: f"{100 * expected[k]:.1f} %" for k in np.argsort(-expected, kind="stable")
    }
    assert text(browser, "#best") == f"Most likely: {next(iter(shown))}"
    until(lambda: loaded(browser, "#heat") and loaded(browser, "#image"))
    assert text(browser, "#caption") == "Where the model looked"
    widths = [each.size["width"] for each in browser.find_elements("css selector", ".fill")]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1]
    assert requests(browser) == [f"{address}/", f"{address}/predict?explain=true"]
    assert browser.get_log("browser") == []


def test_attention_that_shows_no_place(browser: Any, files: dict, tmp_path: Path) -> None:
    predictor = Predictor.open(untrained(tmp_path / "run"), "cpu")
    sharpen(predictor.model, 0.0)
    with served(predictor) as address:
        show(browser, f"{address}/")
        browser.find_element("id", "file").send_keys(str(files["a.jpg"]))
        until(lambda: visible(browser, "#result"))
        assert text(browser, "#caption") == "What supports the prediction"
        assert text(browser, "#note") == f"{SAYS_EVEN[0].upper()}{SAYS_EVEN[1:]}."


GIVE = """
const bytes = Uint8Array.from(atob(arguments[0]), (each) => each.charCodeAt(0));
const transfer = new DataTransfer();
if (bytes.length) transfer.items.add(new File([bytes], "a.jpg", { type: "image/jpeg" }));
else transfer.setData("text/plain", "words");
const event = arguments[1] === "drop"
  ? new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true })
  : new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true });
document.querySelector("h1").dispatchEvent(event);
return event.defaultPrevented;
"""


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_a_dropped_or_pasted_image(browser: Any, address: str, way: str) -> None:
    show(browser, f"{address}/")
    data = base64.b64encode(photo_bytes(3)).decode()
    assert browser.execute_script(GIVE, data, way) == (way == "drop")
    until(lambda: visible(browser, "#result"))
    until(lambda: loaded(browser, "#heat"))
    assert len(shares(browser)) == 4
    browser.execute_script(GIVE, "", way)
    until(lambda: text(browser, "#status").startswith("There is no image file in that."))
    assert not visible(browser, "#result")
    assert browser.get_log("browser") == []


def test_errors_are_sentences_and_the_next_image_works(
    browser: Any, address: str, files: dict
) -> None:
    show(browser, f"{address}/")
    file = browser.find_element("id", "file")
    for name, words in (
        ("text.jpg", "This is not an image that can be read"),
        ("large.png", "This image has more than 0.3 MB."),
    ):
        file.send_keys(str(files[name]))
        until(lambda: text(browser, "#status").startswith(words))  # noqa: B023
        assert not visible(browser, "#result")
        assert text(browser, "#best") == ""
        assert browser.find_element("id", "status").get_attribute("class") == "bad"
    file.send_keys(str(files["c.tiff"]))
    until(lambda: visible(browser, "#result"))
    until(lambda: not visible(browser, "#preview"))  # browsers show no TIFF; the map is there
    assert loaded(browser, "#heat")
    assert text(browser, "#status") == ""
    file.send_keys(str(files["b.png"]))
    until(lambda: visible(browser, "#preview"))
    # A refusal is the one thing that the browser itself notes down.
    (message,) = [entry["message"] for entry in browser.get_log("browser")]
    assert "415" in message


def test_by_keyboard(browser: Any, address: str) -> None:
    show(browser, f"{address}/")
    active = browser.switch_to.active_element
    active.send_keys("\ue004")  # tab
    assert browser.switch_to.active_element.get_attribute("id") == "file"
    label = browser.find_element("css selector", "label[for=file]")
    assert label.value_of_css_property("outline-style") == "solid"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_a_phone(browser: Any, predictor: Predictor, files: dict, dark: bool) -> None:
    card = replace(predictor.card, classes=(NASTY, *CLASSES[1:]), model={"name": NASTY})
    odd = Predictor(card, predictor.forward, predictor.model)
    with served(odd) as address:
        show(browser, f"{address}/", width=360, dark=dark)
        assert visible(browser, ".camera")
        browser.find_element("id", "camera").send_keys(str(files["a.jpg"]))
        until(lambda: visible(browser, "#result"))
        until(lambda: loaded(browser, "#heat"))
        assert NASTY in shares(browser)
        assert browser.execute_script("return document.documentElement.scrollWidth") == 360
        paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        red = int(paper.split("(")[1].split(",")[0])
        assert red < 60 if dark else red > 200
        assert browser.get_log("browser") == []
        assert len(requests(browser)) == 2


def test_the_policy_stops_what_is_not_the_pages_own(browser: Any, address: str) -> None:
    """A check that the checks above can fail."""
    show(browser, f"{address}/")
    browser.execute_script(
        "const script = document.createElement('script'); script.textContent = 'window.ran = 1';"
        "const image = document.createElement('img'); image.src = 'https://example.org/x.png';"
        "document.body.append(script, image);"
    )
    assert browser.execute_script("return window.ran") is None
    messages = " ".join(entry["message"] for entry in browser.get_log("browser"))
    assert "script-src" in messages
    assert "img-src" in messages


def test_a_server_that_is_gone(browser: Any, predictor: Predictor, files: dict) -> None:
    with served(predictor) as address:
        show(browser, f"{address}/")
    browser.find_element("id", "file").send_keys(str(files["a.jpg"]))
    until(lambda: text(browser, "#status") == "The server did not answer. Is it still running?")
