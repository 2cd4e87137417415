"""What run folders say while they are written, by whomever."""

import json
import os
import tempfile
import tracemalloc
from dataclasses import asdict
from pathlib import Path

import pytest

from smallvit.runs.places import locked
from smallvit.training import train
from smallvit.watching.folders import MOST_RUNS, Folders, thinned
from smallvit.watching.reading import read_plain
from tests.data.test_bad_data import unprivileged
from tests.training.makers import arrays, tiny
from tests.watching.conftest import INFO, log_steps, write_run


def only(root: Path, now: float = 0.0):
    (run,) = Folders(root).listing(now).runs.values()
    return run


def test_validation_beside_the_test_is_of_the_weights_that_were_tested(tmp_path):
    write_run(tmp_path / "a", 30, status="finished", best_step=10)
    assert only(tmp_path).val == 10 / 200
    write_run(tmp_path / "b/a", 30)  # nothing is chosen yet
    assert only(tmp_path / "b").val == 30 / 200


def test_a_real_run(tmp_path):
    run = train(tiny(arrays(tmp_path / "noise.npz")), out=tmp_path / "runs/a", shown=False)
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")}
    listing = Folders(tmp_path / "runs").listing(0.0)
    assert list(listing.runs) == ["a"]
    seen = listing.runs["a"]
    assert (seen.state, seen.step, seen.steps) == ("finished", 6, 6)
    assert seen.accuracy == run.evaluation().accuracy.value
    vals = [line for line in run.log() if line["kind"] == "val"]
    (kept,) = (line for line in vals if line["step"] == run.info["best_step"])
    assert seen.val == kept["accuracy"]
    assert seen.seconds == pytest.approx(sum(line.get("seconds", 0) for line in run.log()))
    assert (seen.model, seen.data, seen.left) == ("vit_lite_2_p4", "noise.npz", None)
    curves = Folders(tmp_path).curves(run.folder)
    assert curves["accuracy"]["val"] == [(32.0 * v["step"], v["accuracy"]) for v in vals]
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")} == before


def test_a_run_that_is_trained_now(tmp_path):
    folder = write_run(tmp_path / "a", 40)
    os.utime(folder / "log.jsonl", (1000, 1000))
    os.utime(folder / "run.json", (900, 900))
    assert only(tmp_path).state == "stopped"
    with locked(folder / "lock"):
        run = only(tmp_path, now=1003)
        assert (run.state, run.step, run.steps, run.changed) == ("running", 40, 100, 1000)
        assert run.left == pytest.approx(60 * 1.5 / 10 - 3)
        assert only(tmp_path, now=5000).left == 0
        assert (run.val, run.images_per_second) == (0.2, 320)
        # Minutes may plan another number of steps.
        with (folder / "log.jsonl").open("a") as log:
            log.write('{"kind": "plan", "step": 40, "steps": 200}\n{"kind": "tra')
        assert only(tmp_path).steps == 200
    # Killed: the file is left, and its process is gone.
    (folder / "lock").write_text(json.dumps({"pid": 2**22 + 1, "host": os.uname().nodename}))
    assert only(tmp_path).state == "stopped"


def test_what_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    folder, folders = write_run(tmp_path / "a", 10), Folders(tmp_path)
    assert folders.listing(0).runs["a"].step == 10
    read = []
    monkeypatch.setattr(
        "smallvit.watching.reading.read_plain",
        lambda path, most: read.append(path) or read_plain(path, most),
    )
    assert folders.listing(0).runs["a"].step == 10
    assert read == []
    log_steps(folder, 20)
    assert folders.listing(0).runs["a"].step == 20
    assert read == [folder / "log.jsonl"]


def test_sets_and_depth(tmp_path):
    for number in range(3):
        write_run(
            tmp_path / f"set/m-seed-{number}", 100, status=("finished", "training")[number > 1]
        )
    (tmp_path / "set/set.json").write_text(json.dumps({"kind": "compare", "members": [{}] * 4}))
    (tmp_path / "set/page.html").write_text("<p>")
    write_run(tmp_path / "a/b/c/d", 10)
    write_run(tmp_path / "a/b/c/e/f/g", 10)  # too deep
    write_run(tmp_path / "set/m-seed-0/inside", 10)  # a run holds no others
    write_run(tmp_path / ".hidden", 10)
    listing = Folders(tmp_path).listing(0)
    assert sorted(listing.runs) == ["a/b/c/d", *(f"set/m-seed-{n}" for n in range(3))]
    found = listing.sets["set"]
    assert (found.kind, found.members, found.finished, found.page) == ("compare", 4, 2, True)
    assert list(Folders(tmp_path / "a/b/c/d").listing(0).runs) == ["d"]
    assert Folders(tmp_path / "nowhere").listing(0).runs == {}


def test_the_newest_of_many(tmp_path):
    for number in range(MOST_RUNS + 5):
        folder = write_run(tmp_path / f"{number}", 0)
        for path in folder.iterdir():
            os.utime(path, (number, number))
    listing = Folders(tmp_path).listing(0)
    assert list(listing.runs) == [str(n) for n in reversed(range(5, MOST_RUNS + 5))]
    assert listing.left_out == 5


