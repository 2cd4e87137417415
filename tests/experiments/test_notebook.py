"""The notebook of the examples runs from its first cell to its last."""

import json
from pathlib import Path

from smallvit.runs import Run

NOTEBOOK = Path(__file__).parents[2] / "examples" / "folder_to_report.ipynb"


def test_the_notebook(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DATA", str(source))
    monkeypatch.setenv("MINUTES", "0.1")
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code"] == [[]] * 6
    scope: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), scope)
    assert Run.open(tmp_path / "out/run").finished
    assert (tmp_path / "out/run/report.html").is_file()
    assert (tmp_path / "out/which/page.html").is_file()
    assert "cannot tell" in capsys.readouterr().out
