"""docs/results.md is made from results/*.json."""

import importlib.util
from pathlib import Path

from smallvit.evaluation import Estimate
from smallvit.experiments.papers import rows
from smallvit.experiments.results import (
    CurveOfModel,
    CurvePoint,
    CurveResult,
    read_results,
    write_curve,
)
from smallvit.runs.config import RunConfig

ROOT = Path(__file__).parents[2]


def maker():
    spec = importlib.util.spec_from_file_location("results", ROOT / "tools" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_up_to_date():
    assert (ROOT / "docs" / "results.md").read_text() == maker().page(), "run `make docs`"


def test_figures_are_up_to_date():
    made = maker()
    for path, figure in made.figures().items():
        assert figure.read_text() == made.figure_svg(made.figure_of(made.read_curve(path)))


def test_curves_become_a_figure_and_a_table(tmp_path, monkeypatch):
    made = maker()
    points = [
        CurvePoint(images=n, accuracy=Estimate(value=a, low=a - 0.1, high=a + 0.1), accuracies=each)
        for n, a, each in ((500, 0.5, (0.49, 0.51)), (50_000, 0.9, (0.9,)))
    ]
    models = (
        CurveOfModel(model="cct_7_3x1", points=tuple(points), answer="cct_7_3x1: more help."),
        CurveOfModel(model="resnet18", points=tuple(points[1:])),
    )
    result = CurveResult(
        title="cifar10", data="cifar10", budget="9 steps", models=models, command="smallvit curve"
    )
    write_curve(tmp_path / "cifar10.json", result)
    monkeypatch.setattr(made, "CURVES", tmp_path)
    lines = made.curves().splitlines()
    assert "| training images | 500 | 50,000 |" in lines
    assert "| `cct_7_3x1` | 50.0 ± 1.4 | 90.0 (80.0–100.0) |" in lines
    assert "| `resnet18` | – | 90.0 (80.0–100.0) |" in lines
    assert "- cct_7_3x1: more help." in lines
    assert "![Accuracy against training images](assets/curve-cifar10.svg)" in lines


def test_the_repository_keeps_results_as_data():
    results = read_results(ROOT / "results")
    assert {result.row for result in results if result.row} <= {row.key for row in rows()}
    found = {result.row or result.title: result for result in results}
    # Older recipes under the rows' names: the rows themselves are to be run with those of today.
    assert round(100 * found["cifar100/sl-vit before f39076e"].mean, 1) == 76.2
    assert round(100 * found["cifar100/cct-7-3x1 before f39076e"].mean, 1) == 80.5
    seen = {row.key: row.images_seen for row in rows()}
    for result in results:
        assert result.row is None or result.images_seen == seen[result.row]
        assert result.trainings[0].curve[-1]["step"] > 0
        if result.config:
            assert RunConfig.from_dict(result.config).recipe == result.recipe


def test_every_row_of_the_papers_is_on_the_page():
    page = (ROOT / "docs" / "results.md").read_text()
    assert [row.key for row in rows() if f"| `{row.key}` |" not in page] == []
