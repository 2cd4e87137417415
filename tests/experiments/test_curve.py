"""Would more images help? Accuracy against their number, and a forecast with its uncertainty."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from smallvit.config_io import to_plain
from smallvit.evaluation.power_law import fit_power_law
from smallvit.experiments import begin, conclude, conduct, curve_set, read_outcomes
from smallvit.experiments.curve import SHARES, row_name
from smallvit.experiments.results import read_curve, write_curve
from smallvit.runs import Run
from tests.experiments.conftest import TINY_WORDS, evaluated, finished_set
from tests.experiments.test_compare import smallvit
from tests.reporting.conftest import Page
from tests.reporting.test_report import check_alone, check_readable


def test_subsets_are_nested_and_every_seed_draws_its_own(settings, tmp_path):
    runs = curve_set(settings(), ["vit_lite_2_p4"], shares=[0.25, 0.5, 1.0], seeds=2)
    assert len(runs.members) == 6
    begin(tmp_path / "set", runs)
    assert conduct(tmp_path / "set")
    data = {}
    for outcome in read_outcomes(tmp_path / "set"):
        config = outcome.run.config.data
        assert config.limit_seed == outcome.member.seed
        data[config.limit, config.limit_seed] = outcome.run.dataset()
    for seed in (0, 1):
        names = [set(data[share, seed].split("train").names) for share in (0.25, 0.5, 1.0)]
        assert [len(each) for each in names] == [24, 48, 96]
        assert names[0] < names[1] < names[2]
    assert data[0.25, 0].fingerprint != data[0.25, 1].fingerprint
    tests = {tuple(each.split("test").names) for each in data.values()}
    assert len(tests) == 1
    sheet = conclude(tmp_path / "set")
    (found,) = json.loads((tmp_path / "set/summary.json").read_text())["models"]
    assert [point["images"] for point in found["points"]] == [24, 48, 96]
    assert found["doubling"]["low"] <= found["doubling"]["value"] <= found["doubling"]["high"]
    assert "with twice the images (192 instead of 96) expect" in sheet.lead[0]


def learned(errors: dict[float, float], seeds: int = 3, images: int = 900) -> dict:
    """Rows whose errors are those given, on images that are hard for all."""
    hard = np.random.default_rng(9).random(images)
    rows = {}
    for number, (share, error) in enumerate(errors.items()):
        own = np.random.default_rng(number).random((seeds, images))
        mixed = 0.8 * hard + 0.2 * own
        rows[row_name("some", share)] = mixed < np.quantile(mixed, 1 - error)
    return rows


def curve_of(folder, run, errors, **how):
    """A finished set whose runs say that they had so many of 1,600 images."""
    rows = learned(errors, **how)
    facts = {row_name("some", share): ["some", share] for share in errors}
    finished_set(folder, run, "curve", rows, rows=facts, budget="4 steps")
    for path in folder.glob("*/run.json"):
        share = next(s for s in errors if path.parent.name.startswith(f"some-with-{100 * s:g}-"))
        run = Run.open(path.parent)
        counts = {**run.info["data"]["counts"], "train": round(1600 * share)}
        run.note(data={**run.info["data"], "counts": counts})
    return {round(1600 * share): rows[row_name("some", share)] for share in errors}


def test_the_answer(run, tmp_path):
    errors = {0.125: 0.40, 0.25: 0.30, 0.5: 0.23, 1.0: 0.18}
    hits = curve_of(tmp_path / "set", run, errors)
    sheet = conclude(tmp_path / "set")
    (found,) = json.loads((tmp_path / "set/summary.json").read_text())["models"]
    gain = fit_power_law(hits).gain()
    assert found["doubling"] == pytest.approx(vars(gain))
    assert 0.01 < gain.low < gain.high < 0.09
    assert sheet.lead[0].startswith(
        f"some: with twice the images (3,200 instead of 1,600) expect +{100 * gain.value:.1f} "
        f"points (+{100 * gain.low:.1f} to +{100 * gain.high:.1f})"
    )
    assert "cannot tell" not in sheet.lead[0]
    page = Page((tmp_path / "set/page.html").read_text())
    check_alone(page)
    check_readable(page)
    assert any("some, forecast" in cells[:2] for _, cells, _ in page.rows)


def test_a_test_that_was_cut_short_does_not_count(run, tmp_path):
    hits = curve_of(tmp_path / "set", run, {0.25: 0.40, 0.5: 0.30, 1.0: 0.20})
    short = Run.open(tmp_path / "set/some-with-100-seed-0")
    short.save_evaluation(evaluated(hits[1600][0][:300]))
    conclude(tmp_path / "set")
    (found,) = json.loads((tmp_path / "set/summary.json").read_text())["models"]
    assert [point["seeds"] for point in found["points"]] == [[0, 1, 2], [0, 1, 2], [1, 2]]
    gain = fit_power_law({**hits, 1600: hits[1600][1:]}).gain()
    assert found["doubling"] == pytest.approx(vars(gain))


def test_where_the_only_test_was_cut_short_that_is_the_reason(run, tmp_path):
    hits = curve_of(tmp_path / "set", run, {0.25: 0.40, 0.5: 0.30, 1.0: 0.20}, seeds=1)
    short = Run.open(tmp_path / "set/some-with-100-seed-0")
    short.save_evaluation(evaluated(hits[1600][0][:300]))
    answer = conclude(tmp_path / "set").lead[0]
    assert "time ran out in some tests, which have 300 to 900 images" in answer


def test_where_it_cannot_be_told(run, tmp_path):
    curve_of(tmp_path / "flat", run, {0.25: 0.2, 0.5: 0.2, 1.0: 0.2})
    assert "cannot tell whether more images would help" in conclude(tmp_path / "flat").lead[0]
    curve_of(tmp_path / "short", run, {0.5: 0.3, 1.0: 0.2})
    assert "cannot tell what more images would bring" in conclude(tmp_path / "short").lead[0]
    curve_of(tmp_path / "some", run, {0.25: 0.4, 0.5: 0.3, 1.0: 0.2}, seeds=2)
    (tmp_path / "some/some-with-25-seed-0/run.json").unlink()
    assert "what seeds change" not in conclude(tmp_path / "some").lead[0]
    curve_of(tmp_path / "once", run, {0.25: 0.4, 0.5: 0.3, 1.0: 0.2}, seeds=1)
    assert "leaves out what seeds change" in conclude(tmp_path / "once").lead[0]


def test_shares(settings):
    runs = curve_set(settings(), ["vit_lite_2_p4"], seeds=1)
    shares = [member.changes["data"]["limit"] for member in runs.members]
    assert shares == [share for share in SHARES if 96 * share >= 12]
    with pytest.raises(ValueError, match="three numbers of images or more"):
        curve_set(settings(), shares=[0.5, 1.0])
    with pytest.raises(ValueError, match="up to 1"):
        curve_set(settings(), shares=[0.5, 1.0, 2.0])
    with pytest.raises(ValueError, match="name --shares"):
        curve_set(settings("data.limit=0.5"), shares=[0.25, 0.5, 1.0])


def test_the_command(source, run, tmp_path):
    """Several models, one of them pretrained, in one figure that is kept as data."""
    names = ["vit_lite_2_p4", "cct_2_3x1+drloc", f"pretrained:{run.folder}"]
    kept = tmp_path / "results/curves/noise.json"
    line = (
        f"curve {source} --models {','.join(names)} --shares 0.2,0.5,1 --seeds 1 "
        f"--out {tmp_path}/set --result {kept}"
    )
    done = smallvit(line, *TINY_WORDS, *("--set", "model.options={}"))
    assert done.exit_code == 0, done.output
    result = read_curve(kept)
    assert [each.model for each in result.models] == names
    assert (result.title, result.data, result.budget) == ("noise", source.name, "4 steps")
    assert [point.images for point in result.models[0].points] == [18, 48, 96]
    answers = [each.answer for each in result.models]
    assert all(a.startswith(f"{n}: with twice") for n, a in zip(names, answers, strict=True))
    assert all(answer in " ".join(done.output.split()) for answer in answers)
    summary = json.loads((tmp_path / "set/summary.json").read_text())
    for model, plain in zip(result.models, summary["models"], strict=True):
        assert [p.accuracy.value for p in model.points] == [
            p["accuracy"]["value"] for p in plain["points"]
        ]
    figure = ElementTree.parse(tmp_path / "set/figure.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert [each.text for each in figure.iter(f"{space}text") if each.get("class") == "label"] == [
        name if len(name) <= 48 else f"{name[:47]}…" for name in names
    ]
    assert len(list(figure.iter(f"{space}polyline"))) == 6  # each once more in the legend
    # Notes are written by hand, and stay.
    write_curve(kept, replace(result, notes=()))
    noted = replace(result, data=str(source), notes=("On a CPU.",))  # as older files say it
    kept.write_text(json.dumps(to_plain(noted)))
    write_curve(kept, result)
    assert read_curve(kept) == replace(result, notes=noted.notes)
    with pytest.raises(ValueError, match="has curves of"):
        write_curve(kept, replace(result, data="other"))
    assert "vit_lite_2_p4: with twice the images" in " ".join(done.output.split())
    assert "expected numbers" in smallvit(f"curve {source} --shares a,b").output
