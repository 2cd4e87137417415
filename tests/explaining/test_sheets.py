"""`smallvit explain`: sheets of real files from a real run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from smallvit.cli import app
from smallvit.evaluation.calibration import softmax
from smallvit.evaluation.measure import logits_of
from smallvit.explaining.probes import SAYS_EVEN
from smallvit.explaining.sheets import explain_files
from smallvit.inference import predict
from smallvit.models import create_model
from smallvit.runs import Run, RunConfig
from tests.untrained import sharpen

CLASSES = ("ash", "elm\x1b[31m", "oak")
SHAPE = {"num_classes": 3, "image_size": (16, 24), "in_channels": 3}


def make_run(folder: Path, name: str = "cct_2_3x2", **options: object) -> Run:
    """A run that was never trained."""
    data = {"classes": CLASSES, "image_size": (16, 24), "channels": 3, "fit": "letterbox"}
    info = {
        "data": data,
        "mean": [0.4, 0.5, 0.6],
        "std": [0.2, 0.25, 0.3],
        "temperature": 0.5,
        "model": {"name": name, **SHAPE, "options": options},
    }
    run = Run.create(folder, RunConfig(), info)
    torch.manual_seed(0)
    save_file(create_model(name, **SHAPE, **options).state_dict(), folder / "weights.safetensors")
    return run


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    (folder / "more").mkdir(parents=True)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (16, 24, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "one.png")
    Image.fromarray(pixels[..., 0]).save(folder / "more" / "one.png")  # grey, of the same name
    (folder / "empty.jpg").touch()
    return folder


def invoke(*args: object):
    return CliRunner().invoke(app, ["explain", *map(str, args)])


def test_sheets(tmp_path: Path, images: Path) -> None:
    run, out = make_run(tmp_path / "run"), tmp_path / "out"
    bad, grey, one = explain_files(run, images, out, device="cpu")
    assert [each.path for each in (bad, grey, one)] == [
        images / "empty.jpg",
        images / "more" / "one.png",
        images / "one.png",
    ]
    assert bad.error == "the file is empty"
    assert bad.sheet is None
    assert grey.sheet == out / "one-explained.png"
    assert one.sheet == out / "one-2-explained.png"

    pixels = np.asarray(Image.open(images / "one.png"))
    logits = logits_of(
        run.model(),
        pixels.transpose(2, 0, 1)[None],
        mean=run.card.mean,
        std=run.card.std,
        device="cpu",
    )
    probabilities = softmax(logits, 0.5)[0]
    assert one.predicted == CLASSES[probabilities.argmax()]
    assert one.probability == pytest.approx(probabilities.max(), abs=1e-4)

    sheet = np.asarray(Image.open(one.sheet))
    large = pixels.repeat(8, 0).repeat(8, 1)
    corners = np.argwhere((sheet == large[0, 0]).all(2))
    shown = [sheet[r : r + 128, c : c + 192] for r, c in corners]
    assert any(s.shape == large.shape and (s == large).all() for s in shown)  # as the model sees it
    # Three tiles above and two heads below, all of one size.
    assert sheet.shape[1] == 3 * (192 + 12) + 12
    assert sheet.shape[0] > 2 * 128


def test_sheets_are_not_explained_again(tmp_path: Path, images: Path) -> None:
    run, out = make_run(tmp_path / "run"), images / "explained"
    first = [each.path for each in explain_files(run, images, out, device="cpu")]
    assert len(first) == 3
    assert [each.path for each in explain_files(run, images, out, device="cpu")] == first
    assert len(list(out.iterdir())) == 2


def test_a_long_name_is_cut(tmp_path: Path, images: Path) -> None:
    run, stem = make_run(tmp_path / "run"), "ü" * 122
    (images / "one.png").rename(images / f"{stem}.png")
    (each,) = explain_files(run, images / f"{stem}.png", tmp_path / "out", device="cpu")
    assert each.sheet is not None
    assert each.sheet.is_file()
    assert stem.startswith(each.sheet.name.removesuffix("-explained.png"))


def test_attention_that_shows_no_place_stays_grey(tmp_path: Path, images: Path) -> None:
    """Of the sheets of a model that looks everywhere alike and of one that looks somewhere."""
    coloured = {}
    for factor in (0.0, 50.0):
        run = make_run(tmp_path / f"run {factor}")
        model = run.model()
        sharpen(model, factor)
        save_file(model.state_dict(), run.folder / "weights.safetensors")
        (each,) = explain_files(run, images / "one.png", tmp_path / f"out {factor}", device="cpu")
        assert each.silent == ("" if factor else SAYS_EVEN)
        done = invoke(run.folder, images / "one.png", "--out", tmp_path / "o", "--device", "cpu")
        assert (SAYS_EVEN in done.stdout) == (factor == 0)
        sheet = np.asarray(Image.open(each.sheet)).astype(int)
        rollout = sheet[52 : 52 + 128, 12 + 204 : 12 + 204 + 192]
        heads = sheet[52 + 165 : -40, 12:]
        coloured[factor] = [part.std(2).max() > 5 for part in (rollout, heads)]
    assert coloured == {0.0: [False, False], 50.0: [True, True]}


def test_explain_and_predict_see_the_same_files(tmp_path: Path, images: Path) -> None:
    """Nested, hidden, linked and unreadable ones, folders, patterns and files that are gone."""
    run = make_run(tmp_path / "run")
    image = images / "one.png"
    for name in ("more/deep/a.PNG", "more/.hidden.png", ".cache/b.png", "z.webp.png"):
        (images / name).parent.mkdir(parents=True, exist_ok=True)
        (images / name).write_bytes(image.read_bytes())
    (images / "notes.txt").touch()
    (images / "more" / "back").symlink_to(images)
    (tmp_path / "nothing").mkdir()
    paths = [images, images / "*.png", images / "gone.png", tmp_path / "nothing", "no*such"]
    explained = list(explain_files(run, paths, tmp_path / "out", device="cpu"))
    rows = list(predict(run, paths, device="cpu"))
    assert [(str(each.path), each.error, each.predicted) for each in explained] == [
        (row.path, row.error, "".join(row.classes[:1])) for row in rows
    ]
    assert [Path(row.path).relative_to(images) for row in rows[:5]] == [
        *map(Path, ("empty.jpg", "more/deep/a.PNG", "more/one.png", "one.png", "z.webp.png"))
    ]
    assert len(rows) == 5 + 2 + 3


def test_command(tmp_path: Path, images: Path) -> None:
    run, out = make_run(tmp_path / "run").folder, tmp_path / "out"
    files = images / "one.png", images / "empty.jpg", images / "gone.png"
    done = invoke(run, *files, "--out", out, "--device", "cpu", "--class", "oak")
    assert done.exit_code == 0, done.output
    assert "a token sees 13×13 of 16×24 pixels" in done.stdout
    assert "one.png: " in done.stdout
    assert "\x1b" not in done.stdout
    assert "empty.jpg: the file is empty" in done.stderr
    assert "gone.png: No such file" in done.stderr
    assert [path.name for path in out.iterdir()] == ["one-explained.png"]

    done = invoke(run, files[1], "--out", out, "--device", "cpu")
    assert done.exit_code == 2
    assert "no image could be read" in done.stderr
    done = invoke(run, files[0], "--out", out, "--class", "fir")
    assert "class is 'fir': run knows ash" in str(done.exception)
