"""Which model is best, said only where it can be told."""

import json
import logging
import shlex
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from smallvit.cli import app
from smallvit.evaluation.paired import holm
from smallvit.evaluation.seeds import mean_accuracy, versus
from smallvit.experiments import (
    ablate_set,
    begin,
    compare_set,
    conclude,
    conduct,
    curve_set,
    read_outcomes,
)
from smallvit.experiments.ablate import PARTS
from smallvit.experiments.compare import changes_for, listed
from smallvit.experiments.rows import Row, count_flops, verdicts
from smallvit.recipes import plan
from smallvit.runs import Run
from smallvit.runs.changes import changes_of
from smallvit.runs.config import LossConfig
from smallvit.training import train
from tests.experiments.conftest import TINY_WORDS, finished_set
from tests.reporting.conftest import Page
from tests.reporting.test_report import check_alone, check_readable
from tests.training.makers import make_images


def smallvit(line: str, *words: str):
    logging.getLogger("smallvit").setLevel(logging.INFO)
    return CliRunner().invoke(app, [*shlex.split(line), *words], env={"COLUMNS": "200"})


NORMALISED = {"loss": {"drloc": "auto", "drloc_form": "normalised"}}


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        ("auto", {"model": {"name": "auto"}}),
        ("vit_9_p4+spt+lsa", {"model": {"name": "vit_9_p4+spt+lsa"}}),
        ("resnet18+drloc", {"model": {"name": "resnet18"}, **NORMALISED}),
        (
            "swin_tiny_p2+spt+drloc-released",
            {
                "model": {"name": "swin_tiny_p2+spt"},
                "loss": {"drloc": "auto", "drloc_form": "released"},
            },
        ),
        ("timm/vit_tiny_patch16_224", {"model": {"name": "timm/vit_tiny_patch16_224"}}),
        ("pretrained:runs/a+b", {"model": {"pretrained": "runs/a+b"}}),
        (
            "cct_7_3x1+pretrained:cct.pth+drloc",
            {"model": {"name": "cct_7_3x1", "pretrained": "cct.pth"}, **NORMALISED},
        ),
    ],
)
def test_names(spec, changes):
    assert changes_for(spec) == changes


def test_names_that_are_refused_before_anything_is_trained(settings):
    with pytest.raises(ValueError, match="did you mean 'cct_2_3x2'"):
        compare_set(settings(), ["vit_lite_2_p4,cct_2_3x9"])
    for nowhere in ("./nowhere", "~nobody-of-this-name/run"):
        with pytest.raises(ValueError, match="no file or run folder"):
            changes_for(f"pretrained:{nowhere}")
    for misplaced in ("+drloc", "cct_2_3x2+drloc+spt", "cct_2_3x2+drloc-relaesed"):
        with pytest.raises(ValueError, match=r"\+drloc or \+drloc-released comes last"):
            changes_for(misplaced)
    with pytest.raises(ValueError, match="listed twice"):
        listed(["auto", "auto"])
    with pytest.raises(ValueError, match="--models"):
        listed([])
    with pytest.raises(ValueError, match="seeds is 0"):
        compare_set(settings(), ["auto"], seeds=0)


def test_a_form_of_drloc_is_that_of_its_name_in_every_recipe(settings):
    runs, _ = ablate_set({**settings("model.name=vit_lite_2_p4"), "recipe": "drloc"}, seeds=1)
    forms = {
        member.row: plan(changes=member.changes).config.loss.drloc_form
        for member in runs.members
        if "DRLoc" in member.row
    }
    assert forms == {
        "DRLoc": "normalised",
        "DRLoc, as released": "released",
        "SPT, LSA and DRLoc": "normalised",
    }


def test_the_budget_is_the_same_for_all(settings, source):
    runs = compare_set(settings(), ["vit_lite_2_p4,cct_2_3x1+drloc"], seeds=2)
    assert {member.changes["schedule"]["steps"] for member in runs.members} == {4}
    plain = {"data": {"source": str(source)}, "loop": {"device": "cpu"}}
    chosen = compare_set(plain, ["auto", "cct_2_3x1"], seeds=1)
    epochs = {member.changes["schedule"]["epochs"] for member in chosen.members}
    assert len(epochs) == 1
    assert chosen.facts["budget"] == f"{epochs.pop():g} epochs"
    timed = compare_set({**plain, "schedule": {"minutes": 5}}, ["auto"], seeds=1)
    assert timed.facts["budget"] == "5 minutes"


