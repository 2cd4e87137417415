"""The documentation: its site builds and needs no network, its names and commands are real."""

import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import smallvit
from smallvit.cli import app
from tests.browser import needs_browser, open_browser, requests, show
from tests.test_house import LEVELS, PACKAGE, ROOT
from tests.untrained import photo_bytes, save_photos

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; a warning while it is built is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def public_names() -> Iterator[tuple[str, str, Any]]:
    """Room, name and thing: what smallvit and the `__init__` of each room show."""
    rooms = [path.parent.name for path in sorted(PACKAGE.glob("*/__init__.py"))]
    for module in ("smallvit", *(f"smallvit.{room}" for room in rooms if room != "cli")):
        for name in getattr(importlib.import_module(module), "__all__", []):
            yield module, name, getattr(importlib.import_module(module), name)


def test_every_public_name_is_on_a_page(site: Path) -> None:
    text = "".join(path.read_text() for path in (site / "api").glob("*.html"))
    anchors = set(re.findall(r'id="(smallvit[^"]*)"', text))
    missing = []
    for module, name, thing in public_names():
        if inspect.isclass(thing) or inspect.isfunction(thing):
            also = f"smallvit.{name}" if getattr(smallvit, name, None) is thing else None
            homes = {f"{module}.{name}", f"{thing.__module__}.{name}", also}
            if not anchors & homes:
                missing.append(f"{module}.{name}")
    assert missing == []
    assert {f"smallvit.{name}" for name in smallvit.__all__} <= anchors


LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b[^>]*\bhref=["']?(?:https?:)?//|url\(["']?(?:https?:)?//|@import\s+["'](?:https?:)?//"""
)


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    assert len(files) > 10
    assert [str(path) for path in files if LOADS.search(path.read_text())] == []
    assert not [path for path in site.rglob("*") if path.suffix in (".woff", ".woff2", ".ttf")]
    for example in (
        '<script defer src="https://example.org/x.js">',
        "<link rel=stylesheet href=//example.org/x.css>",
        "@font-face { src: url(https://example.org/x.woff2) }",
    ):
        assert LOADS.search(example)


