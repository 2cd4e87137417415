"""A metric is one row of one table: a made-up one appears everywhere without another change."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score
from typer.testing import CliRunner

from smallvit.cli import app
from smallvit.evaluation import METRICS, Evaluation, Metric
from smallvit.evaluation.metrics import Draw
from smallvit.runs import Run
from smallvit.training.folds import summarise
from tests.reporting.conftest import Page


def kappa(draw: Draw) -> float:
    """Cohen's kappa: the agreement of truth and prediction above that of chance."""
    counts, total = draw.tally, draw.weights.sum()
    chance = counts.support @ counts.predicted / total**2
    return float((counts.hits.sum() / total - chance) / (1 - chance))


KAPPA = Metric(title="Cohen's kappa", meaning="agreement above chance", value=kappa, shown="number")


@pytest.fixture
def metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "kappa", KAPPA)


def invoke(*args: object) -> str:
    done = CliRunner().invoke(app, [str(each) for each in args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.usefixtures("metric")
def test_a_new_metric_is_shown_everywhere(run: Run, tmp_path: Path) -> None:
    folders = [shutil.copytree(run.folder, tmp_path / f"fold-{name}") for name in (0, 1)]
    # What the training wrote knows nothing of the new metric and is shown without it.
    before = Run.open(folders[1]).evaluation()
    assert before is not None
    assert "kappa" not in before.metrics
    invoke("report", folders[1], "--device", "cpu")
    page = Page((folders[1] / "report.html").read_text(encoding="utf-8"))
    assert list(page.metrics) == [name for name in METRICS if name not in ("top5", "kappa")]

    printed = invoke("evaluate", folders[0], "--device", "cpu")
    evaluation = Evaluation.from_json((folders[0] / "evaluation.json").read_text())
    assert evaluation.predictions is not None
    estimate = evaluation.kappa
    labels = evaluation.predictions.truth, evaluation.predictions.predicted
    assert estimate.value == pytest.approx(cohen_kappa_score(*map(np.array, labels)))
    assert estimate.low < estimate.value < estimate.high

    plain = json.loads(invoke("evaluate", folders[0], "--json", "-", "--device", "cpu"))
    assert plain["kappa"] == vars(estimate)
    assert ["Cohen's kappa", estimate.number, "agreement above chance"] in [
        re.split("  +", line) for line in printed.splitlines()
    ]

    invoke("report", folders[0], "--device", "cpu")
    page = Page((folders[0] / "report.html").read_text(encoding="utf-8"))
    assert page.metrics["kappa"] == [estimate.value, estimate.low, estimate.high]
    assert "Cohen's kappa" in page.words

    both = tmp_path / "both.html"
    invoke("report", *folders, "-o", both)
    page = Page(both.read_text(encoding="utf-8"))
    assert page.metrics["kappa"] == [estimate.value, estimate.low, estimate.high]  # and one dash
    assert len(page.metrics["accuracy"]) == 6

    Run.open(folders[1]).save_evaluation(evaluation)
    assert summarise(tmp_path)["kappa_by_fold"] == [estimate.value] * 2
