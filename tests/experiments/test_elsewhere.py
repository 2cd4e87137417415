"""A set that is stopped, copied and goes on where its data lies somewhere else."""

import json
import os
import shutil
import signal
from importlib import import_module

import pytest

from smallvit.experiments import begin, conduct, read_outcomes, reproduce_set
from smallvit.experiments import folder as set_folder
from smallvit.experiments.folder import read_set, relocate
from smallvit.experiments.results import read_results
from smallvit.recipes import plan
from smallvit.runs import Run
from smallvit.runs.changes import changes_of
from smallvit.training import resume, train
from smallvit.training.step import Stepper
from tests.experiments.conftest import TINY, TINY_WORDS
from tests.experiments.test_compare import smallvit
from tests.training.makers import arrays, assert_same_run

ROW = "cifar100/vit-lite-7-4"
SET = "runs/reproduce/cifar100-vit-lite-7-4"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Has everything go on on another machine: another folder, cache, device and commit."""
    machines = []

    def move(device, commit, source):
        here = tmp_path / device
        if machines:
            shutil.copytree(machines[-1] / "runs", here / "runs")
            machines[-1].rename(tmp_path / f"gone {device}")
        (here / "data").mkdir(parents=True, exist_ok=True)
        data = shutil.copy(source, here / "data" / f"{device}.npz")
        monkeypatch.chdir(here)
        monkeypatch.setenv("SMALLVIT_CACHE", str(here / "cache"))
        monkeypatch.setattr(set_folder, "_commit", lambda: commit)
        about = {"smallvit": "1", "torch": "2", "python": "3", "device": device}
        module = import_module("smallvit.training.train")
        monkeypatch.setattr(module, "_machine", lambda world: about)
        machines.append(here)
        return data

    return move


def stop_at(monkeypatch, number, signals=signal.SIGTERM):
    """Requests a stop at that step, counted over all runs."""
    steps, real = [], Stepper.__call__

    def call(stepper, batch, step, **named):
        real(stepper, batch, step, **named)
        steps.append(step)
        if len(steps) == number:
            os.kill(os.getpid(), signals)

    monkeypatch.setattr(Stepper, "__call__", call)


def test_a_row_in_parts_on_three_machines(source, tmp_path, monkeypatch, machine):
    data = machine("one", "a", source)
    with monkeypatch.context() as patch:
        stop_at(patch, 7)
        done = smallvit(f"reproduce {ROW} --data {data} --seeds 2", *TINY_WORDS)
    assert done.exit_code == 130
    (kept,) = read_results(tmp_path / "one/results")  # what is finished is kept at once
    assert [each.seed for each in kept.trainings] == [0]

    data = machine("two", "b", source)
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        done = smallvit(f"reproduce {ROW} --data {data} --seeds 3", *TINY_WORDS)
    assert done.exit_code == 130
    states = [each.state for each in read_outcomes(tmp_path / "two" / SET)]
    assert states == ["finished", "finished", "unfinished"]

    data = machine("three", "", source)
    done = smallvit(f"reproduce --out {SET} --data {data}")
    assert done.exit_code == 0, done.output
    (result,) = read_results(tmp_path / "three/results")
    assert [each.seed for each in result.trainings] == [0, 1, 2]
    assert [each.hardware for each in result.trainings] == ["one", "one, two", "two, three"]
    assert [each.commit for each in result.trainings] == ["a", "a, b", "b, unknown"]
    summary = json.loads((tmp_path / "three" / SET / "summary.json").read_text())
    assert summary["accuracies"] == result.accuracies  # of other names, and the same images
    assert result.data == "one.npz"  # a name and no path of one machine
    runs = [each.run for each in read_outcomes(tmp_path / "three" / SET)]
    assert [run.config.data.source for run in runs][1:] == [
        str(tmp_path / name / "data" / f"{name}.npz") for name in ("two", "three")
    ]

    begin(
        tmp_path / "whole", reproduce_set(ROW, changes_of([f"data.source={data}", *TINY]), seeds=3)
    )
    assert conduct(tmp_path / "whole")
    for ours, theirs in zip(runs, read_outcomes(tmp_path / "whole"), strict=True):
        shutil.copy(theirs.run.folder / "evaluation.json", ours.folder)  # it names the file
        assert_same_run(ours, theirs.run)


def test_a_comparison_whose_data_moved(source, tmp_path):
    out, there = tmp_path / "set", tmp_path / "there.npz"
    line = f"compare {source} --models vit_lite_2_p4,cct_2_3x1 --seeds 1 --out {out}"
    assert smallvit(line, *TINY_WORDS).exit_code == 0
    shutil.rmtree(out / "cct_2_3x1-seed-0")
    shutil.copy(source, there)
    refused = smallvit(f"compare {there} --out {out} --seeds 2")
    assert "--seeds: a set goes on with what it began with" in refused.output
    done = smallvit(f"compare {there} --out {out}")
    assert done.exit_code == 0, done.output
    assert Run.open(out / "cct_2_3x1-seed-0").config.data.source == str(there)
    rows = json.loads((out / "summary.json").read_text())["rows"]
    assert rows[1]["difference"] is not None


def test_other_images_do_not_join(source, tmp_path):
    def begun(data, **how):
        settings = changes_of([f"data.source={data}", *TINY])
        begin(tmp_path / "set", reproduce_set(ROW, settings, **how))
        conduct(tmp_path / "set")
        return read_outcomes(tmp_path / "set")

    begun(source)
    other = arrays(tmp_path / "other.npz", train=96, val=24, test=60, seed=1)
    first, second = begun(other, seeds=2)
    assert (first.state, second.state) == ("finished", "failed")
    assert "has other test images than" in second.error
    assert begun(source, seeds=2)[1].state == "finished"


def test_images_that_were_changed_in_place_do_not_join(source, tmp_path):
    data, folder = tmp_path / "data.npz", tmp_path / "set"
    settings = changes_of([f"data.source={data}", *TINY])
    for number, seed in enumerate((0, 1), 1):
        arrays(data, train=96, val=24, test=60, seed=seed)
        begin(folder, reproduce_set(ROW, settings, seeds=number))
        assert conduct(folder)
    first, second = read_outcomes(folder)
    assert (first.state, second.state) == ("finished", "failed")
    assert "has other test images than" in second.error
    (first.run.folder / "run.json").write_text("{")  # it is damaged, and keeps no other one back
    assert conduct(folder)
    assert [each.state for each in read_outcomes(folder)] == ["failed", "finished"]


def test_a_command_for_another_set_moves_no_data(source, tmp_path):
    begin(tmp_path / "set", reproduce_set(ROW, changes_of([f"data.source={source}", *TINY])))
    other = arrays(tmp_path / "other.npz")
    before = read_set(tmp_path / "set")
    for line in (f"compare {other}", f"reproduce --data {other} --on ray --jobs 2"):
        assert smallvit(f"{line} --out {tmp_path}/set").exit_code == 2
    assert read_set(tmp_path / "set") == before


def test_results_that_cannot_be_kept_stop_no_run(source, tmp_path):
    (tmp_path / "file").touch()
    line = f"reproduce {ROW} --data {source} --seeds 2 --out {tmp_path}/set"
    done = smallvit(f"{line} --results {tmp_path}/file/results", *TINY_WORDS)
    assert isinstance(done.exception, OSError)
    assert [each.state for each in read_outcomes(tmp_path / "set")] == ["finished"] * 2


def test_a_run_that_began_refuses_other_images(source, tmp_path, monkeypatch):
    settings = changes_of([f"data.source={source}", *TINY])
    begin(tmp_path / "set", reproduce_set(ROW, settings))
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        assert not conduct(tmp_path / "set")
    relocate(tmp_path / "set", {"source": str(arrays(tmp_path / "other.npz", seed=1))})
    assert conduct(tmp_path / "set")
    (outcome,) = read_outcomes(tmp_path / "set")
    assert "has changed since the run began" in outcome.error
    relocate(tmp_path / "set", {"source": str(source)})
    assert conduct(tmp_path / "set")
    assert read_outcomes(tmp_path / "set")[0].state == "finished"


def test_a_root_that_is_no_longer_given_is_forgotten(source, tmp_path, monkeypatch):
    settings = changes_of([f"data.source={source}", *TINY])
    there = {**settings, "data": {**settings["data"], "root": "datasets/there"}}
    begin(tmp_path / "set", reproduce_set(ROW, there))
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        assert not conduct(tmp_path / "set")
    begin(tmp_path / "set", reproduce_set(ROW, settings))
    assert conduct(tmp_path / "set")
    (outcome,) = read_outcomes(tmp_path / "set")
    assert (outcome.state, outcome.run.config.data.root) == ("finished", None)


def test_nowhere_is_refused_before_anything_is_written(source, tmp_path):
    begin(tmp_path / "set", reproduce_set(ROW, changes_of([f"data.source={source}", *TINY])))
    before = read_set(tmp_path / "set")
    with pytest.raises(ValueError, match="nowhere does not exist"):
        relocate(tmp_path / "set", {"source": str(tmp_path / "nowhere")})
    assert read_set(tmp_path / "set") == before
    relocate(tmp_path / "set", {"source": "cifar100", "root": "datasets"})
    (member,) = read_set(tmp_path / "set").members
    assert (member.changes["data"]["source"], member.changes["data"]["root"]) == (
        "cifar100",
        "datasets",
    )


def test_a_copy_of_the_code_says_its_commit(tmp_path, monkeypatch):
    (tmp_path / "git").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set_folder._commit() == ""
    monkeypatch.setenv("SMALLVIT_COMMIT", "1a2b3c4")
    assert set_folder._commit() == "1a2b3c4"


def test_steps_before_a_stop_count_in_the_time(source, tmp_path, monkeypatch):
    """Every step takes ten seconds; the first of each process is left out, as others follow it."""
    taken, real = [], Stepper.__call__

    def call(stepper, batch, step, **named):
        real(stepper, batch, step, **named)
        taken.append(step)

    monkeypatch.setattr(Stepper, "__call__", call)
    settings = changes_of(
        [f"data.source={source}", "model.name=vit_lite_2_p4", *TINY, "data.val=0"]
    )
    config = plan(changes=settings).config.changed({"schedule": {"steps": 8}, "loop": {"every": 4}})

    def clock():
        return 10.0 * len(taken)

    with monkeypatch.context() as patch:
        stop_at(patch, 6)
        train(config, out=tmp_path / "run", shown=False, clock=clock)
    resume(tmp_path / "run", shown=False, clock=clock)
    lines = [line for line in Run.open(tmp_path / "run").log() if line["kind"] == "train"]
    assert [(line["step"], line["seconds"]) for line in lines] == [(4, 30), (8, 30)]