@pytest.mark.parametrize("recipe", ["auto", "drloc", "spt-lsa"])
def test_arms_of_a_loss_differ_by_nothing_else(source, recipe):
    """A recipe may have the loss by itself, in its released form: the plain arm has none."""
    words = (f"data.source={source}", f"recipe={recipe}", "schedule.steps=4", "data.image_size=32")
    settings = changes_of([*words, "loop.device=cpu"])
    name = "swin_tiny_p2"
    runs = compare_set(settings, [name, f"{name}+drloc", f"{name}+drloc-released"], seeds=1)
    configs = [plan(changes=member.changes).config for member in runs.members]
    losses = [(c.loss.drloc, c.loss.drloc_form) for c in configs]
    assert losses[0][0] == 0.0
    assert losses[1:] == [("auto", "normalised"), ("auto", "released")]
    assert len({replace(c, loss=LossConfig()).to_yaml() for c in configs}) == 1
    (alone,) = compare_set(settings, [name], seeds=1).members  # the recipe's own
    assert plan(changes=alone.changes).config.loss.drloc == ("auto" if recipe == "drloc" else 0.0)


def test_the_splits_are_the_same_for_all(tmp_path, run):
    source = tmp_path / "noise.npz"
    images, labels = make_images(120)
    np.savez(source, images=images, labels=labels)
    settings = {"data": {"source": str(source)}, "recipe": "compact", "loop": {"device": "cpu"}}
    runs = compare_set(settings, ["cct_2_3x1", f"pretrained:{run.folder}"], seeds=1)
    plans = [plan(changes=member.changes) for member in runs.members]
    assert [dict(each.dataset.held_out) for each in plans] == [{"test": 0.2}] * 2
    assert len({each.dataset.fingerprint for each in plans}) == 1
    assert len({each.config.schedule.epochs for each in plans}) == 1


def trained(seed: int, accuracy: float, seeds: int = 3, images: int = 900) -> np.ndarray:
    """Trainings of that accuracy that mostly agree on which images are hard."""
    random = np.random.default_rng(seed)
    hard = np.random.default_rng(99).random(images)
    own = random.random((seeds, images))
    return 0.8 * hard + 0.2 * own < np.quantile(0.8 * hard + 0.2 * own[0], accuracy)


def test_a_verdict_where_there_is_one(run, tmp_path):
    rows = {"plain": trained(0, 0.7), "good": trained(1, 0.8), "alike": trained(2, 0.705)}
    finished_set(tmp_path / "set", run, "compare", rows, budget="4 steps")
    sheet = conclude(tmp_path / "set")
    plain, good, alike = json.loads((tmp_path / "set/summary.json").read_text())["rows"]
    assert (plain["verdict"], good["verdict"], alike["verdict"]) == (None, "better", "cannot tell")
    expected = [versus(rows["plain"], rows[name]) for name in ("good", "alike")]
    corrected = holm([each.p for each in expected])
    for found, one, p in zip((good, alike), expected, corrected, strict=True):
        assert found["difference"] == pytest.approx(vars(one.difference))
        assert found["p"] == pytest.approx(p)
    assert good["accuracy"] == pytest.approx(vars(mean_accuracy(rows["good"])))
    assert good["accuracies"] == pytest.approx(rows["good"].mean(1).tolist())
    assert good["deviation"] == pytest.approx(rows["good"].mean(1).std(ddof=1))
    assert good["parameters"] == run.info["parameters"]
    assert good["images_seen"] == 64
    assert "good is better than plain here" in sheet.lead[0]
    assert any("alike against plain: cannot tell" in sentence for sentence in sheet.lead)
    page = Page((tmp_path / "set/page.html").read_text())
    check_alone(page)
    check_readable(page)
    cells = [cells for _, cells, _ in page.rows if "good" in cells[:2]]
    assert f"{100 * good['accuracy']['value']:.1f} %" in " ".join(cells[0]).replace("\u00a0", " ")


