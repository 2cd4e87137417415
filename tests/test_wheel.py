"""The wheel, built here and installed in a clean environment outside the checkout, works."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UV = Path(sys.executable).parent / "uv"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    (path,) = out.glob("*.whl")
    return path


def test_contents(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = {str(path.relative_to(ROOT)) for path in (ROOT / "smallvit").rglob("*.py")}
    assert tracked <= names
    pages = (ROOT / "smallvit" / "reporting" / "pages").iterdir()
    assert {str(path.relative_to(ROOT)) for path in pages} <= names
    bundled = ("fashion-mini.npz", "CREDIT.md", "DejaVuSans.ttf", "LICENSE_DEJAVU")
    assert {"smallvit/py.typed", *(f"smallvit/data/bundled/{name}" for name in bundled)} <= names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks"))]


@pytest.mark.slow
def test_in_a_clean_environment(wheel, tmp_path):
    if not UV.exists():
        pytest.skip("needs uv in the environment; `make setup` puts it there")
    place = tmp_path / "venv"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for command in (
        [UV, "venv", "--quiet", "--python", sys.executable, place],
        [UV, "pip", "install", "--quiet", "--python", place / "bin" / "python", wheel],
    ):
        subprocess.run(command, check=True, env=environment)
    listed = subprocess.run(
        [place / "bin" / "smallvit", "models", "cct_7_3x1"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**environment, "COLUMNS": "100"},
    )
    assert "3.76 M" in listed.stdout
    code = (
        "import smallvit, torch\n"
        "model = smallvit.create_model('vit_9_p4+spt+lsa', num_classes=3, image_size=32)\n"
        "assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)\n"
        "print(smallvit.__file__)"
    )
    ran = subprocess.run(
        [place / "bin" / "python", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert str(place) in ran.stdout
    shutil.rmtree(place)
