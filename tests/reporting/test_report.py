"""The page of one run."""

import base64
import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from smallvit.evaluation import Evaluation, measure
from smallvit.explaining.probes import SAYS_EVEN
from smallvit.inference.evaluate import evaluate
from smallvit.reporting import report
from smallvit.reporting.facts import RunFacts
from smallvit.reporting.report import run_page
from smallvit.runs import Run
from tests.reporting.conftest import NASTY, Page, trained, write_npz
from tests.untrained import sharpen

Read = Callable[[Path], Page]


@pytest.fixture(scope="module")
def page(run: Run) -> Page:
    path = report(run.folder, device="cpu")
    assert path == run.folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def check_numbers(page: Page, found: Evaluation) -> None:
    expected = {name: [e.value, e.low, e.high] for name, e in found.metrics.items()}
    assert page.metrics == expected


def check_close(page: Page, found: Evaluation) -> None:
    """The metrics in the folder are of the training, with other rounding than evaluate's."""
    for name, estimate in found.metrics.items():
        expected = [estimate.value, estimate.low, estimate.high]
        assert page.metrics[name] == pytest.approx(expected, abs=1e-5)


def test_numbers_are_those_of_evaluate(run: Run, page: Page) -> None:
    check_close(page, evaluate(run, device="cpu"))
    found = run.evaluation()
    assert found is not None
    check_numbers(page, found)
    rows = {tuple(values) for _, _, values in page.rows}
    for row in found.per_class:
        recall = row.recall
        precision = [row.precision] if row.predicted else []
        assert (recall.value, recall.low, recall.high, *precision, row.f1) in rows
    assert f"{100 * found.accuracy.value:.1f}\u00a0%" in page.words
    for pair in page.html.split('class="pairs"')[1].split("</ol>")[0].split("<li>")[1:]:
        truth, predicted = re.findall(r"<bdi>(.*?)</bdi>", pair)
        count, support = map(int, re.findall(r": (\d+) of (\d+)", pair)[0])
        row = run.classes.index(truth)
        assert found.confusion[row][run.classes.index(predicted)] == count
        assert found.per_class[row].support == support


def test_epochs_are_counted_and_shown_as_in_the_log(run: Run, page: Page) -> None:
    assert run.info["data"]["counts"]["train"] % run.config.loop.batch_size
    last = [line["epoch"] for line in run.log() if line["kind"] == "train"][-1]
    assert last == 3
    assert "in 6 steps (3 epochs)" in page.words


def check_alone(page: Page) -> None:
    """Nothing comes from elsewhere, and no code runs but ours."""
    assert len(page.html.encode()) < 5_000_000
    for _, attributes in page.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    style, script = ("".join(page.text[tag]) for tag in ("style", "script"))
    assert "url(" not in style
    assert "@import" not in style
    assert len(page.all("script")) == len(page.all("style")) == 1
    (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv")]
    directives = policy.split("; ")
    assert {"default-src 'none'", "img-src data:", "base-uri 'none'"} <= set(directives)
    assert len(directives) == len({each.split()[0] for each in directives}) == 6
    for code in (style, script):
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def check_readable(page: Page) -> None:
    """What a screen reader needs."""
    assert page.all("html")[0]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(image["alt"] for image in page.all("img"))
    assert all(cell["scope"] in ("row", "col") for cell in page.all("th"))
    assert all(
        chart.get("aria-label") or chart.get("aria-hidden") == "true" for chart in page.all("svg")
    )
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))
    links = {link["href"].removeprefix("#") for link in page.all("a")}
    assert links <= set(names)


def test_the_page_stands_alone_and_can_be_read(page: Page) -> None:
    check_alone(page)
    check_readable(page)


def test_the_page_has_every_part(run: Run, page: Page) -> None:
    parts = {attributes.get("id") for _, attributes in page.tags}
    assert parts >= {
        *("caveats", "metrics", "curves", "confusion", "classes", "mistakes", "labels"),
        *("calibration", "maps", "temperatures", "data", "record"),
    }
    assert "smallvit train it" in page.words
    assert "cct_2_3x2+lsa (0.0" in page.words
    assert run.info["data"]["fingerprint"] in page.words
    examples = page.html.count('class="example')
    assert len([i for i in page.all("img") if i["src"].startswith("data:image/")]) >= examples > 10
    assert page.html.count("with its gradient map") > 4


