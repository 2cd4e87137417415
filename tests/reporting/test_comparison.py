"""The page of several runs."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from smallvit.evaluation import Evaluation, measure
from smallvit.reporting import report
from smallvit.reporting.comparing import config_differences, judge, points, unique_names
from smallvit.reporting.facts import RunFacts
from smallvit.reporting.report import comparison_page
from smallvit.runs import Run
from smallvit.training.folds import summarise
from tests.reporting.conftest import Page
from tests.reporting.test_report import check_alone, check_readable

Read = Callable[[Path], Page]


def evaluated(right: np.ndarray, prefix: str = "") -> Evaluation:
    """Of three classes, right where requested."""
    labels = np.arange(len(right)) % 3
    logits = np.eye(3, dtype=np.float32)[np.where(right, labels, (labels + 1) % 3)]
    names = [f"{prefix}{number}.png" for number in range(len(right))]
    return measure(logits, labels, ("ash", "elm", "fir"), split="test", names=names, replicates=20)


def facts_of(run: Run, name: str, found: Evaluation | None, **changes: object) -> RunFacts:
    config = run.config.changed(dict(changes))
    changed = replace(run, folder=run.folder.parent / name, config=config)
    return RunFacts(run=changed, log=tuple(run.log()), evaluation=found)


@pytest.fixture(scope="module")
def better() -> tuple[Evaluation, Evaluation]:
    one, two = np.ones(300, bool), np.ones(300, bool)
    one[:60], two[50:70] = False, False
    return evaluated(one), evaluated(two)


def test_a_clear_difference(run: Run, better: tuple[Evaluation, Evaluation]) -> None:
    facts = [facts_of(run, "one", better[0]), facts_of(run, "two", better[1], seed=7)]
    page = Page(comparison_page(facts))
    check_alone(page)
    check_readable(page)
    assert "two predicts 40 more of the 300 test images right than one: +13.3 points" in page.words
    assert "50 are predicted right by two alone, 10 by one alone" in page.words
    assert "the difference is larger than chance" in page.words
    (verdict,) = judge(("one", "two"), facts)
    assert verdict.p == pytest.approx(binomtest(10, 60).pvalue)
    rows = [values for _, cells, values in page.rows if cells[:1] == ["one"]]
    assert rows[0][:3] == [getattr(better[0].accuracy, name) for name in ("value", "low", "high")]
    assert "seed 0 7" in page.words


def test_chance(run: Run) -> None:
    one, two = np.ones(100, bool), np.ones(100, bool)
    one[:6], two[3:8] = False, False
    facts = [facts_of(run, "one", evaluated(one)), facts_of(run, "two", evaluated(two))]
    (verdict,) = judge(("one", "two"), facts)
    assert verdict.p == 1.0
    assert "do not show which of the two is better" in verdict.sentence
    assert "The configs are the same." in Page(comparison_page(facts)).words
    (same,) = judge(("one", "two"), [facts[0], facts[0]])
    assert "predict the same of the 100 test images right" in same.sentence
    two[8], one[:1] = False, False
    (even,) = judge(("one", "two"), [facts[0], facts_of(run, "two", evaluated(two))])
    assert "as many of the 100 test images right as one" in even.sentence
    assert "each predicts 3 right that the other does not" in even.sentence


def test_several_runs_at_once(run: Run, better: tuple[Evaluation, Evaluation]) -> None:
    facts = [
        facts_of(run, name, found) for name, found in zip("abc", (*better, better[1]), strict=True)
    ]
    first, second = judge("abc", facts)
    assert first.p == second.p == pytest.approx(2 * binomtest(10, 60).pvalue)
    assert "corrected after Holm" in Page(comparison_page(facts)).words


def test_other_images_are_not_compared_one_by_one(
    run: Run, better: tuple[Evaluation, Evaluation]
) -> None:
    other = evaluated(np.ones(300, bool), "other ")
    facts = [
        facts_of(run, "one", better[0]),
        facts_of(run, "two", other),
        facts_of(run, "three", None),
    ]
    page = Page(comparison_page(facts))
    check_alone(page)
    assert "two and one were tested on different images" in page.words
    assert "three cannot be compared with one: three has no evaluation" in page.words
    assert "no evaluation" in page.words


def test_runs_on_disk(run: Run, tmp_path: Path, read: Read) -> None:
    copies = [shutil.copytree(run.folder, tmp_path / name / "run") for name in ("a", "<b>")]
    path = report(copies)
    assert path == tmp_path / "a" / "comparison.html"
    page = read(path)
    check_alone(page)
    check_readable(page)
    assert {"a/run", "<b>/run"} <= set(page.text["bdi"])
    assert page.html.count("<polyline points") == 2 * 2 * 2  # lines and legends, two charts


def test_folds(run: Run, tmp_path: Path, read: Read) -> None:
    whole = tmp_path / "whole"
    tested = []
    for number, wrong in enumerate((4, 10, 7)):
        folder = shutil.copytree(run.folder, whole / f"fold-{number}")
        right = np.arange(30) >= wrong
        tested.append(evaluated(right, f"{number}/"))
        Run.open(folder).save_evaluation(tested[-1])
    summary = summarise(whole)
    path = report(whole)
    assert path == whole / "comparison.html"
    page = read(path)
    check_alone(page)
    assert "3 folds of one run" in page.words
    assert f"{100 * 69 / 90:.1f}\u00a0%" in page.words
    assert {str(value) for value in summary["accuracy"].values()} <= {
        data["value"] for data in page.all("data")
    }
    assert f"{100 * summary['accuracy_std']:.1f} points" in page.words
    assert "p:" not in page.words


def test_small_parts(run: Run) -> None:
    assert config_differences([{"a": {"b": 1e-3}, "c": 2}, {"a": {"b": 2.0}, "c": 2}]) == (
        ("a.b", ("0.001", "2")),
    )
    plans = [{"schedule": {"steps": 2, "plans": [[0, 2]]}}, {"schedule": {"steps": 2, "plans": []}}]
    assert config_differences(plans) == ()
    assert config_differences([{"a": {"x": 1}}, {"a": {}}]) == (("a.x", ("1", "—")),)
    assert [points(value) for value in (0.0123, -0.2, 0.0001, -0.0001)] == [
        *("+1.2", "−20.0", "0.0", "0.0"),
    ]
    same = [facts_of(run, "x/run", None), facts_of(run, "y/run", None)]
    assert unique_names(same) == ("x/run", "y/run")