HOSTILE_LOGS = {
    "not json": b"{\n",
    "binary": bytes(range(256)) + b"\n",
    "deep": b"[" * 100_000 + b"\n",
    "list": b"[1]\n",
    "text as step": b'{"kind": "val", "step": "1"}\n',
    "huge step": b'{"kind": "val", "step": 1' + b"0" * 400 + b"}\n",
    "negative step": b'{"kind": "val", "step": -1}\n',
    "text as loss": b'{"kind": "val", "step": 1, "loss": "<b>"}\n',
}


@pytest.mark.parametrize("name", HOSTILE_LOGS)
def test_a_damaged_log(tmp_path, name):
    folder = write_run(tmp_path / "a", 20)
    write_run(tmp_path / "b", 20)
    with (folder / "log.jsonl").open("ab") as log:
        log.write(HOSTILE_LOGS[name])
    folders = Folders(tmp_path)
    runs = folders.listing(0).runs
    assert runs["a"].state == "damaged"
    assert "line 5 of" in runs["a"].problem
    assert runs["a"].step == 20  # what came before it counts
    assert runs["b"].state == "stopped"
    assert len(folders.curves(folder)["loss"]["train"]) == 2


def test_numbers_that_no_page_can_draw(tmp_path):
    folder = write_run(tmp_path / "a", 10)
    with (folder / "log.jsonl").open("a") as log:
        for value in ("NaN", "Infinity", "-Infinity", "1" + "0" * 350):
            log.write(f'{{"kind": "val", "step": 20, "accuracy": {value}, "seconds": {value}}}\n')
    run = only(tmp_path)
    assert (run.val, run.seconds, run.step) == (0.05, 1.5, 20)
    assert Folders(tmp_path).curves(folder)["accuracy"]["val"] == [(320.0, 0.05)]


def test_times_that_no_number_holds(tmp_path):
    """Of a run that another machine may still be training."""
    write_run(tmp_path / "good", 10)
    for name, seconds in {"sum": [1.7e308, 1.7e308], "left": [1.7e308]}.items():
        folder = write_run(tmp_path / name, 10, config={"schedule": {"steps": 10**12}})
        (folder / "lock").write_text(json.dumps({"pid": 1, "host": "another machine"}))
        with (folder / "log.jsonl").open("a") as log:
            for step, value in enumerate(seconds, 11):
                log.write(json.dumps({"kind": "train", "step": step, "seconds": value}) + "\n")
    runs = Folders(tmp_path).listing(0).runs
    assert runs["sum"].state == "damaged"
    assert (runs["left"].state, runs["left"].left) == ("running", None)
    assert runs["good"].state == "stopped"
    json.dumps([asdict(run) for run in runs.values()], allow_nan=False)


def test_a_folder_that_may_not_be_entered():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        closed = write_run(root / "closed", 10)
        write_run(root / "open", 10)
        closed.chmod(0o644)
        folders = Folders(root)
        with unprivileged():
            runs = folders.listing(0).runs
            assert folders.curves(closed) == {}
        closed.chmod(0o755)
    assert (runs["closed"].state, runs["open"].state) == ("damaged", "stopped")
    assert "Permission denied" in runs["closed"].problem


def test_of_an_evaluation_only_the_accuracy_is_kept(tmp_path):
    folder = write_run(tmp_path / "a", 10)
    evaluation = {"accuracy": {"value": 0.5}, "logits": [n / 7 for n in range(100_000)]}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    folders = Folders(tmp_path)
    tracemalloc.start()
    assert folders.listing(0).runs["a"].accuracy == 0.5
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1e6


HOSTILE_INFOS = {
    "not json": b"{",
    "deep": b'{"a":' * 100_000,
    "list": b"[]",
    "model": json.dumps({**INFO, "model": "<b>"}).encode(),
    "binary": b"\xff\xfe",
    "large": b'{"a": "' + b"x" * 5_000_000 + b'"}',
}


@pytest.mark.parametrize("name", HOSTILE_INFOS)
def test_a_damaged_description(tmp_path, name):
    folder = write_run(tmp_path / "a", 10)
    (folder / "run.json").write_bytes(HOSTILE_INFOS[name])
    run = only(tmp_path)
    assert run.state == "damaged"
    assert str(folder / "run.json") in run.problem


def test_links_and_pipes_are_not_opened(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('{"kind": "val", "step": 7}\n')
    runs = tmp_path / "runs"
    linked, piped = write_run(runs / "linked", 0), write_run(runs / "piped", 0)
    (linked / "log.jsonl").unlink()
    (linked / "log.jsonl").symlink_to(secret)
    (linked / "evaluation.json").symlink_to(secret)
    (linked / "report.html").symlink_to(secret)
    (piped / "log.jsonl").unlink()
    os.mkfifo(piped / "log.jsonl")
    os.mkfifo(piped / "lock")
    (runs / "loop").symlink_to(runs)
    listing = Folders(runs).listing(0)
    assert sorted(listing.runs) == ["linked", "piped"]
    for run in listing.runs.values():
        assert (run.state, run.step, run.report, run.accuracy) == ("damaged", 0, False, None)
        assert "a link, or no file" in run.problem
    with pytest.raises(ValueError, match="more than 3 bytes"):
        read_plain(secret, 3)


def test_names_that_are_no_text(tmp_path):
    write_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff\n<b>")), 0)
    assert only(tmp_path).name == r"a\xff\n<b>"


def test_curves_are_thinned():
    assert thinned([1, 2]) == [1, 2]
    short = thinned(range(5000))
    assert len(short) <= 200
    assert (short[0], short[-1]) == (0, 4999)
    assert short == sorted(set(short))
