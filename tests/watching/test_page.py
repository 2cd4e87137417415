"""The page in a real browser, its server's refusals, and what `train --watch` opens."""

import json
import os
import re
import stat
import subprocess
import sys

import httpx
import pytest

from smallvit.runs.places import locked
from smallvit.watching.machine import Machine, ask_gpus
from smallvit.watching.running import has_browser
from tests.browser import needs_browser, open_browser, requests, show
from tests.server.live import PATIENCE, started, until
from tests.training.makers import TINY, arrays
from tests.watching.conftest import log_steps, watching, write_run

NASTY = "<img src=x onerror=alert(1)> 'ש' & " + "long" * 20


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def page(browser):
    """What the test before left in the logs is forgotten."""
    browser.get("about:blank")
    requests(browser), browser.get_log("browser")
    return browser


def text(browser, selector: str) -> str:
    return browser.find_element("css selector", selector).text


def rows(browser) -> list[list[str]]:
    found = "[...document.querySelectorAll('#rows tr')]"
    texts = "row => [...row.cells].map(cell => cell.textContent)"
    return browser.execute_script(f"return {found}.map({texts})")


@needs_browser
def test_live_curves_and_a_finished_run(page, tmp_path):
    live = write_run(tmp_path / "live", 20)
    done = write_run(tmp_path / "done", 100, status="finished", steps=100)
    (done / "evaluation.json").write_text(json.dumps({"accuracy": {"value": 0.625}}))
    (done / "report.html").write_text("<title>of done</title><script>document.title = 1</script>")
    with locked(live / "lock"), watching(tmp_path, now=lambda: live.stat().st_mtime) as address:
        show(page, f"{address}/")
        until(lambda: len(page.find_elements("css selector", "article svg")) == 2)
        assert text(page, "#status") == "1 of 2 runs are training."
        assert re.match(r"\d+ CPU cores?, .*of memory|\d+ CPU cores? ", text(page, "#machine"))
        assert text(page, "article h3") == "live"
        assert "step 20 of 100" in text(page, "article p")
        assert re.search(r"running, about 0:1\d left", text(page, "article .top"))
        assert "validation 10.0 %" in text(page, "article figcaption")
        lines = (
            "return document.querySelector('polyline.val').getAttribute('points').split(' ').length"
        )
        assert page.execute_script(lines) == 2
        log_steps(live, 30)
        until(lambda: page.execute_script(lines) == 3)
        assert "step 30 of 100" in text(page, "article p")
        by_name = {row[0]: row for row in rows(page)}
        assert by_name["done"][1:5] == ["finished", "62.5\u00a0%", "50.0\u00a0%", "100 of 100"]
        # Curves of a finished run, on request; and away again.
        button = "#rows button[data-run=done]"
        page.find_element("css selector", button).click()
        until(lambda: len(page.find_elements("css selector", "article svg")) == 4)
        page.find_element("css selector", button).click()
        assert len(page.find_elements("css selector", "article")) == 1
        assert browser_errors(page) == []
        asked = {url.removeprefix(address).partition("?")[0] for url in requests(page)}
        assert asked == {"/", "/runs", "/curves"}
        # The report opens without an origin, and runs no script but ours.
        link = page.find_element("css selector", "#rows a").get_attribute("href")
        page.get(link)
        assert page.title == "of done"
        assert page.execute_script("return window.origin") == "null"
        assert any("script-src" in line for line in browser_errors(page))
    page.get("about:blank")


def browser_errors(browser) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_hostile_folders_on_a_phone(page, tmp_path, dark):
    root = tmp_path / NASTY.replace("/", "")
    folder = write_run(root / NASTY, 20, model={"name": NASTY}, data={"source": f"/{NASTY}"})
    damaged = write_run(root / "damaged", 10)
    (damaged / "log.jsonl").write_text('{"kind": "<b>"}\n')
    (root / "set").mkdir()
    (root / "set/set.json").write_text(json.dumps({"kind": NASTY, "members": 3}))
    with locked(folder / "lock"), watching(root) as address:
        show(page, f"{address}/", width=360, dark=dark)
        until(lambda: len(page.find_elements("css selector", "article svg")) == 2)
        assert text(page, "article h3") == NASTY
        assert NASTY in text(page, "article p")
        assert not page.find_elements("css selector", "img, b")
        cells = {row[0]: row[1] for row in rows(page)}
        assert "damaged" in next(value for name, value in cells.items() if "line 1 of" in name)
        assert page.execute_script("return document.documentElement.scrollWidth") == 360
        assert browser_errors(page) == []
    page.get("about:blank")


