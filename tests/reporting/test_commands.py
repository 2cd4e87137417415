"""`smallvit evaluate` and `smallvit report` as a person uses them."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smallvit.cli import app
from smallvit.evaluation import Evaluation
from smallvit.inference.evaluate import evaluate
from smallvit.runs import Run
from tests.reporting.conftest import Page, write_npz
from tests.reporting.test_report import check_numbers


def invoke(*args: object) -> str:
    done = CliRunner().invoke(app, [str(each) for each in args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def folder(run: Run, tmp_path: Path) -> Path:
    copy = shutil.copytree(run.folder, tmp_path / "run")
    (copy / "evaluation.json").unlink()
    return copy


def test_evaluate(folder: Path) -> None:
    before = sorted(folder.iterdir())
    expected = evaluate(folder, device="cpu")
    printed = invoke("evaluate", folder, "--device", "cpu")
    assert printed == expected.describe() + "\n"
    kept = (folder / "evaluation.json").read_text()
    assert Evaluation.from_json(kept) == expected
    assert sorted(folder.iterdir()) == sorted([*before, folder / "evaluation.json"])


def test_evaluate_writes_nothing_else(folder: Path, tmp_path: Path) -> None:
    other = write_npz(tmp_path / "other.npz", ("ash", "elm", "fir"), {"test": 4, "train": 2})
    before = {path: path.read_bytes() for path in folder.iterdir()}
    found = json.loads(invoke("evaluate", folder, other, "--json", "-", "--device", "cpu"))
    assert (found["split"], found["count"]) == ("test", 12)
    out = tmp_path / "numbers.json"
    printed = invoke("evaluate", folder, "--split", "val", "--json", out, "--device", "cpu")
    assert printed.startswith("val: 18 images of 3 classes")
    assert Evaluation.from_json(out.read_text()) == evaluate(folder, split="val", device="cpu")
    invoke("evaluate", folder, "--flip", "--json", out, "--device", "cpu")
    assert Evaluation.from_json(out.read_text()).flip
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_evaluate_refuses_a_file_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    before = sorted(folder.iterdir())
    words = ["evaluate", str(folder), "--json", str(tmp_path / "absent" / "numbers.json")]
    refused = CliRunner().invoke(app, words).exception
    assert "is in a folder that does not exist: choose another name" in str(refused)
    assert sorted(folder.iterdir()) == before  # nothing was computed


def test_report(folder: Path, tmp_path: Path) -> None:
    assert invoke("report", folder, "--device", "cpu") == f"wrote {folder / 'report.html'}\n"
    invoke("evaluate", folder, "--device", "cpu")
    invoke("report", folder, "--device", "cpu")
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    check_numbers(page, evaluate(folder, device="cpu"))
    out = tmp_path / "both.html"
    second = shutil.copytree(folder, tmp_path / "second")
    assert invoke("report", folder, second, "-o", out) == f"wrote {out}\n"
    assert "2 runs compared" in out.read_text()


def test_bad_requests_are_sentences(tmp_path: Path) -> None:
    for command in ("evaluate", "report"):
        with pytest.raises(ValueError, match="run folder"):
            invoke(command, tmp_path)