@needs_browser
def test_search_works_from_a_folder(site: Path, tmp_path: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    with open_browser(tmp_path) as browser:
        show(browser, (site / "index.html").as_uri())
        browser.find_element("css selector", "input.md-search__input").send_keys("letterbox")
        result = ".md-search-result__link"
        WebDriverWait(browser, 60).until(lambda b: b.find_elements("css selector", result))
        links = [
            each.get_attribute("href") for each in browser.find_elements("css selector", result)
        ]
        assert any("/data.html" in link for link in links)
        assert [url for url in requests(browser) if url.startswith(("http", "ws"))] == []


def test_the_readme_table_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "tools" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert (ROOT / "README.md").read_text() == maker.readme(), "run `make docs`"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # called by torch itself
def test_derivatives_of_the_models_page() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    found: dict[str, Any] = {}
    exec(code, found)
    attention, x = found["attention"], found["x"]
    step = 1e-3
    moved = (attention(x + step) - attention(x - step)) / (2 * step)
    assert (found["change"] - moved).abs().max() < 1e-3


def test_readme_example_runs() -> None:
    code = re.search(
        r"```python\n(import torch, smallvit.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    scope: dict[str, Any] = {}
    exec(code[1], scope)
    assert scope["logits"].shape == (8, 10)
    assert scope["grid"] == (8, 8)


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


def test_python_from_a_folder_to_predictions_works_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_photos(tmp_path / "photos", 40)
    (tmp_path / "photo.jpg").write_bytes(photo_bytes(0))
    monkeypatch.chdir(tmp_path)
    (train,) = [code for code in blocks(ROOT / "README.md") if "smallvit.train(" in code]
    found: dict[str, Any] = {}
    # Ten minutes are one epoch here; all else is what the page says.
    exec(train.replace("minutes=10", "epochs=1"), found)
    assert Path(found["run"].folder).parent == Path("runs")
    shown = capsys.readouterr().out
    assert "accuracy" in shown
    assert all(name in shown for name in found["predictor"].classes)

    shipping = blocks(ROOT / "docs" / "shipping.md")
    (use,) = [code for code in shipping if "Predictor.open(" in code]
    exec(re.sub(r"runs/[\w-]+", str(found["run"].folder), use), {})
    assert capsys.readouterr().out.strip() in found["predictor"].classes
    smallvit.export(found["run"], format="timm")
    (body,) = [code for code in shipping if "local-dir:RUN" in code]
    exec(body.replace("RUN", str(found["run"].folder.resolve())), body_names := {})
    assert body_names["model"].num_classes == 4


def test_feature_maps_in_timm_work_as_typed() -> None:
    (code,) = [each for each in blocks(ROOT / "docs" / "shipping.md") if "features_only" in each]
    found: dict[str, Any] = {}
    exec(code, found)
    assert len(found["maps"]) > 1


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    local = [link for link in links if not link.startswith(("http", "mailto"))]
    assert [link for link in local if not (page.parent / link).exists()] == []


COMMANDS: Any = typer.main.get_command(app)
OPTIONS = {
    name: {spelling for p in command.params for spelling in (*p.opts, *p.secondary_opts)}
    | {"--help"}
    for name, command in COMMANDS.commands.items()
}


def pieces_in(text: str) -> Iterator[str]:
    """Every command in blocks and in `…`; a \\ joins lines."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    lines = [line for block in blocks for line in block.splitlines()]
    for line in (*lines, *(piece.replace("\n", " ") for piece in inline)):
        yield from (part.strip() for part in re.split(r"[|;&]\s", line))


def commands_in(text: str) -> Iterator[list[str]]:
    """The words after `smallvit` of every command."""
    for part in pieces_in(text):
        match = re.match(r"(?:.*\bpython -m |.*torchrun .*-m )?smallvit ([a-z].*)", part)
        if match:
            yield shlex.split(match[1], comments=True)


def scripts_in(text: str) -> Iterator[tuple[Path, list[str]]]:
    """The scripts of this repository that are run, and their options."""
    for part in pieces_in(text):
        match = re.match(r".*\bpython (?:-m )?(benchmarks|examples|tools)[./](\w+)(.*)", part)
        if match:
            yield ROOT / match[1] / f"{match[2]}.py", re.findall(r"--[a-z0-9-]+", match[3])


def unknown_in(text: str) -> list[str]:
    """Commands and options of a page that do not exist."""
    wrong = []
    for path, options in scripts_in(text):
        if path.name != "train_flax.py":  # its options are the fields of its recipe
            known = re.findall(r'"(--[a-z0-9-]+)"', path.read_text() if path.is_file() else "")
            wrong += [f"{path.name} {option}" for option in options if option not in known]
        wrong += [] if path.is_file() else [path.name]
    for command, *words in commands_in(text):
        if command not in OPTIONS:
            wrong.append(command)
            continue
        options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        wrong += [f"{command} {option}" for option in options if option not in OPTIONS[command]]
    scripts = [*ROOT.glob("examples/*.py"), *ROOT.glob("benchmarks/*.py")]
    of_scripts = re.findall(r'"(--[a-z-]+)"', "".join(path.read_text() for path in scripts))
    everywhere = set(of_scripts).union(*OPTIONS.values())
    alone = re.findall(r"`(--[a-z-]+)[^`]*`", text)
    return wrong + [option for option in alone if option not in everywhere]


@each_page
def test_commands_and_their_options_exist(page: Path) -> None:
    assert unknown_in(page.read_text()) == []


def test_commands_that_do_not_exist_are_seen() -> None:
    text = (
        "```sh\nsmallvit train x --wings 3   # two\nfind | smallvit fly -\n"
        "torchrun --nnodes=2 \\\n  -m smallvit train x --speed=3\n```\n"
        "`smallvit audit x --feathers`, `--beak`, `smallvit train x --epochs 3`, "
        "`python -m benchmarks.scaling --axes\ntokens --claws`, `python tools/egg.py`"
    )
    wrong = ["scaling.py --claws", "egg.py", "train --wings", "fly", "train --speed"]
    wrong += ["audit --feathers", "--beak"]
    assert unknown_in(text) == wrong
    assert sum(len(list(commands_in(page.read_text()))) for page in PAGES) > 30


def test_design_states_the_order_of_the_rooms() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    line = next(line for line in text.splitlines() if re.match("text.* < ", line))
    stated = [set(level.split(", ")) for level in line.split(" < ")]
    assert stated == [set(level) - {"flax"} for level in LEVELS]


def test_design_names_what_exists() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    tree = text.partition("```\nsmallvit/\n")[2].partition("```")[0]
    assert {room for room in rooms if not room.startswith("__") and room not in tree} == set()
    paths = re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", text)
    assert len(paths) > 10
    assert [
        path for path in paths if not ((PACKAGE / path).exists() or (ROOT / path).exists())
    ] == []


def test_the_tests_that_a_page_names_exist() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text().partition("## What was broken once")[2]
    rows = [line.split("|") for line in text.splitlines() if re.match(r"\| \d", line)]
    assert [int(row[1]) for row in rows] == list(range(1, 27))
    for _, number, _, places, _ in rows:
        for place in places.split(";"):
            path, *names = re.findall(r"`(\S+)`", place)
            tests = (ROOT / "tests" / path).read_text()
            assert names, number
            assert [name for name in names if f"def {name}(" not in tests] == []
