"""The page in a real browser: it opens from a file, asks for nothing, sorts, and fits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smallvit.reporting import report
from smallvit.reporting.report import sheet_page
from smallvit.reporting.sheet import Cell, Sheet, Table
from smallvit.runs import Run
from tests.browser import needs_browser, open_browser, requests
from tests.browser import show as show_url

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(run: Run, nasty: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {
        "plain": report(run, folder / "plain.html", device="cpu"),
        "nasty": report(nasty, folder / "nasty.html", device="cpu"),
        "both": report([run, nasty], folder / "both.html"),
    }


def show(browser: Any, page: Path, **how: Any) -> None:
    show_url(browser, page.as_uri(), **how)


@pytest.mark.parametrize("name", ["plain", "nasty", "both"])
def test_it_opens_and_asks_for_nothing(browser: Any, pages: dict[str, Path], name: str) -> None:
    browser.get("about:blank")
    requests(browser), browser.get_log("browser")
    show(browser, pages[name])
    assert requests(browser) == [pages[name].as_uri()]
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.images.length") > (10 if name != "both" else -1)
    broken = "return [...document.images].filter(i => !i.complete || !i.naturalWidth).length"
    assert browser.execute_script(broken) == 0


def test_the_policy_stops_what_the_page_does_not_hold(
    browser: Any, pages: dict[str, Path], tmp_path: Path
) -> None:
    """A check that the checks above can fail."""
    page = tmp_path / "changed.html"
    added = "<script>window.ran = 1</script><img src='https://example.org/x.png' alt=''>"
    page.write_text(pages["plain"].read_text().replace("</main>", added + "</main>"))
    browser.get_log("browser")
    show(browser, page)
    assert browser.execute_script("return window.ran") is None
    messages = " ".join(entry["message"] for entry in browser.get_log("browser"))
    assert "script-src" in messages
    assert "img-src" in messages


@pytest.mark.parametrize("name", ["plain", "nasty", "both"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_a_phone(browser: Any, pages: dict[str, Path], name: str, dark: bool) -> None:
    show(browser, pages[name], width=360, dark=dark)
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width == 360
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    red = int(paper.split("(")[1].split(",")[0])
    assert red < 60 if dark else red > 200


FADES = """
const wide = [...document.querySelectorAll('.scroll')];
const fade = part => parseFloat(getComputedStyle(part).getPropertyValue('--fade'));
if (arguments[0]) wide.forEach(part => { part.scrollLeft = part.scrollWidth; });
const done = arguments[arguments.length - 1];
requestAnimationFrame(() => requestAnimationFrame(() => done(
  wide.filter(part => part.offsetParent)
    .map(part => [part.scrollWidth > part.clientWidth, fade(part)])
)));
"""


@pytest.mark.parametrize("name", ["plain", "nasty", "both"])
def test_what_is_wider_than_a_phone_fades_at_its_edge(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    show(browser, pages[name], width=360)
    fades = browser.execute_async_script(FADES, False)
    assert any(wide for wide, _ in fades)
    assert all((fade > 0) == wide for wide, fade in fades)
    assert all(fade == 0 for _, fade in browser.execute_async_script(FADES, True))


def test_metrics_fit_a_phone(browser: Any, pages: dict[str, Path]) -> None:
    show(browser, pages["plain"], width=390)
    part = "document.querySelector('#metrics ~ .scroll')"
    assert browser.execute_script(f"return {part}.scrollWidth <= {part}.clientWidth")


def sheet(columns: tuple[str, ...], *cells: str) -> str:
    table = Table(title="Ours", columns=columns, rows=(tuple(Cell(text=text) for text in cells),))
    return sheet_page(Sheet(title="A sheet", lead=("chance, p 0.24; 5 %",), tables=(table,)))


def test_models_keep_their_names_and_a_heading_without_words_is_no_button(
    browser: Any, tmp_path: Path
) -> None:
    columns = ("", *(f"column {number}" for number in range(14)))
    page = tmp_path / "sheet.html"
    page.write_text(sheet(columns, "vit_lite_2_p4", *["0.123456"] * 14), encoding="utf-8")
    show(browser, page, width=1200)
    assert len(browser.find_elements("css selector", "table thead button")) == 14
    name = browser.find_element("css selector", "tbody th bdi")
    assert name.size["height"] < 25
    lead = browser.find_element("css selector", ".lead").get_property("textContent")
    assert lead == "chance, p\u00a00.24; 5\u00a0%"


def test_it_fits_paper(browser: Any, pages: dict[str, Path]) -> None:
    show(browser, pages["plain"], width=720, media="print")
    page = "document.documentElement"
    assert browser.execute_script(f"return {page}.scrollWidth <= {page}.clientWidth")
    style = "return getComputedStyle(document.querySelector('nav')).display"
    assert browser.execute_script(style) == "none"


def column(browser: Any, number: int) -> list[str]:
    cells = "[...document.querySelectorAll('table.classes tbody tr')]"
    return browser.execute_script(f"return {cells}.map(row => row.cells[{number}].textContent)")


def test_headings_sort_by_mouse_and_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    show(browser, pages["plain"])
    buttons = browser.find_elements("css selector", "table.classes thead button")
    assert len(buttons) == 6
    names = column(browser, 0)
    buttons[1].click()
    recalls = [float(text.rstrip(" \u00a0%").replace("—", "-1")) for text in column(browser, 1)]
    assert recalls == sorted(recalls, reverse=True)
    buttons[1].send_keys("\ue007")  # enter
    recalls = [float(text.rstrip(" \u00a0%").replace("—", "-1")) for text in column(browser, 1)]
    assert recalls == sorted(recalls)
    states = (
        "return [...document.querySelectorAll('table.classes th[aria-sort]')].map(h => h.ariaSort)"
    )
    assert browser.execute_script(states) == ["ascending"]
    buttons[0].click()
    assert column(browser, 0) == sorted(names)
    assert sorted(column(browser, 0)) == sorted(names)


def test_tables_and_images_are_there_without_scripts(browser: Any, pages: dict[str, Path]) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(browser, pages["plain"])
        rows = browser.find_elements("css selector", "table.classes tbody tr")
        assert len(rows) == 3
        assert rows[0].is_displayed()
        assert not browser.find_elements("css selector", "table.classes thead button")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
