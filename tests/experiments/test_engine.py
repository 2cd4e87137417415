"""A set of runs: resumable, never repeated, and the same however often it is killed."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from smallvit.experiments import (
    ablate_set,
    begin,
    compare_set,
    conclude,
    conduct,
    read_outcomes,
)
from smallvit.experiments.folder import alone, read_set, relocate
from smallvit.experiments.sets import Member, RunSet, slug
from smallvit.runs import Run
from smallvit.training.step import Stepper
from tests.experiments.conftest import TINY_WORDS
from tests.training.makers import assert_same_run

WORKER = Path(__file__).parents[1] / "training" / "worker.py"
ROOT = Path(__file__).parents[2]
MODELS = "vit_lite_2_p4,compact_vit_2_p4,cct_2_3x1,cct_2_3x2"


def command(*words, kill_at=""):
    """`smallvit` as a process of its own, which may kill itself."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if kill_at:
        environment["KILL_AT"] = kill_at
    return subprocess.run(
        [sys.executable, str(WORKER), "smallvit", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


def test_twenty_runs_killed_three_times_end_as_those_that_were_not(source, settings, tmp_path):
    whole = tmp_path / "whole"
    begin(whole, compare_set(settings("loop.checkpoint_seconds=0"), [MODELS], seeds=5))
    assert conduct(whole)
    out = tmp_path / "killed"
    line = ["compare", source, "--models", MODELS, "--seeds", 5, "--out", out, *TINY_WORDS]
    line += ["--set", "loop.checkpoint_seconds=0"]
    # In the middle of a run, while files are moved to their places, and late in a run.
    for kill_at in ("step:27", "replace:40", "step:23"):
        done = command(*line, kill_at=kill_at)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    states = [outcome.state for outcome in read_outcomes(out)]
    assert states[0] == "finished"
    assert states[-1] == "waiting"
    kept = [path.stat().st_mtime_ns for path in sorted(out.glob("vit*/run.json"))]
    done = command("compare", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.stat().st_mtime_ns for path in sorted(out.glob("vit*/run.json"))] == kept
    assert len(read_outcomes(out)) == 20
    for ours, theirs in zip(read_outcomes(out), read_outcomes(whole), strict=True):
        assert ours.state == "finished"
        assert_same_run(ours.run, theirs.run)
    conclude(whole)
    rows = [json.loads((folder / "summary.json").read_text())["rows"] for folder in (whole, out)]
    for one, other in zip(*rows, strict=True):
        assert one["accuracies"] == other["accuracies"]
        assert len(one["accuracies"]) == 5
        assert (one["accuracy"], one["p"]) == (other["accuracy"], other["p"])


def made(settings, *more, models="vit_lite_2_p4", seeds=1):
    return compare_set(settings(*more), [models], seeds=seeds)


def test_what_fails_is_reported_beside_the_rest_and_tried_again(settings, tmp_path):
    runs = made(settings, models="vit_lite_2_p4,vit_9_p4,cct_2_3x1")
    bad = {**runs.members[1].changes, "model": {"name": "vit_9_p4", "options": {"dim": 33}}}
    members = (runs.members[0], Member(row="vit_9_p4", seed=0, changes=bad), runs.members[2])
    begin(tmp_path / "set", RunSet(kind="compare", members=members))
    ended = []
    assert conduct(tmp_path / "set", ended=ended.append)
    assert [each.state for each in ended] == ["finished", "failed", "finished"]
    assert "33" in ended[1].error
    sheet = conclude(tmp_path / "set")
    assert list(sheet.failures) == ["vit_9_p4, seed 0"]
    summary = json.loads((tmp_path / "set/summary.json").read_text())
    assert [bool(row["errors"]) for row in summary["rows"]] == [False, True, False]
    again = []
    assert conduct(tmp_path / "set", started=again.append)
    assert [member.row for member in again] == ["vit_9_p4"]


def test_a_damaged_run_does_not_hide_the_others(settings, tmp_path):
    begin(tmp_path / "set", made(settings, seeds=2))
    assert conduct(tmp_path / "set")
    (tmp_path / "set/vit_lite_2_p4-seed-0/run.json").write_text("{")
    first, second = read_outcomes(tmp_path / "set")
    assert (first.state, second.state) == ("failed", "finished")
    assert "run.json" in first.error
    assert conclude(tmp_path / "set").failures == {"vit_lite_2_p4, seed 0": first.error}
    assert conduct(tmp_path / "set")


def test_a_requested_stop_keeps_what_was_trained(settings, tmp_path, monkeypatch):
    folder = tmp_path / "set"
    begin(folder, made(settings, seeds=2))
    real = Stepper.__call__

    def call(stepper, batch, step, **named):
        real(stepper, batch, step, **named)
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Stepper, "__call__", call)
    assert not conduct(folder)
    assert [each.state for each in read_outcomes(folder)] == ["unfinished", "waiting"]
    assert "Cannot tell" in conclude(folder).lead[0]
    monkeypatch.setattr(Stepper, "__call__", real)
    assert conduct(folder)
    assert [each.state for each in read_outcomes(folder)] == ["finished"] * 2


def test_a_set_goes_on_with_more_seeds_but_not_with_other_settings(settings, tmp_path):
    folder = tmp_path / "set"
    begin(folder, made(settings))
    more = begin(folder, made(settings, models="vit_lite_2_p4,cct_2_3x1", seeds=2))
    names = ["vit_lite_2_p4, seed 0", "vit_lite_2_p4, seed 1", "cct_2_3x1, seed 0"]
    assert [member.name for member in more.members] == [*names, "cct_2_3x1, seed 1"]
    assert read_set(folder) == begin(folder, None) == more
    with pytest.raises(ValueError, match=r"optim\.lr was 0\.002 and is 0\.1"):
        begin(folder, made(settings, "optim.lr=0.1"))
    with pytest.raises(
        ValueError, match=r"for swin_tiny_p4, seed 0 schedule\.steps was 4 and is 8"
    ):
        begin(folder, made(settings, "schedule.steps=8", models="swin_tiny_p4"))
    with pytest.raises(ValueError, match=r"data\.seed was None and is 5"):
        begin(folder, made(settings, "seed=5", "data.seed=5"))
    assert read_set(folder) == more
    with pytest.raises(ValueError, match="a set for `smallvit compare`"):
        begin(folder, RunSet(kind="curve", members=()))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ValueError, match="nothing in it is overwritten"):
        begin(tmp_path / "taken", made(settings))
    with pytest.raises(ValueError, match="no set of runs"):
        begin(tmp_path / "nothing", None)
    plain = json.loads((folder / "set.json").read_text())
    (folder / "set.json").write_text(json.dumps({**plain, "format": 2}))
    with pytest.raises(ValueError, match="newer version"):
        read_set(folder)