def test_what_auto_has_chosen_is_said(run, tmp_path):
    rows = {"auto": trained(0, 0.7), "plain": trained(1, 0.7)}
    finished_set(tmp_path / "set", run, "compare", rows)
    notes = " ".join(conclude(tmp_path / "set").notes)
    assert "auto is vit_lite_2_p4, of 16×16 pixels." in notes
    assert "plain is" not in notes


def test_one_seed_tells_nothing_about_models(run, tmp_path):
    rows = {"plain": trained(0, 0.6, seeds=1), "good": trained(1, 0.9, seeds=1)}
    finished_set(tmp_path / "set", run, "compare", rows)
    sheet = conclude(tmp_path / "set")
    good = json.loads((tmp_path / "set/summary.json").read_text())["rows"][1]
    assert good["verdict"] == "cannot tell"
    assert good["p"] < 0.001
    assert good["deviation"] is None
    assert "--seeds 3" in " ".join(sheet.lead)


def test_all_worse_and_nothing_tested(run, tmp_path):
    rows = {"best": trained(0, 0.9), "bad": trained(1, 0.6), "poor": trained(2, 0.5)}
    finished_set(tmp_path / "set", run, "compare", rows)
    assert conclude(tmp_path / "set").lead[0] == "best is the best of these 3 here."
    for path in (tmp_path / "set").glob("*/evaluation.json"):
        path.unlink()
    assert conclude(tmp_path / "set").lead == ("Cannot tell: nothing has been tested yet.",)


def test_the_speed_is_that_of_the_second_half_of_the_training(run, tmp_path):
    finished_set(tmp_path / "set", run, "compare", {"plain": trained(0, 0.7)})
    for path in (tmp_path / "set").glob("*/log.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["kind"] for line in lines] == ["train", "val"] * 2
        lines[0]["images_per_second"], lines[2]["images_per_second"] = 10.0, 500.0
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        edited = Run.open(path.parent)
        edited.note(hashes=edited.hashed("log.jsonl"))
    conclude(tmp_path / "set")
    (row,) = json.loads((tmp_path / "set/summary.json").read_text())["rows"]
    assert row["images_per_second"] == 500.0


def test_a_test_that_was_cut_short_does_not_count_and_moves_no_other(run, tmp_path):
    whole = trained(0, 0.7)
    rows = {"plain": [whole[0][:100], whole[1], whole[2]], "good": trained(1, 0.8)}
    finished_set(tmp_path / "set", run, "compare", rows)
    sheet = conclude(tmp_path / "set")
    plain, good = json.loads((tmp_path / "set/summary.json").read_text())["rows"]
    assert plain["seeds"] == [1, 2]
    assert plain["accuracies"] == pytest.approx(whole[1:].mean(1).tolist())
    assert (good["seeds"], good["verdict"]) == ([0, 1, 2], "better")
    shown = [[cell.text for cell in row[1:3]] for row in sheet.tables[1].rows[:3]]
    assert shown == [["0", "–"], *([f"{n}", f"{100 * whole[n].mean():.1f} %"] for n in (1, 2))]
    assert "900 test images" in sheet.notes[0]
    assert "1 test was cut short, and left out." in sheet.notes


def test_auto_is_the_same_wherever_it_stands(source):
    plain = {"data": {"source": str(source)}, "loop": {"device": "cpu"}}
    timed = {**plain, "schedule": {"minutes": 5}}
    orders = ["auto,vit_lite_2_p4", "vit_lite_2_p4,auto"]
    first, second = (compare_set(timed, [names], seeds=1) for names in orders)
    assert {m.row: m.changes for m in first.members} == {m.row: m.changes for m in second.members}
    assert first.joined(second).rows == ("auto", "vit_lite_2_p4")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("compare --out {out} --seeds 5 --models resnet18", "--models, --seeds"),
        ("ablate --out {out} --minutes 3", "--minutes"),
        ("curve --out {out} --set seed=3 --shares 0.1,1", "--shares, --set"),
        ("reproduce --out {out} --data x --best-of-epochs", "--best-of-epochs"),
    ],
)
def test_what_a_set_that_goes_on_would_not_heed_is_refused(line, named, run, tmp_path):
    rows = {"plain": trained(0, 0.7, seeds=1)}
    finished_set(tmp_path / "set", run, line.split()[0], rows)
    before = (tmp_path / "set/set.json").read_bytes()
    done = smallvit(line.format(out=tmp_path / "set"))
    assert done.exit_code == 2
    assert f"{named}: a set goes on with what it began with" in done.output
    assert (tmp_path / "set/set.json").read_bytes() == before


