"""What a person sees while a set is trained, and the page afterwards."""

import io

import pytest
from rich.console import Console

from smallvit.cli.showing import Show, progress
from smallvit.experiments import begin, compare_set, conclude, conduct
from tests.browser import needs_browser, open_browser, requests, show
from tests.experiments.conftest import finished_set
from tests.experiments.test_compare import trained


def drawn(table) -> list[list[str]]:
    console = Console(width=120, file=io.StringIO())
    console.print(table)
    return [line.split() for line in console.file.getvalue().splitlines()]


def test_the_table_of_a_running_set(settings, tmp_path, caplog):
    caplog.set_level("INFO", "smallvit")
    folder = tmp_path / "set"
    begin(folder, compare_set(settings(), ["vit_lite_2_p4", "swin_tiny_p4"], seeds=2))
    table, seen = Show(folder), []

    def started(member):
        table.started(member)
        seen.append(drawn(table))

    conduct(folder, started=started, ended=table.ended)
    assert seen[0][1] == [
        *("vit_lite_2_p4", "0", "of", "2", "–", "seed", "0:", "reading", "data"),
    ]
    assert seen[1][1][:4] == ["vit_lite_2_p4", "1", "of", "2"]
    assert seen[1][1][5:] == ["%", "seed", "1:", "reading", "data"]
    end = drawn(table)
    assert end[1][1:4] == ["2", "of", "2"]
    assert end[2][:4] == ["swin_tiny_p4", "0", "of", "2"]
    assert end[2][-2:] == ["2", "failed"]
    assert drawn(Show(folder)) == end
    assert progress(folder / "vit_lite_2_p4-seed-0").startswith("100 %, val ")
    assert "1 of 4: vit_lite_2_p4, seed 0" in caplog.text
    assert "4 of 4: swin_tiny_p4, seed 1" in caplog.text


def test_names_of_rows_are_shown_as_they_are(run, tmp_path):
    rows = {"pretrained:runs/[/red]": trained(0, 0.7, seeds=1)}
    finished_set(tmp_path / "set", run, "compare", rows)
    assert drawn(Show(tmp_path / "set"))[1][:4] == ["pretrained:runs/[/red]", "1", "of", "1"]


@needs_browser
def test_the_page_in_a_browser(run, tmp_path):
    rows = {f"<b>model {n}</b>": trained(n, 0.6 + 0.05 * n) for n in range(4)}
    finished_set(tmp_path / "set", run, "compare", rows, budget="4 steps")
    conclude(tmp_path / "set")
    page = (tmp_path / "set/page.html").as_uri()
    with open_browser(tmp_path / "browser") as browser:
        browser.get("about:blank")
        requests(browser), browser.get_log("browser")
        show(browser, page, width=360)
        assert requests(browser) == [page]
        assert browser.get_log("browser") == []
        assert browser.execute_script("return document.documentElement.scrollWidth") == 360
        assert not browser.find_elements("css selector", "th b")
        buttons = browser.find_elements("css selector", "table.sortable thead button")
        buttons[1].click()
        cells = "[...document.querySelector('table.sortable').tBodies[0].rows]"
        texts = browser.execute_script(f"return {cells}.map(row => row.cells[1].textContent)")
        values = [float(text.split("\u00a0")[0].split(" ")[0]) for text in texts]
        assert values == pytest.approx(sorted(values, reverse=True))
