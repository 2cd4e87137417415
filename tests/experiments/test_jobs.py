"""Runs beside each other end as those that were trained one after the other."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smallvit.config_io import nested, overlaid
from smallvit.experiments import begin, compare_set, conduct, read_outcomes
from smallvit.experiments.jobs import conduct_jobs
from smallvit.files import read_json
from smallvit.runs import Run
from smallvit.runs.changes import changes_of
from smallvit.runs.places import LOCK
from tests.experiments.conftest import TINY, TINY_WORDS
from tests.experiments.test_compare import smallvit
from tests.training.makers import assert_same_run

ROOT = Path(__file__).parents[2]
LASTING = ("loop.checkpoint_seconds=0", "schedule.steps=200", "loop.every=10")


@pytest.fixture(autouse=True)
def one_thread_for_each(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def leave_threads_open(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def until(true):
    """Waits for what is about to happen in another process."""
    pause = threading.Event()
    for _ in range(6000):
        if true():
            return
        pause.wait(1 / 50)
    raise AssertionError("it did not happen")


def saved(folder, member):
    return bool(list((folder / member.folder / "checkpoints").glob("*.json")))


def in_its_steps(run):
    log = run / "log.jsonl"
    return log.is_file() and '"train"' in log.read_text()


@contextmanager
def meanwhile(act):
    """Does something in a thread while the body runs."""
    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def assert_same_set(ours, theirs):
    for one, other in zip(read_outcomes(ours), read_outcomes(theirs), strict=True):
        assert (one.state, one.error) == (other.state, other.error)
        if one.state == "finished":
            assert_same_run(one.run, other.run)
            assert one.run.evaluation() == other.run.evaluation()


@pytest.fixture(scope="module")
def lasting(source, tmp_path_factory):
    """A set of a run that takes a while and one that does not, and what becomes of it."""
    settings = changes_of([f"data.source={source}", *TINY, *LASTING])
    runs = compare_set(settings, ["vit_lite_2_p4"], seeds=2)
    first, second = runs.members
    short = overlaid(second.changes, nested("schedule.steps", 4))
    runs = replace(runs, members=(first, replace(second, changes=short)))
    whole = tmp_path_factory.mktemp("lasting") / "whole"
    begin(whole, runs)
    assert conduct(whole)
    return runs, whole


def test_two_at_a_time_give_the_same_as_one_after_the_other(settings, tmp_path):
    runs = compare_set(settings(), ["vit_lite_2_p4", "swin_tiny_p4", "cct_2_3x1"], seeds=2)
    failing = "swin_tiny_p4, seed 0"
    members = [each for each in runs.members if each.row != "swin_tiny_p4" or each.name == failing]
    runs = replace(runs, members=tuple(members))
    whole, folder = tmp_path / "whole", tmp_path / "set"
    for each in (whole, folder):
        begin(each, runs)
    assert conduct(whole)
    started, ended = [], []
    assert conduct_jobs(folder, 2, started=started.append, ended=ended.append)
    assert tuple(started) == runs.members
    assert [each.member.name for each in ended if each.state == "failed"] == [failing]
    assert_same_set(folder, whole)


def test_a_killed_worker_costs_its_own_run_alone(lasting, tmp_path):
    runs, whole = lasting
    folder, victim, ended = tmp_path / "set", runs.members[0], []
    begin(folder, runs)

    def kill():
        until(lambda: saved(folder, victim))
        os.kill(read_json(folder / victim.folder / LOCK)["pid"], signal.SIGKILL)

    with meanwhile(kill):
        assert conduct_jobs(folder, 2, ended=ended.append)
    errors = {each.member.name: each.error for each in ended}
    assert "killed by SIGKILL" in errors[victim.name]
    assert errors[runs.members[1].name] == ""
    kept = (folder / runs.members[1].folder / "run.json").stat().st_mtime_ns
    done = smallvit(f"compare --out {folder} --jobs 2")
    assert done.exit_code == 0, done.output
    assert (folder / runs.members[1].folder / "run.json").stat().st_mtime_ns == kept
    assert_same_set(folder, whole)


def stop_the_first(folder, runs):
    """Begins a set, and stops it in the middle of its first run."""
    begin(folder, runs)

    def stop():
        until(lambda: saved(folder, runs.members[0]))
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(stop):
        assert not conduct_jobs(folder, 1)


def test_what_was_stopped_goes_on_with_as_many_threads(lasting, tmp_path, monkeypatch):
    runs, whole = lasting
    folder, member = tmp_path / "set", runs.members[0]
    stop_the_first(folder, runs)
    states = [each.state for each in read_outcomes(folder)]
    assert states == ["unfinished", "waiting"]
    assert Run.open(folder / member.folder).info["status"] == "interrupted"
    leave_threads_open(monkeypatch)
    assert conduct_jobs(folder, 2)
    run = Run.open(folder / member.folder)
    assert run.info["threads"] == 1
    assert "earlier" not in run.info
    assert_same_run(run, whole / member.folder)


def test_what_was_stopped_goes_on_alone_with_as_many_threads(lasting, tmp_path, monkeypatch):
    runs, whole = lasting
    folder, member = tmp_path / "set", runs.members[0]
    stop_the_first(folder, runs)
    leave_threads_open(monkeypatch)
    torch.set_num_threads(2)
    try:
        assert conduct(folder)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    first, second = (Run.open(folder / each.folder).info["threads"] for each in runs.members)
    assert (first, second) == (1, 2)
    assert_same_run(folder / member.folder, whole / member.folder)


def test_no_worker_outlives_a_killed_command(source, tmp_path):
    folder = tmp_path / "set"
    line = ["compare", source, "--models", "vit_lite_2_p4", "--seeds", "2", "--out", folder]
    words = [*map(str, line), *TINY_WORDS, "--set", "schedule.steps=1000000", "--jobs", "2"]
    running = subprocess.Popen([sys.executable, "-m", "smallvit", *words], cwd=ROOT)
    until(lambda: all((folder / f"vit_lite_2_p4-seed-{n}" / LOCK).exists() for n in range(2)))
    running.kill()
    running.wait()

    def free():
        try:
            for outcome in read_outcomes(folder):
                with Run.open(outcome.run).locked():  # a process that has ended holds nothing
                    pass
        except ValueError:
            return False
        return True

    until(free)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_the_command_stops_as_for_one_run(source, tmp_path, number):
    folder = tmp_path / "set"
    line = ["compare", source, "--models", "vit_lite_2_p4", "--seeds", "2", "--out", folder]
    words = [*map(str, line), *TINY_WORDS, "--set", "schedule.steps=1000000", "--jobs", "2"]
    words += ["--set", "loop.checkpoint_seconds=0"]
    running = subprocess.Popen(
        [sys.executable, "-m", "smallvit", *words],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(lambda: all(in_its_steps(folder / f"vit_lite_2_p4-seed-{seed}") for seed in (0, 1)))
    os.killpg(running.pid, number)  # to the workers too, as a terminal and `timeout` send it
    _, said = running.communicate()
    assert running.returncode == 130
    assert f"stopped; go on with: smallvit compare --out {folder} --jobs 2" in said
    for seed in range(2):
        assert f"vit_lite_2_p4, seed {seed}: stopped after" in said
    assert "Traceback" not in said
    assert [each.state for each in read_outcomes(folder)] == ["unfinished"] * 2


def test_threads_are_shared(settings, tmp_path, monkeypatch):
    leave_threads_open(monkeypatch)
    folder = tmp_path / "set"
    begin(folder, compare_set(settings(), ["vit_lite_2_p4"], seeds=1))
    assert conduct_jobs(folder, 10_000)
    (outcome,) = read_outcomes(folder)
    assert outcome.run.info["threads"] == 1


def test_what_is_refused(source, settings, tmp_path):
    line = f"compare {source} --models vit_lite_2_p4 --seeds 2 --out {tmp_path}/set"
    done = smallvit(line, "--on", "ray", "--jobs", "2")
    assert (done.exit_code, "--jobs is for this machine" in done.output) == (2, True)
    done = smallvit(line, "--jobs", "0")
    assert (done.exit_code, "--jobs" in done.output) == (2, True)
    done = smallvit(line, "--minutes", "1", "--jobs", "2")
    assert "--jobs 2 does not go with minutes" in str(done.exception)
    line = f"curve {source} --shares 0.5,0.7,1 --seeds 1 --out {tmp_path}/set"
    assert "a recipe that measures" in str(smallvit(line, "--jobs", "2").exception)
    assert not (tmp_path / "set").exists()
    runs = compare_set(settings(), ["vit_lite_2_p4"], seeds=1)
    timed = [
        replace(each, changes=overlaid(each.changes, nested("schedule.minutes", 1)))
        for each in runs.members
    ]
    begin(tmp_path / "set", replace(runs, members=tuple(timed)))
    with pytest.raises(ValueError, match="minutes"):
        conduct_jobs(tmp_path / "set", 2)
    with pytest.raises(ValueError, match="jobs is 0"):
        conduct_jobs(tmp_path / "set", 0)