def test_flops_are_those_of_the_layers(run, monkeypatch):
    """A linear layer of a by b on n tokens is 2·a·b·n; attention's two products come on top."""
    dim, tokens, hidden = 32, 16 + 1, 32
    per_block = 2 * tokens * dim * (3 * dim + dim + 2 * hidden) + 2 * 2 * tokens**2 * dim
    patches = 2 * 16 * (3 * 16) * dim
    head = 2 * dim * 3
    assert run.info["model"]["options"] == {"dim": 32}
    assert count_flops(run) == 2 * per_block + patches + head
    sizes = {"num_classes": 2, "image_size": (224, 224), "in_channels": 3}
    monkeypatch.setitem(run.info, "model", {"name": "timm/pit_ti_224", **sizes})
    assert count_flops(run) > 1e9


def test_the_command(source, tmp_path, caplog):
    out = tmp_path / "set"
    line = f"compare {source} --models vit_lite_2_p4,cct_2_3x1+drloc --seeds 2 --out {out}"
    done = smallvit(line, *TINY_WORDS)
    assert done.exit_code == 0, done.output
    assert "4 of 4: cct_2_3x1+drloc, seed 1" in caplog.text
    caplog.clear()
    assert f"page {out / 'page.html'}" in done.output
    rows = json.loads((out / "summary.json").read_text())["rows"]
    assert [row["seeds"] for row in rows] == [[0, 1], [0, 1]]
    assert [Run.open(path.parent).config.loss.drloc for path in sorted(out.glob("*/run.json"))] == [
        *(0.1, 0.1, 0.0, 0.0),
    ]
    fingerprints = {
        Run.open(path.parent).info["data"]["fingerprint"] for path in out.glob("*/run.json")
    }
    assert len(fingerprints) == 1
    for row in rows:
        assert f"{100 * row['accuracy']['value']:.1f} %" in done.output
    again = smallvit(f"compare --out {out}")
    assert again.exit_code == 0, again.output
    assert " of 4:" not in caplog.text
    assert "which data?" in smallvit("compare").output
    other = smallvit(f"curve --out {out}")
    assert other.exit_code == 2
    assert "a set for `smallvit compare`" in other.output


def test_a_command_with_failures_says_so(source, tmp_path):
    line = f"compare {source} --models vit_lite_2_p4,swin_tiny_p4 --seeds 1 --out {tmp_path}/set"
    done = smallvit(line, *TINY_WORDS)
    assert done.exit_code == 1
    assert "failed: swin_tiny_p4, seed 0" in done.output
    assert (tmp_path / "set/page.html").is_file()


def test_an_ablation_has_every_part_alone_and_together(settings, tmp_path):
    runs, impossible = ablate_set(settings("model.name=vit_lite_2_p4+lsa"), seeds=1)
    assert impossible == {}
    assert runs.rows == tuple(PARTS)
    models = {m.row: (m.changes["model"], m.changes["loss"]["drloc"]) for m in runs.members}
    options = {"dim": 32, "num_heads": 2}
    plain = ({"name": "vit_lite_2_p4", "options": options}, 0.0)
    assert models["plain"] == plain
    assert models["DRLoc"] == (plain[0], "auto")
    assert models["mask"] == ({**plain[0], "options": {**options, "masked": True}}, 0.0)
    both = {"name": "vit_lite_2_p4+spt+lsa", "options": options}
    assert models["SPT, LSA and DRLoc"] == (both, "auto")
    shifted = {"name": "vit_lite_2_p4+spt", "options": {**options, "shift": 0.25}}
    assert models["SPT, shift of a quarter"] == (shifted, 0.0)
    begin(tmp_path / "set", runs)


