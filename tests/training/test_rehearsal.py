"""The step is compiled while images are decoded, and the run is what it would have been."""

import gc
import signal
import subprocess
import sys
import threading
import weakref
from unittest.mock import Mock

import pytest
import torch
from torch._dynamo.utils import counters

from smallvit.data import cache
from smallvit.training import resume, train
from smallvit.training.step import Stepper
from tests.training.makers import RANDOM, assert_same_run, folder_of_images, tiny

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.filterwarnings("ignore"),  # Dynamo's advice on graph breaks
]
COMPILED = (*RANDOM, "loop.compiled=true", "optim.ema=0.9", "model.options.dropout=0.1")


def as_it_is(graph, _):
    """A compiler that is done at once."""
    return graph.forward


@pytest.fixture
def quick(monkeypatch):
    """Has Dynamo find graphs and guards as always, and nothing generate code for them."""
    real = torch.compile
    torch._dynamo.reset()

    def compile_quickly(function, **named):
        return real(function, backend=as_it_is, **named)

    monkeypatch.setattr(torch, "compile", compile_quickly)


@pytest.fixture
def graphs(monkeypatch):
    """How many graphs were compiled after each step of training."""
    seen, real = [], Stepper.__call__

    def call(stepper, batch, step, **named):
        seen.append(counters["stats"]["unique_graphs"])
        real(stepper, batch, step, **named)
        seen.append(counters["stats"]["unique_graphs"])

    monkeypatch.setattr(Stepper, "__call__", call)
    counters.clear()
    return seen


@pytest.fixture
def rehearsed(monkeypatch):
    """The models that were rehearsed with, in which thread."""
    seen, real = [], Stepper.rehearse

    def rehearse(stepper, batch, **named):
        real(stepper, batch, **named)
        name = threading.current_thread().name
        seen.append((weakref.ref(stepper.objective.model), name))

    monkeypatch.setattr(Stepper, "rehearse", rehearse)
    return seen


@pytest.mark.parametrize("regional", [False, True])
def test_the_real_steps_compile_nothing_and_are_the_same(
    tmp_path, quick, graphs, rehearsed, regional
):
    folder = folder_of_images(tmp_path / "data", 60)
    more = ["augment.policy=trivial"] if regional else ["loss.drloc=0.1"]
    config = tiny(folder, *COMPILED, *more, f"loop.regional={regional}", steps=3, batch=16)
    ours = train(config, out=tmp_path / "ours", shown=False)
    assert len(graphs) == 6
    assert set(graphs) == {graphs[0]}
    assert graphs[0] > 0
    gc.collect()
    assert [(model(), name) for model, name in rehearsed] == [(None, "rehearses")]
    torch._dynamo.reset()
    theirs = train(config, out=tmp_path / "theirs", shown=False)  # its images are decoded
    assert len(rehearsed) == 1
    assert graphs[6] < graphs[7]
    assert_same_run(ours, theirs)


def test_one_that_fails_says_nothing_and_changes_nothing(tmp_path, monkeypatch, logged, quick):
    folder = folder_of_images(tmp_path / "data", 60)
    config = tiny(folder, *COMPILED, steps=1, batch=16)
    fails = Mock(side_effect=torch.OutOfMemoryError("not enough"))
    monkeypatch.setattr(Stepper, "rehearse", fails)
    ours = train(config, out=tmp_path / "ours", shown=False)
    assert fails.call_count == 1
    assert "not enough" not in logged()
    assert "compiling the step" in logged()
    theirs = train(config, out=tmp_path / "theirs", shown=False)
    assert fails.call_count == 1
    assert_same_run(ours, theirs)


def test_nothing_is_rehearsed_where_nothing_is_decoded_or_compiled(
    tmp_path, source, rehearsed, quick
):
    folder = folder_of_images(tmp_path / "data")
    train(tiny(folder, steps=1, batch=8), out=tmp_path / "plain", shown=False)
    train(tiny(source, "loop.compiled=true", steps=1), out=tmp_path / "array", shown=False)
    assert not rehearsed


def test_a_run_goes_on_with_a_step_that_was_rehearsed(
    tmp_path, monkeypatch, graphs, rehearsed, quick
):
    folder = folder_of_images(tmp_path / "data", 60)
    config = tiny(folder, *COMPILED, steps=2, batch=16)
    whole = train(config, out=tmp_path / "whole", shown=False)
    real = Stepper.__call__

    def call(stepper, batch, step, **named):
        signal.raise_signal(signal.SIGTERM)  # this step is still taken
        real(stepper, batch, step, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "__call__", call)
        assert not train(config, out=tmp_path / "part", shown=False).finished
    cache.clear()
    torch._dynamo.reset()
    graphs.clear()
    part = resume(tmp_path / "part", shown=False)
    assert len(rehearsed) == 2
    assert len(set(graphs)) == 1
    assert_same_run(whole, part)


INTERRUPTED = """
import sys, time
from torch._dynamo.utils import counters
from smallvit.data import Dataset
from smallvit.training import train
from smallvit.training.step import Stepper
from tests.training.makers import tiny

rehearse = Stepper.rehearse

def told(stepper, batch, **named):
    rehearse(stepper, batch, **named)
    print("rehearsed")

def pixels(dataset, split, **named):
    while not counters["stats"]["unique_graphs"]:
        time.sleep(0.01)  # not in the compiler yet
    raise KeyboardInterrupt

Stepper.rehearse, Dataset.pixels = told, pixels
try:
    train(tiny(sys.argv[1], "loop.compiled=true", batch=16), out=sys.argv[2], shown=False)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(3)
"""


def test_an_interrupted_command_does_not_wait_for_the_compiler(tmp_path):
    folder = folder_of_images(tmp_path / "data", 60)
    words = [sys.executable, "-W", "ignore", "-c", INTERRUPTED, str(folder), str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "interrupted\n"), done.stderr
    assert "Exception" not in done.stderr
