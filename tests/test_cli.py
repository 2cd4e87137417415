"""The command line as a person uses it."""

import json
import os
import shutil
import subprocess
import sys
import zlib
from typing import get_args

import numpy as np
import pytest
from PIL import Image

import smallvit
from smallvit.augment.config import PRESETS, PresetName
from smallvit.models.baselines import BASELINES


def run(*args, **environment):
    return subprocess.run(
        [sys.executable, "-m", "smallvit", *map(str, args)],
        capture_output=True,
        text=True,
        env={"COLUMNS": "100", "PATH": "", "HOME": "/nonexistent", **environment},
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
    listed = {line.split()[0]: line.split()[1] for line in run("models").stdout.splitlines()}
    assert {*BASELINES, "resnet10t", "hct_s_p8"} <= {*listed}
    assert listed["cifar_resnet56"] == "0.85"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("models", "alexnet*"), "no model matches 'alexnet*'"),
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes of small images; one image stands in train and in test."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for name, base in (("cat", 60), ("dog", 180)):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(base - 50, base + 50, (24, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")
    shutil.copy(root / "train" / "cat" / "0.png", root / "test" / "cat" / "0.png")
    return root


def test_audit(folder, tmp_path):
    cache = {"SMALLVIT_CACHE": str(tmp_path / "cache")}
    report, sheet = tmp_path / "audit.json", tmp_path / "sheet.png"
    done = run("audit", folder, "--json", report, "--preview", sheet, **cache)
    assert done.returncode == 1, done.stderr
    assert "--allow leaks" in " ".join(done.stdout.split())
    result = json.loads(report.read_text())
    assert result["counts"]["test"] == {"cat": 4, "dog": 4}
    assert "leaks" in {finding["code"] for finding in result["findings"]}
    with Image.open(sheet) as image:
        assert image.width > 300

    allowed = run("audit", folder, "--allow", "leaks", "--json", "-", **cache)
    assert allowed.returncode == 0, allowed.stderr
    assert json.loads(allowed.stdout) == result


def test_the_preview_of_images_of_several_sizes_has_the_planned_size(folder, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    Image.new("RGB", (50, 70)).save(data / "train" / "cat" / "other.png")
    sizes = {}
    for name, words in {"planned": [], "given": ["--image-size", "8"]}.items():
        sheet = tmp_path / f"{name}.png"
        words += ["--preview", sheet, "--augment", "none", "--allow", "leaks,unreadable"]
        done = run("audit", data, *words, SMALLVIT_CACHE=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        with Image.open(sheet) as image:
            sizes[name] = image.size
    assert sizes["planned"] != sizes["given"]


def test_the_preview_shows_the_augmentation_of_training(tmp_path):
    random = np.random.default_rng(0)
    images = random.choice([100, 200], (40, 28, 28, 1)).astype(np.uint8)
    np.savez(tmp_path / "grey.npz", images=images, labels=np.arange(40) % 2)
    seen = {}
    for name, words in {"auto": [], "other": ["--augment", "spt_cifar"]}.items():
        sheet = tmp_path / f"{name}.png"
        words = ["audit", tmp_path / "grey.npz", "--preview", sheet, *words]
        done = run(*words, SMALLVIT_CACHE=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        with Image.open(sheet) as image:  # of the augmented image on the right of each row
            rows = image.convert("L").crop((image.width - 90, 50, image.width - 20, image.height))
            seen[name] = {colour for _, colour in rows.getcolors()}
    paper = 250
    # Grey thumbnails are moved and mirrored alone: their greys, and that of the padding, remain.
    assert len(seen["auto"] - {100, 200, paper}) <= 1
    assert len(seen["other"] - {100, 200, paper}) > 1


def test_files_that_cannot_be_written_are_refused_before_the_work(folder, tmp_path):
    cache = {"SMALLVIT_CACHE": str(tmp_path / "cache")}
    for option in ("--json", "--preview"):
        done = run("audit", folder, option, tmp_path / "absent" / "file", **cache)
        assert done.returncode == 2
        assert "is in a folder that does not exist: choose another name" in done.stderr
        assert not done.stdout


def test_audit_of_nothing_is_a_sentence(tmp_path):
    done = run("audit", tmp_path / "absent", SMALLVIT_CACHE=str(tmp_path))
    assert done.returncode == 2
    assert "there is no file, folder or dataset" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_pillow_says_of_a_huge_image_is_said_once(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", (20, 20)).save(tmp_path / "data" / name / "1.png")
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (10_000).to_bytes(4) * 2 + b"\x08\x02\0\0\0"
    check = zlib.crc32(header[12:]).to_bytes(4)
    (tmp_path / "data" / "cat" / "2.png").write_bytes(header + check + bytes(4) + b"IDAT")
    done = run("audit", tmp_path / "data", SMALLVIT_CACHE=str(tmp_path / "cache"))
    assert "89,000,000" in done.stdout
    assert "Warning" not in done.stderr


def test_cache(folder, tmp_path):
    cache = {"SMALLVIT_CACHE": str(tmp_path)}
    code = (
        "import sys; from smallvit import load_data; "
        "load_data(sys.argv[1], image_size=16).pixels('train')"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, env={**os.environ, **cache}
    )
    listed = run("cache", **cache).stdout
    assert "train" in listed
    assert "16×16" in listed
    assert "1 entry in" in listed
    (about,) = tmp_path.glob("*.json")
    about.write_text(json.dumps({**json.loads(about.read_text()), "shape": None}))
    assert "?×?" in run("cache", **cache).stdout
    assert "freed" in run("cache", "--clear", **cache).stdout
    assert "0 entries" in run("cache", **cache).stdout


def test_every_preset_of_augmentation_can_be_previewed():
    assert set(get_args(PresetName)) == set(PRESETS)


WAITING = """
import os, sys
import smallvit.cli
before = os.environ.get("GOMP_SPINCOUNT")
sys.argv = ["smallvit", "--version"]
try:
    smallvit.cli.main()
except SystemExit:
    pass
print(before, os.environ.get("GOMP_SPINCOUNT"), os.environ.get("KMP_BLOCKTIME"))
print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "None 2000 1"),
        ({"OMP_WAIT_POLICY": "active"}, "None None None"),
        ({"KMP_BLOCKTIME": "200"}, "None None 200"),
        ({"GOMP_SPINCOUNT": "5"}, "5 5 None"),
    ],
)
def test_threads_sleep_soon_while_they_wait(environment, expected):
    """Set by the command and not by the import, before torch is loaded, and never overruled."""
    done = subprocess.run(
        [sys.executable, "-c", WAITING],
        capture_output=True,
        text=True,
        env={"PATH": "", "HOME": "/nonexistent", **environment},
    )
    assert done.stdout.splitlines()[-2:] == [expected, "False"], done.stderr
