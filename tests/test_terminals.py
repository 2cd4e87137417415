"""Terminals of 80 columns, without colours, and without letters beyond ASCII."""

import inspect
import os
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from smallvit.cli import app
from smallvit.cli.showing import renderables
from smallvit.cli.terminal import adapt_streams
from smallvit.reporting.sheet import Cell, Sheet, Table
from smallvit.text import counted
from tests.untrained import untrained

CLASSES = ("🦊 fox", "犬犬犬", "👨‍👩‍👧 family", "Löwe", "❤️ heart", "cafe\u0301", "plain", "🇩🇪")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose names have every width."""
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name in CLASSES:
        (folder / name).mkdir()
        for number in range(3):
            pixels = random.integers(0, 256, (24, 24, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number} ✨ {'a' * 30}.png")
            Image.fromarray(pixels).save(folder / name / f"copy {number}.png")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    record = {"classes": list(CLASSES[:4]), "image_size": [32, 32], "channels": 3, "fit": "crop"}
    return untrained(tmp_path_factory.mktemp("run") / "run", data=record).folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


def spoken(cache: str, *words: object, **environment: str) -> str:
    """What a command prints, in ASCII unless the environment says otherwise."""
    plain = {"PYTHONIOENCODING": "ascii", "COLUMNS": "80", "SMALLVIT_CACHE": cache}
    done = subprocess.run(
        [sys.executable, "-m", "smallvit", *map(str, words)],
        capture_output=True,
        env={**os.environ, **plain, **environment},
    )
    text = (done.stdout + done.stderr).decode(environment.get("PYTHONIOENCODING", "ascii"))
    assert done.returncode in (0, 1), text
    assert "Traceback" not in text
    return text


def width(line: str) -> int:
    """Columns that a line takes by Unicode's own tables."""
    marks = ("Mn", "Me", "Cf")
    signs = (sign for sign in line if unicodedata.category(sign) not in marks)
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in signs)


def rows(text: str, edge: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.startswith(edge))


def test_ascii_is_enough(cache: str, data: Path, run: Path) -> None:
    image = next((data / CLASSES[0]).iterdir())
    audit = spoken(cache, "audit", data)
    assert "L\\xf6we" in audit
    assert len({len(line) for line in rows(audit, "|")}) == 1
    assert all(len(line) <= 80 for line in audit.splitlines())
    predicted = spoken(cache, "predict", run, image)
    assert "\\u72ac\\u72ac\\u72ac" in predicted
    about = spoken(cache, "info", run)
    assert "32x32" in about
    assert " - " not in about
    assert "parameters" in spoken(cache, "models", "cct_2*")


def test_training_in_ascii(cache: str, data: Path, tmp_path: Path) -> None:
    tiny = ("model.name=vit_lite_2_p4", "model.options.dim=16", "model.options.num_heads=2")
    settings = (*tiny, "schedule.steps=1", "loop.batch_size=8", "loop.device=cpu")
    words = [word for setting in settings for word in ("--set", setting)]
    text = spoken(
        cache,
        "train",
        data,
        *words,
        "--image-size",
        "16",
        "--allow",
        "leaks",
        "--out",
        tmp_path / "run",
    )
    assert f"run folder {tmp_path / 'run'}" in text
    assert "95 % confidence interval" in text


def test_tables_of_runs_are_laid_out_for_the_stream(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sheet = Sheet(
        title="it",
        tables=(
            Table(
                title="rows",
                columns=("row", "− first"),
                rows=tuple(
                    tuple(Cell(text=t) for t in row) for row in (("犬犬犬", "−1.5"), ("plain", "–"))
                ),
            ),
        ),
        lead=("λ is 32×32",),
    )
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        console = Console(file=stream, width=80)
        for part in renderables(sheet, 80):
            console.print(part)
    heading, first, second, lead = (tmp_path / "out").read_text("ascii").splitlines()
    assert first.rstrip().endswith("-1.5")
    assert "\\u72ac\\u72ac\\u72ac" in first
    assert {len(line.rstrip()) for line in (heading, first, second)} == {len(heading.rstrip())}
    assert lead == "lambda is 32x32"


def test_wide_letters_and_emoji_keep_columns(cache: str, data: Path) -> None:
    audit = spoken(cache, "audit", data, PYTHONIOENCODING="utf-8")
    table = list(rows(audit, "│"))
    assert len(table) == len(CLASSES) + 1
    flag = [line for line in table if "🇩🇪" in line]  # two letters that some show as one sign
    assert len({width(line) for line in table if line not in flag}) == 1
    assert all(width(line) <= 80 for line in audit.splitlines())
    assert "remove what is not meant" in " ".join(audit.split())


COMMANDS = {each.name or each.callback.__name__: each for each in app.registered_commands}


@pytest.mark.parametrize("command", ["", *sorted(COMMANDS)])
def test_help_fits_80_columns_in_ascii(cache: str, command: str) -> None:
    text = spoken(cache, *([command] if command else []), "--help")
    assert {len(line) for line in rows(text, "|")} == {80}
    assert all(len(line) <= 80 for line in text.splitlines())
    # Lines of a docstring stay lines, and a longer one would be broken once more.
    described = inspect.getdoc(COMMANDS[command].callback) or "" if command else ""
    long = [line for part in described.split("\n\n")[1:] for line in part.splitlines()[:-1]]
    assert all(len(line) <= 78 for line in long)


def test_a_dumb_terminal_gets_no_commands(data: Path, tmp_path: Path) -> None:
    pty, termios, fcntl = (pytest.importorskip(name) for name in ("pty", "termios", "fcntl"))
    outputs = {}
    for kind in ("dumb", "xterm"):
        reader, writer = pty.openpty()
        fcntl.ioctl(writer, termios.TIOCSWINSZ, b"\x18\x00\x50\x00\x00\x00\x00\x00")  # 24 by 80
        environment = {**os.environ, "TERM": kind, "SMALLVIT_CACHE": str(tmp_path / kind)}
        environment.pop("COLUMNS", None)
        words = [sys.executable, "-m", "smallvit", "audit", str(data)]
        with subprocess.Popen(words, stdout=writer, stderr=writer, env=environment):
            os.close(writer)
            outputs[kind] = _all_of(reader).decode()
        os.close(reader)
    assert "\x1b" not in outputs["dumb"]
    assert all(width(line) <= 80 for line in outputs["dumb"].splitlines())
    assert "\x1b[1m" in outputs["xterm"]  # a check that the first can fail
    assert "reading images" in outputs["xterm"]
    assert "48/48" in outputs["xterm"]


def _all_of(reader: int) -> bytes:
    parts = []
    while True:
        try:
            part = os.read(reader, 65_536)
        except OSError:  # of a terminal that nobody writes to any more
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)


def test_streams_take_any_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        adapt_streams()
        stream.write("32×32 · a → b … 95 % λ 犬 \udcff é")
    text = (tmp_path / "out").read_text("ascii")
    assert text == "32x32 - a -> b ... 95 % lambda \\u72ac \\xff \\xe9"


def test_one_and_many() -> None:
    assert counted(1, "step") == "1 step"
    assert counted(2, "step") == "2 steps"
    assert counted(1_000_000, "step") == "1,000,000 steps"
    assert counted(1.0, "minute") == "1 minute"
    assert counted(0.5, "minute") == "0.5 minutes"
    assert counted(1, "entry", "entries") == "1 entry"
