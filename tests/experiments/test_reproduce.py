"""The papers' tables as data, and ours beside them."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from smallvit.evaluation import Estimate
from smallvit.experiments import begin, conclude, conduct, read_outcomes, reproduce_set
from smallvit.experiments.papers import COMPACT, COUNTS, DRLOC, SPT, find_row, rows
from smallvit.experiments.reproduce import departures, overview, result_of
from smallvit.experiments.results import NOT_THE_ROW, Result, Training, read_results, write_result
from smallvit.models.names import check_name
from smallvit.recipes import RECIPES, Facts
from smallvit.runs.changes import changes_of
from smallvit.runs.config import RunConfig
from tests.experiments.conftest import TINY, TINY_WORDS
from tests.experiments.test_compare import smallvit
from tests.training.makers import losses

ROWS = rows()


def test_every_number_of_the_papers_is_there():
    assert len({row.key for row in ROWS}) == len(ROWS)
    counts = Counter(row.paper for row in ROWS)
    assert counts == {
        SPT: 5 * 4 * 2 + 4 * 2 + 3 * 2,  # table, ablation, a quarter of the images
        DRLOC: 3 * 4 * 2 + 2 * 2,  # from scratch, after ImageNet
        COMPACT: 4 * 4 + 2 * 2 + 1,  # table, longer, flowers
    }
    known = {row.key: row.accuracy for row in ROWS}
    assert known["cifar100/sl-vit"] == 76.92
    assert known["cifar100/vit-mask"] == 74.34
    assert known["tiny-imagenet/sl-cait"] == 67.18
    assert known["cifar10-quarter/sl-swin"] == 90.2
    assert known["svhn/swin-t-drloc"] == 94.2
    assert known["cifar100/cct-7-3x1"] == 80.92
    assert known["cifar10/cct-7-3x1-5000"] == 98.0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_every_row_can_be_run(row):
    assert row.recipe in RECIPES
    check_name(row.model)
    runs = reproduce_set(row.key)
    (member,) = runs.members
    config = RunConfig().changed(member.changes)
    assert config.recipe == row.recipe
    assert config.data.source.partition(":")[0] in COUNTS
    assert config.data.allow == ("leaks", "conflicts")


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.images_seen],
    ids=lambda row: row.key,
)
def test_recipes_show_as_many_images(row):
    images = COUNTS[row.data]
    if limit := row.changes.get("data", {}).get("limit"):
        images = round(limit * images)
    side = {"tiny-imagenet": 64}.get(row.data, row.changes.get("data", {}).get("image_size", 32))
    facts = Facts(
        source=row.data,
        images=images,
        classes=200 if row.data == "tiny-imagenet" else 100 if row.data == "cifar100" else 10,
        requested_size=(side, side),
        shared_size=(side, side),
        channels=3,
        device="cuda",
        mirrored=True,
        imbalance=1.0,
    )
    config = RECIPES[row.recipe].choose(facts).overruled(row.changes).config
    batch = config.loop.batch_size
    steps = config.schedule.steps or config.schedule.epochs * (images // batch)
    assert steps * batch == row.images_seen


def test_a_row_beside_its_published_value(source, tmp_path):
    settings = changes_of([f"data.source={source}", *TINY])
    runs = reproduce_set("cifar100/vit-lite-7-4", settings, seeds=2)
    assert all("log_test" not in member.changes["loop"] for member in runs.members)
    begin(tmp_path / "set", runs)
    assert conduct(tmp_path / "set")
    outcomes = read_outcomes(tmp_path / "set")
    sheet = conclude(tmp_path / "set")
    summary = json.loads((tmp_path / "set/summary.json").read_text())
    accuracies = [each.run.evaluation().accuracy.value for each in outcomes]
    assert summary["accuracies"] == accuracies
    assert summary["published"] == 73.9
    assert summary["chosen"] == find_row("cifar100/vit-lite-7-4").chosen
    assert summary["best_of_epochs_on_test"] == [None, None]
    assert f"Ours {50 * sum(accuracies):.2f}" in sheet.lead[0]
    assert "published 73.9 %" in sheet.lead[0]
    runs = begin(tmp_path / "set", None)
    commits = dict(zip((member.name for member in runs.members), ("one", "two"), strict=True))
    result = result_of(replace(runs, facts={**runs.facts, "commits": commits}), outcomes)
    assert [each.commit for each in result.trainings] == ["one", "two"]
    assert result.row == "cifar100/vit-lite-7-4"
    assert result.model == "vit_lite_7_p4"
    assert [each.seed for each in result.trainings] == [0, 1]
    assert result.accuracies == accuracies
    assert result.images_seen == 64
    assert [line["loss"] for line in result.trainings[0].curve if line["kind"] == "train"] == (
        losses(outcomes[0].run)
    )
    assert RunConfig.from_dict(result.config) == outcomes[0].run.config
    path = write_result(tmp_path / "results", result)
    assert read_results(tmp_path / "results") == [result]
    assert path.name == "cifar100-vit-lite-7-4.json"


def test_the_best_epoch_on_test_only_on_request_and_for_nothing(source, tmp_path):
    settings = changes_of([f"data.source={source}", *TINY])
    found = {}
    for peek in (False, True):
        runs = reproduce_set("cifar100/vit-lite-7-4", settings, best_of_epochs=peek)
        begin(tmp_path / str(peek), runs)
        conduct(tmp_path / str(peek))
        (found[peek],) = read_outcomes(tmp_path / str(peek))
    log = [line for line in found[True].run.log() if line["kind"] == "test"]
    assert [line["step"] for line in log] == [2, 4]
    assert not [line for line in found[False].run.log() if line["kind"] == "test"]
    last = [each.run.evaluation().to_json() for each in found.values()]
    assert last[0] == last[1]
    sheet = conclude(tmp_path / "True")
    summary = json.loads((tmp_path / "True/summary.json").read_text())
    assert summary["best_of_epochs_on_test"] == [max(line["accuracy"] for line in log)]
    assert log[-1]["accuracy"] == pytest.approx(summary["accuracies"][0])
    named = [row[0].text for row in sheet.tables[0].rows]
    assert "ours, best epoch on the test split" in named


def made(**changes) -> Result:
    estimate = Estimate(value=0.762, low=0.754, high=0.77)
    result = Result(
        row="cifar100/sl-vit",
        data="cifar100",
        model="vit_9_p4+spt+lsa",
        recipe="spt-lsa",
        images_seen=14_988_800,
        parameters=2_750_000,
        trainings=(Training(seed=0, accuracy=estimate),),
        notes=("by hand",),
    )
    return replace(result, **changes)


def test_results_grow_by_seeds(tmp_path):
    write_result(tmp_path, made())
    better = Training(seed=1, accuracy=Estimate(value=0.766, low=0.76, high=0.78))
    write_result(tmp_path, made(trainings=(better,), notes=()))
    (result,) = read_results(tmp_path)
    assert [each.seed for each in result.trainings] == [0, 1]
    assert result.mean == pytest.approx(0.764)
    assert result.spread() == "76.4 ± 0.3"
    assert result.notes == ("by hand",)
    with pytest.raises(ValueError, match="do not belong together"):
        write_result(tmp_path, made(images_seen=1))
    ((row, found),) = [pair for pair in overview(tmp_path) if pair[1] is not None]
    assert (row.key, found) == ("cifar100/sl-vit", result)
    (tmp_path / "cifar100-sl-vit.json").write_text('{"format": 9}')
    with pytest.raises(ValueError, match="format 9"):
        read_results(tmp_path)


def test_the_command(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = smallvit(f"reproduce fashion-mnist/cct-2-3x2 --data {source} --device cpu", *TINY_WORDS)
    assert done.exit_code == 0, done.output
    assert Path("runs/reproduce/fashion-mnist-cct-2-3x2/page.html").is_file()
    assert "published 94.1 %" in " ".join(done.output.split())
    (result,) = read_results(Path("results"))
    listed = smallvit("reproduce --list").output
    (line,) = [line for line in listed.splitlines() if line.startswith("fashion-mnist/cct-2-3x2")]
    assert result.spread() in line
    assert sum("not run" in line for line in listed.splitlines()) == len(ROWS) - 1
    assert "which row?" in smallvit("reproduce").output
    unknown = smallvit("reproduce cifar100/sl-vitt")
    assert "did you mean 'cifar100/sl-vit'" in str(unknown.exception)


def test_a_false_start_can_be_corrected(source, tmp_path):
    with pytest.raises(ValueError, match=r"unknown key 'loop\.epochs'"):
        reproduce_set("cifar100/vit-lite-7-4", {"loop": {"epochs": 1}})

    def begun(data):
        settings = changes_of([f"data.source={data}", *TINY])
        begin(tmp_path / "set", reproduce_set("cifar100/vit-lite-7-4", settings))
        conduct(tmp_path / "set")
        return read_outcomes(tmp_path / "set")[0]

    assert begun(tmp_path / "nowhere").state == "failed"
    assert begun(source).state == "finished"
    with pytest.raises(ValueError, match="nowhere does not exist"):
        begun(tmp_path / "nowhere")


def test_unknown_rows():
    with pytest.raises(ValueError, match="did you mean 'cifar100/sl-vit'"):
        find_row("cifar100/slvit")


def test_what_is_not_the_row_says_so(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = smallvit(f"reproduce cifar100/vit-lite-7-4 --data {source} --device cpu", *TINY_WORDS)
    printed = " ".join(done.output.split())
    assert "the data has 3 classes and not 100" in printed
    assert "training images and not 50,000" in printed
    assert "64 images were seen in training and not 15,475,200" in printed
    assert "loop.batch_size=" in printed
    assert "loop.device" not in printed.partition("Not the row")[2].partition("result")[0]
    assert "same test images" not in printed
    (result,) = read_results(Path("results"))
    assert not result.as_published
    listed = smallvit("reproduce --list").output
    (line,) = [line for line in listed.splitlines() if line.startswith("cifar100/vit-lite-7-4")]
    assert f"{result.spread()} *" in line
    assert "* not the row as it is published" in listed


def test_the_row_itself_says_nothing(tmp_path):
    published = find_row("cifar100/sl-vit")
    info = {
        "data": {"classes": ["a"] * 100, "counts": {"train": 50_000, "test": 10_000}},
        "steps": 117_100,
    }
    runs = reproduce_set(published.key, {"data": {"source": "folder"}, "loop": {"device": "cuda"}})
    config = RunConfig().changed({"loop": {"batch_size": 128}})
    assert departures(runs, [SimpleNamespace(info=info, config=config)]) == ([], [])


def test_seeds_of_another_config_are_not_joined(tmp_path):
    def trained(seed, **changes):
        estimate = Estimate(value=0.7, low=0.6, high=0.8)
        config = RunConfig().changed({"seed": seed, **changes})
        trainings = (Training(seed=seed, accuracy=estimate),)
        return made(config=config.to_dict(), notes=(), trainings=trainings)

    write_result(tmp_path, trained(0, data={"source": "here"}))
    write_result(tmp_path, trained(1, data={"source": "there"}, loop={"device": "cuda"}))
    with pytest.raises(ValueError, match=r"optim\.lr was .* do not belong together"):
        write_result(tmp_path, trained(2, optim={"lr": 0.5}))
    with pytest.raises(ValueError, match="do not belong together"):
        write_result(tmp_path, replace(trained(2), notes=(f"{NOT_THE_ROW}other data.",)))
    (result,) = read_results(tmp_path)
    assert [each.seed for each in result.trainings] == [0, 1]