def test_the_budget_that_a_recipe_chose_is_kept(source, tmp_path):
    """It may be another one every time: the recipe measures how fast the machine is."""
    open_budget = {"data": {"source": str(source)}, "loop": {"device": "cpu"}}
    first = {**open_budget, "schedule": {"epochs": 3.0, "warmup": 0.2}}
    for number, more in enumerate((compare_set, ablate_set)):
        named = [["cct_2_3x1", "vit_lite_2_p4"]] if more is compare_set else []
        own = {} if named else {"model": {"name": "vit_lite_2_p4"}}

        def made_with(settings, seeds, more=more, named=named, own=own):
            found = more({**settings, **own}, *named, seeds=seeds)
            return found if isinstance(found, RunSet) else found[0]

        folder = tmp_path / str(number)
        begin(folder, made_with(first, 1))
        later = {**open_budget, "schedule": {"warmup": 0.2}}
        runs = begin(folder, made_with(later, 2))
        assert {member.changes["schedule"]["epochs"] for member in runs.members} == {3.0}
        assert runs.facts["budget"] == "3 epochs"
        assert {member.seed for member in runs.members} == {0, 1}


def test_a_script_that_is_run_again_goes_on(settings, tmp_path):
    sized = settings()
    sized["data"]["image_size"] = (16, 16)  # which a file keeps as a list
    first = begin(tmp_path / "set", compare_set(sized, ["vit_lite_2_p4"], seeds=1))
    again = begin(tmp_path / "set", compare_set(sized, ["vit_lite_2_p4"], seeds=1))
    assert again.rows == first.rows


