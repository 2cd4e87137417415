"""docs/results.md is made from results/*.json."""

import importlib.util
from pathlib import Path

from smallvit.experiments.papers import rows
from smallvit.experiments.results import read_results
from smallvit.runs.config import RunConfig

ROOT = Path(__file__).parents[2]


def maker():
    spec = importlib.util.spec_from_file_location("results", ROOT / "tools" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_up_to_date():
    assert (ROOT / "docs" / "results.md").read_text() == maker().page(), "run `make docs`"


def test_the_repository_keeps_results_as_data():
    results = read_results(ROOT / "results")
    found = {result.row: result for result in results if result.row}
    assert set(found) <= {row.key for row in rows()}
    assert round(100 * found["cifar100/sl-vit"].mean, 1) == 76.2
    assert round(100 * found["cifar100/cct-7-3x1"].mean, 1) == 80.5
    seen = {row.key: row.images_seen for row in rows()}
    for result in results:
        assert result.row is None or result.images_seen == seen[result.row]
        assert result.trainings[0].curve[-1]["step"] > 0
        if result.config:
            assert RunConfig.from_dict(result.config).recipe == result.recipe


def test_every_row_of_the_papers_is_on_the_page():
    page = (ROOT / "docs" / "results.md").read_text()
    assert [row.key for row in rows() if f"| `{row.key}` |" not in page] == []
