"""The notebook of the examples runs from its first cell to its last."""

import ast
import json
from html import escape
from pathlib import Path
from typing import Any

from smallvit.runs import Run

NOTEBOOK = Path(__file__).parents[2] / "examples" / "folder_to_report.ipynb"


def run_cell(source: str, scope: dict[str, Any]) -> Any:
    """As a notebook does: the value of a last line that is an expression is shown."""
    *before, last = ast.parse(source).body
    shown = ast.Expression(last.value) if isinstance(last, ast.Expr) else None
    exec(compile(ast.Module(before if shown else [*before, last], []), "cell", "exec"), scope)
    return eval(compile(shown, "cell", "eval"), scope) if shown else None


def test_the_notebook(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DATA", str(source))
    monkeypatch.setenv("MINUTES", "0.1")
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code"] == [[]] * 6
    scope: dict[str, Any] = {}
    shown = [run_cell(text, scope) for text in code]
    tables = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(tables) == 2
    assert all(escape(reason) in tables[0] for reason in scope["planned"].reasons.values())
    assert scope["run"].evaluation().accuracy.percent in tables[1]
    assert Run.open(tmp_path / "out/run").finished
    assert (tmp_path / "out/run/report.html").is_file()
    assert (tmp_path / "out/which/page.html").is_file()
    assert "cannot tell" in capsys.readouterr().out
