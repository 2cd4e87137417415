"""A little of the long test: `make soak` has the full counts, and docs/reliability.md its table."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.fuzz import soak_fuzz
from tests.soak.images import soak_images
from tests.soak.result import Result, is_flat

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_mutated_images(tmp_path: Path) -> None:
    result = soak_images(150, tmp_path, seed=1)
    assert result.broken == []
    refused = int(re.findall(r"(\d+) refused", result.note)[0])
    assert 20 < refused < 140  # some are decoded, some are not


def test_damaged_files(tmp_path: Path) -> None:
    result = soak_fuzz(30, tmp_path)  # two of each kind
    assert result.broken == []
    assert "cache entries" in result.note


def test_breaks_are_counted_and_growth_is_seen() -> None:
    result = Result()
    result.expect(True, "fine")
    result.expect(False, "broken")
    assert result.broken == ["broken"]
    assert is_flat([500, 700, 720])
    assert not is_flat([500, 700, 760])


@pytest.mark.slow
@pytest.mark.parametrize(("part", "count"), [("kills", 8), ("requests", 300), ("overload", 300)])
def test_parts_as_processes(part: str, count: int) -> None:
    words = [sys.executable, str(ROOT / "tools" / "soak.py"), part, "--count", str(count)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert int(row.split("|")[2].replace(",", "")) >= count