def test_maps_that_show_no_place_are_left_out(run: Run, tmp_path: Path, read: Read) -> None:
    """Attention that is even everywhere is named, and never shown as a finding."""
    pages = {}
    for factor in (0.0, 50.0):
        other = Run.open(shutil.copytree(run.folder, tmp_path / f"run {factor}"))
        model = other.model()
        sharpen(model, factor)
        save_file(model.state_dict(), other.folder / "weights.safetensors")
        other.note(hashes=other.hashed("weights.safetensors"))
        pages[factor] = read(report(other.folder, device="cpu"))
    shown = {
        factor: page.html.count("with its attention rollout") for factor, page in pages.items()
    }
    assert shown[0.0] == 0
    assert shown[50.0] > 4
    assert f"images {SAYS_EVEN}" in pages[0.0].words
    assert SAYS_EVEN not in pages[50.0].words
    assert "A token sees 13×13 of 16×16 pixels" in pages[50.0].words
    assert pages[0.0].html.count("with its gradient map") > 4


def test_names_from_the_data_do_nothing(nasty: Run, tmp_path: Path, read: Read) -> None:
    page = read(report(nasty, tmp_path / "page.html", device="cpu"))
    check_alone(page)
    check_readable(page)
    for name in NASTY:
        escaped = name.replace("\u202e", "\\u202e")
        assert escaped.strip() in " ".join(" ".join(page.text["bdi"]).split(" "))
    assert "\u202e" not in page.html
    assert "49" not in re.findall(r"onmouseover.{20}", page.words)[0]
    assert page.html.count("data:image/webp") >= 10
    assert "alert(1)</script>" not in page.html


def test_without_data(run: Run, tmp_path: Path, read: Read) -> None:
    """The run was moved to a machine without its data."""
    folder = shutil.copytree(run.folder, tmp_path / "moved")
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("d.npz", "gone.npz"))
    page = read(report(folder, device="cpu"))
    check_alone(page)
    check_close(page, evaluate(run, device="cpu"))
    assert "Without images." in page.words
    assert "gone.npz" in page.words
    assert not page.all("img")
    assert "ash" in page.text["bdi"]


def test_changed_data_counts_as_gone(run: Run, tmp_path: Path, read: Read) -> None:
    folder = shutil.copytree(run.folder, tmp_path / "old")
    info = (folder / "run.json").read_text().replace(run.info["data"]["fingerprint"], "0" * 32)
    (folder / "run.json").write_text(info)
    assert "has changed since the run began" in read(report(folder, device="cpu")).words


def test_an_interrupted_run(run: Run, tmp_path: Path, read: Read) -> None:
    folder = shutil.copytree(run.folder, tmp_path / "stopped")
    for name in ("evaluation.json", "weights.safetensors", "last.safetensors"):
        (folder / name).unlink()
    Run.open(folder).note(status="interrupted", step=4)
    page = read(report(folder, device="cpu"))
    check_alone(page)
    check_readable(page)
    assert "The training is not finished: its log ends after 6 of 6 steps" in page.words
    assert "nothing was tested" in page.words
    assert "--resume" in page.words
    assert not page.metrics
    (folder / "log.jsonl").unlink()
    assert "The log is empty." in read(report(folder, device="cpu")).words


def test_without_a_test_split_validation_is_shown(run: Run, tmp_path: Path, read: Read) -> None:
    source = write_npz(tmp_path / "d.npz", ("ash", "elm"), {"train": 10, "val": 8})
    page = read(report(trained(source, tmp_path / "run", "data.test=0"), device="cpu"))
    check_numbers(page, evaluate(tmp_path / "run", split="val", device="cpu"))
    assert "too good to be true: the weights were chosen by these very images" in page.words


