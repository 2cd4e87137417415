"""A real browser for pages, where one is installed."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="no browser: `apt-get install chromium chromium-driver` brings one",
)


@contextmanager
def open_browser(home: Path) -> Iterator[Any]:
    """A browser without a window whose profile lies in a folder of its own."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="no selenium: pip install '.[dev]'"
    )
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for switch in (
        *("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking"),
        *("disable-dev-shm-usage", f"user-data-dir={home}"),
    ):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def show(browser: Any, url: str, *, width: int = 1200, dark: bool = False, media: str = "") -> None:
    """Opens a page on a screen of that width; narrow ones are a phone's."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
    phone = width < 500
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": phone})
    browser.get(url)


def requests(browser: Any) -> list[str]:
    """Addresses asked for since the last question, but for what the page itself holds."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e for e in events if e["method"] == "Network.requestWillBeSent"]
    urls = [each["params"]["request"]["url"] for each in sent]
    return [url for url in urls if not url.startswith(("data:", "blob:"))]
