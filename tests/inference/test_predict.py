"""Images to rows: the same predictions as evaluate, in order, whatever the files are."""

import csv
import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from smallvit.cli import app, main
from smallvit.data import load_data, read_image
from smallvit.data.images import UnreadableError
from smallvit.evaluation import logits_of
from smallvit.formats import format_of
from smallvit.inference import COLUMNS, Column, Predictor, Row, predict, write_rows
from smallvit.inference.rows import line
from smallvit.runs import Run
from tests.untrained import CLASSES, mutated, photo, save_photos, untrained


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_photos(tmp_path_factory.mktemp("photos"), 24)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return untrained(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def predictor(run: Run) -> Predictor:
    return Predictor.open(run.folder, "cpu")


def test_the_predictions_are_those_of_the_cached_path(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMALLVIT_CACHE", str(tmp_path / "cache"))
    for channels, fit in ((1, "crop"), (3, "letterbox"), (3, "stretch")):
        run = untrained(tmp_path / f"{channels}{fit}", channels=channels, fit=fit)
        data = load_data(
            photos, image_size=run.image_size, fit=fit, channels=channels, val=0.0, test=0.0
        )
        files = [photos / name for name in data.split("train").names]
        predictor = Predictor.open(run, "cpu")
        images = [read_image(file) for file in files]
        for flip in (False, True):
            expected = logits_of(
                run.model(), data.pixels("train"), mean=run.card.mean, std=run.card.std, flip=flip
            )
            np.testing.assert_allclose(
                predictor.logits(images, flip=flip), expected, rtol=1e-4, atol=2e-5
            )
        scaled = np.exp(expected / run.card.temperature)
        shares = predictor.predict(images, flip=True)
        np.testing.assert_allclose(shares, scaled / scaled.sum(1, keepdims=True), atol=1e-5)
        assert len(set(shares.argmax(1))) > 1
        assert shares.dtype == np.float32


def test_what_a_predictor_holds(predictor: Predictor, run: Run) -> None:
    assert predictor.classes == CLASSES
    assert replace(predictor.card, config={}) == replace(run.card, config={})
    assert predictor.predict([]).shape == (0, 4)
    assert Predictor.open(predictor) is predictor
    grey = np.full((9, 7, 1), 40, np.uint8)
    np.testing.assert_array_equal(
        predictor.logits([grey]), predictor.logits([np.repeat(grey, 3, 2)])
    )
    with pytest.raises(UnreadableError, match="5 channels where 3 are expected"):
        predictor.logits([np.zeros((4, 4, 5), np.uint8)])


def test_files_folders_patterns_and_lists_in_order(
    predictor: Predictor, photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loose = photos / "ash" / "0000.jpg"
    listed = tmp_path / "list.txt"
    listed.write_bytes(f"{photos}/oak/0003.jpg\r\n\n{photos}/fir/0002.jpg\n".encode())
    with listed.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        rows = list(predict(predictor, [loose, f"{photos}/f*/*.jpg", photos, "-"], top=2))
    paths = [row.path for row in rows]
    fir = sorted(map(str, photos.glob("fir/*.jpg")))
    folders = [str(path) for name in sorted(CLASSES) for path in sorted(photos.glob(f"{name}/*"))]
    assert paths == [str(loose), *fir, *folders, f"{photos}/oak/0003.jpg", f"{photos}/fir/0002.jpg"]
    assert all(len(row.classes) == 2 and not row.error for row in rows)
    single = predictor.predict([read_image(loose)])[0]
    assert rows[0].classes[0] == CLASSES[single.argmax()]
    np.testing.assert_allclose(rows[0].probabilities, np.sort(single)[::-1][:2], atol=1e-6)
    sizes = [len(list(predict(predictor, photos, batch_size=size))) for size in (1, 7, 100)]
    assert sizes == [24, 24, 24]


def test_what_cannot_be_read_is_a_row(predictor: Predictor, tmp_path: Path) -> None:
    good = tmp_path / "good.png"
    photo(1).save(good)
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow" / ".hidden.jpg").write_bytes(good.read_bytes())
    os.mkfifo(tmp_path / "pipe.jpg")
    names = ["text.jpg", "good.png", "gone.jpg", "empty.jpg", "hollow", "pipe.jpg", "*.bmp", "a\0b"]
    rows = list(predict(predictor, [tmp_path / name for name in names], batch_size=2))
    assert [Path(row.path).name for row in rows] == names
    errors = [row.error for row in rows]
    expected = ["none of JPEG", "", "No such file", "empty", "holds no images"]
    expected += ["not a regular file", "no file matches this pattern", "null"]
    for error, part in zip(errors, expected, strict=True):
        assert part in error
        assert bool(error) == bool(part)
    assert rows[1].classes
    assert not rows[0].classes


def test_links_back_are_not_followed_for_ever(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    photo(1).save(tmp_path / "a" / "b" / "x.png")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a" / "self")
    assert [row.path for row in predict(predictor, tmp_path)] == [f"{tmp_path}/a/b/x.png"]


def test_an_endless_list_is_read_only_as_far_as_it_is_used(
    predictor: Predictor, photos: Path
) -> None:
    drawn = 0

    def endless() -> Iterator[Path]:
        nonlocal drawn
        for path in itertools.cycle(sorted(photos.glob("*/*.jpg"))):
            drawn += 1
            yield path

    rows = predict(predictor, endless(), batch_size=4)
    for _ in range(40):
        assert not next(rows).error
    rows.close()
    assert drawn < 40 + 4 + 4 * 2 * 64


def test_bad_arguments_are_refused_at_once(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="top is 0: allowed is 1 or more"):
        predict(run, [], top=0)
    with pytest.raises(ValueError, match="batch_size is 0"):
        predict(run, [], batch_size=0)
    with pytest.raises(ValueError, match="device is 'tpu': this machine has"):
        predict(run, [], device="tpu")
    for name, message in (("gone.onnx", "does not exist"), ("gone", "is not a run folder")):
        with pytest.raises(ValueError, match=message):
            Predictor.open(tmp_path / name)
    for name in ("a.txt", "a.onnx", "a.pt2", "a.safetensors"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        message = "is not a model" if name == "a.txt" else "is damaged or not an? "
        with pytest.raises(ValueError, match=message):
            Predictor.open(tmp_path / name, trust=True)


def test_no_file_appears_when_rows_fail_on_the_way(tmp_path: Path) -> None:
    def broken() -> Iterator[Row]:
        yield Row(path="a", classes=("x",), probabilities=(1.0,))
        raise RuntimeError("in the middle")

    for kind in ("csv", "json", "jsonl", "parquet"):
        with pytest.raises(RuntimeError, match="in the middle"):
            write_rows(broken(), tmp_path / f"out.{kind}", top=1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"out\.xls has no known format: name it \.csv"):
        write_rows([], tmp_path / "out.xls", top=1)
    with pytest.raises(OSError, match="is in a folder that does not exist"):
        write_rows([], tmp_path / "no" / "out.csv", top=1)


ROWS = [
    Row(path="=1+1.png", classes=("=elm", "-1"), probabilities=(0.75, 0.25)),
    Row(path='a "quoted",\nname.png', classes=("fir", "oak"), probabilities=(1.0, 0.0)),
    Row(path=os.fsdecode(b"\xff.png"), error="the file is empty"),
]


def test_csv_is_safe_in_a_spreadsheet(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert write_rows(iter(ROWS), out, top=2) == (3, 1)
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["path", "error", "class_1", "probability_1", "class_2", "probability_2"],
        ["./=1+1.png", "", "'=elm", "0.750000", "-1", "0.250000"],
        ['a "quoted",\nname.png', "", "fir", "1.000000", "oak", "0.000000"],
        ["\\xff.png", "the file is empty", "", "", "", ""],
    ]


def test_json_and_parquet(tmp_path: Path) -> None:
    from pyarrow import parquet

    for kind in ("json", "jsonl", "parquet"):
        assert write_rows(iter(ROWS), tmp_path / f"out.{kind}", top=2) == (3, 1)
        assert write_rows([], tmp_path / f"none.{kind}", top=2) == (0, 0)
    array = json.loads((tmp_path / "out.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert array == lines
    assert json.loads((tmp_path / "none.json").read_text()) == []
    assert array[0]["predictions"][0] == {"class": "=elm", "probability": 0.75}
    assert array[2] == {"path": "\\xff.png", "error": "the file is empty", "predictions": []}
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert table[0]["class_1"] == "=elm"
    assert table[0]["probability_2"] == 0.25
    assert table[2]["class_1"] is None
    assert parquet.read_table(tmp_path / "none.parquet").num_rows == 0


def test_a_column_is_one_row_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import parquet, types

    monkeypatch.setattr(
        "smallvit.inference.rows.COLUMNS",
        [
            *COLUMNS,
            Column(name="shift", type=int, value=lambda row: -len(row.path)),
            Column(
                name="odds",
                type=float,
                value=lambda row: [p / (1 - p + 1e-3) for p in row.probabilities],
                ranked=True,
                text="{:.1f} to 1".format,
            ),
        ],
    )
    for kind in ("csv", "json", "jsonl", "parquet"):
        write_rows(iter(ROWS), tmp_path / f"out.{kind}", top=2)
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert list(table[0])[2:6] == ["shift", "class_1", "probability_1", "odds_1"]
    assert (table[0]["shift"], table[0]["odds_1"]) == ("-8", "2.988048")
    assert (table[2]["shift"], table[2]["odds_1"]) == ("-5", "")
    expected = {"class": "=elm", "probability": 0.75, "odds": 2.988048}
    array = json.loads((tmp_path / "out.json").read_text())
    lines = [json.loads(text) for text in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert array == lines
    assert (array[0]["shift"], array[0]["predictions"][0]) == (-8, expected)
    columns = parquet.read_table(tmp_path / "out.parquet")
    assert types.is_int64(columns.schema.field("shift").type)
    assert types.is_float32(columns.schema.field("odds_2").type)
    assert columns["shift"].to_pylist() == [-8, -20, -5]
    assert line(ROWS[0]) == "=1+1.png\t-8\t=elm 75.0 % 3.0 to 1\t-1 25.0 % 0.3 to 1"
    assert line(ROWS[2]) == "\\xff.png\terror: the file is empty\t-5"


# As errors the decoders' warnings would end most attempts before anything could go wrong.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 1060), marks=pytest.mark.slow)], ids=len
)
def test_mutated_files_never_crash(predictor: Predictor, tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        (tmp_path / f"{seed:05d}.jpg").write_bytes(mutated(seed))
    rows = list(predict(predictor, tmp_path, top=1))
    assert len(rows) == len(seeds)
    failed = sum(bool(row.error) for row in rows)
    assert 0 < failed < len(rows)
    assert all(np.isfinite(row.probabilities).all() for row in rows)


def test_the_command(run: Run, photos: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.touch()
    out = tmp_path / "out.csv"
    words = ["predict", run.folder, photos / "ash", broken, "-o", out, "--top", 9, "--flip"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [f"wrote 7 rows to {out}", "1 of 7 could not be predicted"]
    assert "class_4" in out.read_text()
    assert "class_5" not in out.read_text()
    done = CliRunner().invoke(
        app, ["predict", str(run.folder), "-"], input=f"{photos}/ash/0000.jpg\n"
    )
    assert done.exit_code == 0
    path, first, *_ = done.stdout.strip().split("\t")
    assert path == f"{photos}/ash/0000.jpg"
    assert first.endswith(" %")
    done = CliRunner().invoke(app, ["predict", str(run.folder), str(broken)])
    assert done.exit_code == 1
    assert done.stdout == f"{broken}\terror: the file is empty\n"


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_images_before_the_model_are_told_the_right_command(
    run: Run, photos: Path, command: str
) -> None:
    files = [f"{photos}/ash/000{number}.jpg" for number in range(4)]
    for images, shown in ((files[:1], files[:1]), (files, ["IMAGES"]), ([photos], [photos])):
        words = [command, *map(str, images), str(run.folder)]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2
        right = shlex.join(["smallvit", command, str(run.folder), *map(str, shown)])
        assert done.stderr.endswith(f"the model comes first: {right}\n")


def test_data_before_the_run_is_told_the_right_command(run: Run, photos: Path) -> None:
    done = CliRunner().invoke(app, ["evaluate", str(photos), str(run.folder)])
    assert done.exit_code == 2
    right = shlex.join(["smallvit", "evaluate", str(run.folder), str(photos)])
    assert done.stderr.endswith(f"the run comes first: {right}\n")


def test_bad_input_to_the_command_is_a_sentence(run: Run, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "smallvit", "predict", run.folder, ".", "-o", tmp_path / "out.doc"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("smallvit: ")
    assert "has no known format" in done.stderr


def test_info_of_a_run(run: Run) -> None:
    done = CliRunner().invoke(app, ["info", str(run.folder)])
    assert done.exit_code == 0, done.output
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert lines["model"].startswith("cct_2_3x2, ")
    assert lines["classes"] == "4: ash, =elm, fir, oak"
    assert lines["images"] == "32×32, colour, letterbox"
    assert lines["accuracy"] == "not measured"
    assert lines["temperature"] == "1.7"
    assert lines["steps"] == "7"
    weights = format_of(run.folder / "weights.safetensors").code
    with pytest.raises(ValueError, match="was not exported by smallvit"):
        weights.read_card(run.folder / "weights.safetensors")


def test_sixteen_bit_turned_and_transparent_files(predictor: Predictor, tmp_path: Path) -> None:
    pixels = np.asarray(photo(3).convert("L"))
    Image.fromarray(pixels.astype(np.uint16) * 257).save(tmp_path / "a.png")
    Image.fromarray(pixels).save(tmp_path / "b.png")
    turned = Image.fromarray(np.rot90(pixels))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "c.png", exif=exif)
    first, second, third = predict(predictor, tmp_path)
    assert first.probabilities == second.probabilities == third.probabilities


def test_a_missing_package_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "a.onnx").touch()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(sys, "argv", ["smallvit", "predict", str(tmp_path / "a.onnx"), "a.jpg"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "needs onnxruntime: pip install '.[onnx]'" in capsys.readouterr().err
