"""A small dataset, settings that train in a moment, and sets made of them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from smallvit.evaluation import Evaluation, measure
from smallvit.experiments import Member, RunSet, begin
from smallvit.runs import Run, RunConfig
from smallvit.runs.changes import changes_of
from smallvit.training import train
from tests.training.makers import arrays

TINY = (
    "model.options.dim=32",
    "model.options.num_heads=2",
    "optim.lr=2e-3",
    "schedule.steps=4",
    "loop.batch_size=16",
    "loop.every=2",
    "loop.device=cpu",
)
#: The same for a command line.
TINY_WORDS = [word for text in TINY for word in ("--set", text)]


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALLVIT_CACHE", str(tmp_path_factory.mktemp("cache of smallvit")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    """96 images to train on, 24 to validate, 60 to test, of three classes."""
    path = tmp_path_factory.mktemp("data") / "noise.npz"
    return arrays(path, train=96, val=24, test=60)


@pytest.fixture
def settings(source):
    """A partial config; more assignments may follow."""

    def make(*more: str) -> dict:
        return changes_of([f"data.source={source}", *TINY, *more])

    return make


@pytest.fixture(scope="session")
def run(source, tmp_path_factory) -> Run:
    """One small run, for sets whose numbers are written by hand."""
    folder = tmp_path_factory.mktemp("one")
    changes = changes_of([f"data.source={source}", "model.name=vit_lite_2_p4", *TINY])
    return train(RunConfig().changed(changes), out=folder / "run", shown=False)


def evaluated(right: np.ndarray) -> Evaluation:
    """Of three classes, right where requested."""
    labels = np.arange(len(right)) % 3
    logits = np.eye(3, dtype=np.float32)[np.where(right, labels, (labels + 1) % 3)]
    names = [f"{number}.png" for number in range(len(right))]
    return measure(logits, labels, ("a", "b", "c"), split="test", names=names, replicates=5)


def finished_set(folder: Path, run: Run, kind: str, hits_of: dict[str, np.ndarray], **facts):
    """A set all of whose runs are copies of one, with the hits (seeds by images) of each row."""
    members = tuple(
        Member(row=row, seed=seed, changes={})
        for row, hits in hits_of.items()
        for seed in range(len(hits))
    )
    runs = begin(folder, RunSet(kind=kind, members=members, facts={"data": "photos", **facts}))
    for member in members:
        copied = Path(shutil.copytree(run.folder, folder / member.folder))
        hits = hits_of[member.row][member.seed]
        Run.open(copied).save_evaluation(evaluated(hits))
    return runs