@needs_browser
def test_ticks_differ_and_names_stay_in_sight_on_a_phone(page, tmp_path):
    run = write_run(tmp_path / "level", 0)
    for step, loss in ((10, 2.3012), (20, 2.3009)):
        line = {"kind": "train", "step": step, "images": 32 * step, "loss": loss, "seconds": 1.0}
        with (run / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
    with locked(run / "lock"), watching(tmp_path, now=lambda: run.stat().st_mtime) as address:
        show(page, f"{address}/", width=360)
        until(lambda: page.find_elements("css selector", "article svg"))
        ticks = (
            "return [...document.querySelectorAll('svg [text-anchor=end]')].map(t => t.textContent)"
        )
        labels = [label for label in page.execute_script(ticks) if "images" not in label]
        assert len(labels) == len(set(labels)) == 3
        page.execute_script("const all = document.querySelector('.scroll'); all.scrollLeft = 999")
        left = "return document.querySelector('#rows td').getBoundingClientRect().left"
        assert page.execute_script(left) >= 0
    page.get("about:blank")


@needs_browser
def test_a_server_that_is_gone(page, tmp_path):
    with watching(tmp_path) as address:
        show(page, f"{address}/")
        until(lambda: text(page, "#status") == "There is no run here yet.")
    until(lambda: text(page, "#status").startswith("The server does not answer"))


def test_it_only_reads_and_only_what_it_lists(tmp_path):
    write_run(tmp_path / "runs/a", 10)
    (tmp_path / "report.html").write_text("secret")
    with watching(tmp_path / "runs") as address:
        for path in ("..", "a/..", "/etc", "", "a/../..", "nowhere"):
            for question in ("report", "curves"):
                found = httpx.get(f"{address}/{question}", params={"run": path})
                assert found.status_code == 404, path
                assert found.json()["error"].startswith(f"There is no run {path!r}")
        for name in ("run", "set"):
            question = {"run": "report", "set": "page"}[name]
            assert httpx.get(f"{address}/{question}").status_code == 422
            assert httpx.get(f"{address}/report", params={"run": "a"}).status_code == 404
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert httpx.request(method, f"{address}/runs").status_code == 405
        assert httpx.get(f"{address}/openapi.json").status_code == 404
        other = httpx.get(f"{address}/runs", headers={"Host": "evil.example"})
        assert other.status_code == 421
        assert "localhost" in other.json()["error"]
        answer = httpx.get(f"{address}/runs")
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert [run["name"] for run in answer.json()["runs"]] == ["a"]


def test_a_page_from_a_folder_has_no_rights(tmp_path):
    run = write_run(tmp_path / "a", 10)
    (run / "report.html").write_text("<script>1</script>")
    with watching(tmp_path) as address:
        policy = httpx.get(f"{address}/report?run=a").headers["Content-Security-Policy"]
        directives = dict(part.strip().partition(" ")[::2] for part in policy.split(";"))
        assert directives["sandbox"] == "allow-scripts"
        assert directives["default-src"] == "'none'"
        assert re.fullmatch(r"'sha256-\S+'", directives["script-src"])


def test_how_busy_the_machine_is(tmp_path, monkeypatch):
    (tmp_path / "stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 250 kB\nHuge: 0\n")
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'NVIDIA X, 80 GB, 87, 2048, 81920'\necho 'Y, [N/A], [N/A], 1'\n"
    )
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    machine = Machine(proc=tmp_path)
    (tmp_path / "stat").write_text("cpu  130 0 130 710 130 0 0 0 0 0\n")
    use = machine.use()
    assert use.cpu == pytest.approx(0.6)
    assert (use.memory, use.memory_total) == (750 * 1024, 1000 * 1024)
    assert [(gpu.name, gpu.used) for gpu in use.gpus] == [("NVIDIA X, 80 GB", 0.87), ("Y", None)]
    assert use.gpus[0].memory == 2 * 2**30
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert ask_gpus() == ()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert ask_gpus() == ()
    assert Machine(proc=tmp_path / "nothing").use().cpu is None
    assert Machine().use().cores >= 1


def test_a_browser_is_opened_where_there_is_one():
    assert has_browser(True, {"DISPLAY": ":0"}, "linux")
    assert has_browser(True, {"WAYLAND_DISPLAY": "wayland-0"}, "linux")
    assert has_browser(True, {}, "darwin")
    assert not has_browser(True, {}, "linux")
    assert not has_browser(False, {"DISPLAY": ":0"}, "linux")
    assert not has_browser(True, {"DISPLAY": ":0", "SSH_CONNECTION": "1"}, "linux")


def test_the_command(tmp_path):
    write_run(tmp_path / "runs/a", 10)
    with started("-m", "smallvit", "watch", tmp_path / "runs", "--port", "0") as (process, log):
        assert httpx.get(f"{log[-1]}/runs").json()["runs"][0]["name"] == "a"
        process.terminate()
        assert process.wait(PATIENCE) == 0
    words = [sys.executable, "-m", "smallvit", "watch", str(tmp_path / "nowhere")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "there is no folder" in done.stderr


def test_train_watch(tmp_path, monkeypatch):
    """The page is there while the run is trained, and its server is gone when that is stopped."""
    data = arrays(tmp_path / "noise.npz")
    changes = [
        *TINY,
        "schedule.steps=1000000",
        "loop.every=50",
        "loop.batch_size=16",
        "loop.device=cpu",
    ]
    words = ["-m", "smallvit", "train", data, "--out", tmp_path / "run", "--watch"]
    for change in changes:
        words += ["--set", change]
    monkeypatch.setenv("SMALLVIT_CACHE", str(tmp_path / "cache"))
    with started(*words) as (process, log):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", log[-1])
        with httpx.Client(base_url=log[-1]) as client:
            until(lambda: client.get("/runs").json()["runs"] != [])
            run = client.get("/runs").json()["runs"][0]
        assert (run["name"], run["state"]) == ("run", "running")
        process.terminate()
        assert process.stderr is not None
        assert "go on with: smallvit train --resume" in process.stderr.read()
        assert process.wait(PATIENCE) == 130
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{log[-1]}/runs")
