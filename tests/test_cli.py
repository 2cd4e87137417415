"""The command line as a person uses it."""

import subprocess
import sys

import pytest

import smallvit


def run(*args):
    return subprocess.run(
        [sys.executable, "-m", "smallvit", *args],
        capture_output=True,
        text=True,
        env={"COLUMNS": "100", "PATH": "", "HOME": "/nonexistent"},
    )


def test_version():
    assert run("--version").stdout.strip() == f"smallvit {smallvit.__version__}"


def test_models():
    done = run("models", "cct_7*")
    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][0] == "model"
    assert lines[1][:5] == ["cct_7_3x1", "3.76", "M", "32", "px"]
    assert len(lines) == 4
    assert run("-q", "models", "cct_7*").stdout == done.stdout


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("models", "resnet*"), "no model matches 'resnet*'"),
        (("modles",), "modles"),
        (("--loud",), "--loud"),
    ],
)
def test_bad_input_is_a_sentence(args, sentence):
    done = run(*args)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_no_arguments_gives_help():
    assert "models" in run().stdout