def test_an_ablation_leaves_out_what_a_model_cannot_have(settings):
    small = settings("model.name=pit_tiny_p2")
    small["model"] = {"name": "pit_tiny_p2"}
    runs, impossible = ablate_set(small, seeds=1)
    assert list(impossible) == ["SPT, shift of a quarter"]
    assert "less than one pixel" in impossible["SPT, shift of a quarter"]
    assert runs.facts["impossible"] == impossible
    runs, impossible = ablate_set({**small, "model": {"name": "hct_s_p8"}}, seeds=1)
    assert {"temperature", "mask", "LSA"} <= {*impossible}
    assert "--set model.options.masked=false" in impossible["mask"]
    without = {"name": "hct_s_p8", "options": {"temperature": False, "masked": False}}
    runs, impossible = ablate_set({**small, "model": without}, seeds=1)
    assert {"temperature", "mask"} <= {*runs.rows}
    timms = {
        "data": {**small["data"], "image_size": 32},
        "model": {"name": "timm/vit_tiny_patch16_224"},
    }
    runs, impossible = ablate_set({**small, **timms}, seeds=1)
    assert runs.rows == (
        "plain",
        "LSA",
        "SPT",
        "DRLoc",
        "DRLoc, as released",
        "SPT and LSA",
        "SPT, LSA and DRLoc",
    )
    assert impossible["SPT, all directions"].startswith("directions vary our own models")
    with pytest.raises(ValueError, match="does not divide"):
        ablate_set({**small, "model": {"name": "swin_t"}})
    with pytest.raises(ValueError, match="is a CNN"):
        ablate_set({**small, "model": {"name": "resnet18"}})
    with pytest.raises(ValueError, match="--pretrained"):
        ablate_set({**small, "model": {"pretrained": "x"}})


def test_the_ablation_command(source, tmp_path, run):
    rows = {"plain": trained(0, 0.7), "SPT": trained(1, 0.8)}
    finished_set(tmp_path / "set", run, "ablate", rows, model="vit_9_p4", impossible={"mask": "no"})
    done = smallvit(f"ablate --out {tmp_path}/set")
    assert done.exit_code == 0, done.output
    assert "SPT is better than plain" in done.output
    assert "mask was left out: no." in done.output
    summary = json.loads((tmp_path / "set/summary.json").read_text())
    assert (summary["kind"], summary["model"]) == ("ablate", "vit_9_p4")
    assert "which data?" in smallvit("ablate").output


def test_a_start_that_knows_test_images_is_said(tmp_path, settings):
    images, labels = make_images(120)
    np.savez(tmp_path / "noise.npz", images=images, labels=labels)
    data = {"source": str(tmp_path / "noise.npz")}
    first = settings("model.name=vit_lite_2_p4") | {"data": data}
    start = train(plan(changes=first).config, out=tmp_path / "start", shown=False)
    later = settings() | {"data": {**data, "seed": 1}}
    for name, made in {
        "compare": compare_set(later, [f"pretrained:{start.folder}"], seeds=1),
        "curve": curve_set(later, [f"pretrained:{start.folder}"], shares=[0.5, 0.7, 1], seeds=1),
    }.items():
        begin(tmp_path / name, made)
        conduct(tmp_path / name)
        (count,) = {each.run.info["seen_before"] for each in read_outcomes(tmp_path / name)}
        said = f"its start had learned from {count} of the test images"
        assert [said in sentence for sentence in conclude(tmp_path / name).lead][-1]


def test_names_with_commas_are_told_apart():
    hits = np.tile(np.arange(40) % 2 == 0, (2, 1))
    rows = [
        Row(name=name, outcomes=(), accuracy=mean_accuracy(hits), versus=against, p=1.0)
        for name, against in (
            ("plain", None),
            ("SPT, all directions", versus(hits, hits)),
            ("SPT, LSA and DRLoc", versus(hits, hits)),
        )
    ]
    named = "which of plain; SPT, all directions; and SPT, LSA and DRLoc is best"
    assert named in verdicts(rows)[0]
    assert "which of plain and SPT, all" not in verdicts(rows[:2])[0]