def test_one_process_at_a_time(settings, tmp_path):
    folder = tmp_path / "set"
    begun = begin(folder, made(settings))
    seen = []

    def second(member):
        with pytest.raises(ValueError, match="another process"):
            conduct(folder)
        with pytest.raises(ValueError, match="another process"):
            begin(folder, made(settings, seeds=2))
        with pytest.raises(ValueError, match="another process"):
            relocate(folder, {"source": str(tmp_path)})
        assert read_set(folder).members == begun.members
        seen.append(member)

    assert conduct(folder, started=second)
    assert len(seen) == 1


def test_one_process_at_a_time_where_the_file_system_has_no_locks(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    for _ in range(2):
        with alone(tmp_path), pytest.raises(ValueError, match="another process"), alone(tmp_path):
            raise AssertionError("two at a time")


def test_a_lock_that_is_a_link_is_left_alone(settings, tmp_path):
    folder, victim = tmp_path / "set", tmp_path / "mine"
    begin(folder, made(settings))
    victim.write_text("mine")
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(OSError, match=r"\.lock"):
        conduct(folder)
    assert victim.read_text() == "mine"


def test_every_member_keeps_the_commit_it_was_trained_with(settings, tmp_path, monkeypatch):
    folder, tool = tmp_path / "set", tmp_path / "git"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def at_commit(name):
        tool.write_text(f"#!/bin/sh\necho {name}\n")
        tool.chmod(0o755)

    def trained_with():
        runs = read_set(folder)
        return runs.commits, [runs.trained_with(member) for member in runs.members]

    at_commit("one")
    begin(folder, made(settings))
    assert conduct(folder)
    assert trained_with() == (("one",), ["one"])
    at_commit("two")
    begin(folder, made(settings, seeds=2))
    assert conduct(folder)
    assert trained_with() == (("one", "two"), ["one", "two"])
    at_commit("three")
    begin(folder, None)
    assert conduct(folder)
    assert trained_with() == (("one", "two"), ["one", "two"])


def test_the_command_is_the_one_that_repeats_the_whole_set(settings, tmp_path):
    folder = tmp_path / "set"

    def add(command, **how):
        return begin(folder, replace(made(settings, **how), command=command)).command

    assert add("a --seeds 1") == "a --seeds 1"
    assert add("a --seeds 2", seeds=2) == "a --seeds 2"
    assert add("a --seeds 1") == "a --seeds 2"
    assert add("b", models="cct_2_3x1") == "a --seeds 2 && b"


def test_names_and_seeds(settings, monkeypatch, tmp_path):
    runs = made(settings, "seed=7", "data.seed=3", seeds=2)
    assert [(member.seed, member.changes["seed"]) for member in runs.members] == [(7, 7), (8, 8)]
    assert {member.changes["data"]["seed"] for member in runs.members} == {3}
    assert slug("timm/resnet18.a1_in1k") == "timm-resnet18.a1_in1k"
    assert slug("cct_2_3x2+spt+lsa") == "cct_2_3x2+spt+lsa"
    twice = [Member(row=row, seed=0, changes={}) for row in ("a/b", "a b")]
    with pytest.raises(ValueError, match="trained twice"):
        RunSet(kind="compare", members=tuple(twice))
    begin(tmp_path / "set", runs)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="torchrun"):
        conduct(tmp_path / "set")


def test_every_member_is_an_ordinary_run(settings, tmp_path):
    begin(tmp_path / "set", made(settings))
    conduct(tmp_path / "set")
    run = Run.open(tmp_path / "set" / "vit_lite_2_p4-seed-0")
    assert run.finished
    assert run.config.schedule.steps == 4
    assert run.evaluation().count == 60
    assert "vit_lite_2_p4, seed 0" in run.info["command"]