def test_without_either_split(tmp_path: Path, read: Read) -> None:
    source = write_npz(tmp_path / "d.npz", ("ash", "elm"), {"train": 12})
    run = trained(source, tmp_path / "run", "data.val=0", "data.test=0")
    page = read(report(run, device="cpu"))
    check_readable(page)
    assert "There is no evaluation" in page.words
    assert not page.metrics


def test_without_a_validation_split(run: Run, tmp_path: Path, read: Read) -> None:
    source = write_npz(tmp_path / "d.npz", ("ash", "elm"), {"train": 10, "test": 8})
    page = read(report(trained(source, tmp_path / "run", "data.val=0"), device="cpu"))
    check_close(page, evaluate(tmp_path / "run", device="cpu"))
    assert "There was no validation split" in page.words
    assert "No temperature was fitted" in page.words


def test_a_temperature_that_few_images_leave_at_1(tmp_path: Path, read: Read) -> None:
    source = write_npz(tmp_path / "d.npz", ("ash", "elm"), {"train": 12, "val": 4, "test": 10})
    run = trained(source, tmp_path / "run")
    assert run.card.temperature == 1
    page = read(report(run, device="cpu"))
    assert "The temperature stays at 1" in page.words
    assert "after temperature" not in page.words


def facts(run: Run, classes: tuple[str, ...], labels: np.ndarray, sharpness: float) -> RunFacts:
    """Of a run that predicts at random, but right where sharpness is high."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(len(labels), len(classes)))
    logits[np.arange(len(labels)), labels] += sharpness
    found = measure(logits.astype(np.float32), labels, classes, split="test", replicates=50)
    data = {**run.info["data"], "classes": list(classes)}
    info = {**run.info, "data": data, "model": {**run.info["model"], "num_classes": len(classes)}}
    return RunFacts(run=replace(run, info=info), evaluation=found)


@pytest.mark.parametrize("sharpness", [-50.0, 1.0, 50.0])
@pytest.mark.parametrize(
    ("count", "present"), [(2, 2), (3, 2), (40, 40), (200, 200)], ids=lambda each: str(each)
)
def test_any_number_of_classes(run: Run, count: int, present: int, sharpness: float) -> None:
    """All right, all wrong and between; with three classes, one is missing from the test."""
    names = tuple(f"class {number}" for number in range(count))
    labels = np.arange(5 * present) % present
    known = facts(run, names, labels, sharpness)
    page = Page(run_page(known))
    check_alone(page)
    check_readable(page)
    assert known.evaluation is not None
    check_numbers(page, known.evaluation)
    assert (f"Nothing was measured about class {present}" in page.words) == (present < count)
    undefined = [row for row in known.evaluation.per_class if not row.support + row.predicted]
    assert page.html.count('title="no images and never predicted"') == len(undefined)
    if sharpness > 1:
        assert len(undefined) == count - present
    assert ("these are the" in page.words) == (count > 40)
    cells = re.findall(r'<td class="h\d( right)?"', page.html)
    shown = min(count, 24) if count > 40 else count
    assert cells.count(" right") == shown
    assert len(cells) == shown**2


def test_a_bad_request_is_a_sentence(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run was given"):
        report([])
    with pytest.raises(ValueError, match="run folder"):
        report(tmp_path)
    with pytest.raises(ValueError, match="is listed twice"):
        report([run.folder, f"{run.folder}/../{run.name}"])
    with pytest.raises(OSError, match="nowhere"):
        report(run, tmp_path / "nowhere" / "page.html", device="cpu")


def test_a_test_that_was_cut_short_is_completed(run: Run, page: Page, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    found = run.evaluation()
    assert found is not None
    names = run.dataset().split("test").names
    logits = np.eye(len(run.classes))[run.dataset().labels("test")[:7]]
    part = measure(
        logits, run.dataset().labels("test")[:7], run.classes, split="test", names=names[:7]
    )
    Run.open(tmp_path / "run").save_evaluation(part)
    check_close(Page(report(tmp_path / "run", device="cpu").read_text(encoding="utf-8")), found)
