"""The derived pages are up to date, and what the README shows runs."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "docs" / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_api_page_is_up_to_date(maker):
    assert (ROOT / "docs" / "api.md").read_text() == maker.api(), "run `make docs`"


def test_readme_table_is_up_to_date(maker):
    assert (ROOT / "README.md").read_text() == maker.readme(), "run `make docs`"


def test_readme_example_runs():
    code = re.search(
        r"```python\n(import torch, smallvit.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    scope = {}
    exec(code[1], scope)
    assert scope["logits"].shape == (8, 10)
    assert scope["grid"] == (8, 8)


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda p: p.name
)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    local = [link for link in links if not link.startswith(("http", "mailto"))]
    assert [link for link in local if not (page.parent / link).exists()] == []
