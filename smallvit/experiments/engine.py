"""One engine for all experiments: trains the members of a set, each an ordinary run.

What is finished is never repeated, what was stopped or killed goes on where it was, and what failed
is reported beside the rest and tried again next time.
"""

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smallvit.arguments import checked
from smallvit.config_io import leaf
from smallvit.data import Dataset
from smallvit.devices import THREADS, choose_device
from smallvit.experiments.folder import alone, note_commit, note_end, read_set, unfinished
from smallvit.experiments.sets import Member, Outcome
from smallvit.files import read_json
from smallvit.recipes import plan
from smallvit.runs.folder import Run
from smallvit.runs.places import INFO
from smallvit.text import shown
from smallvit.training import resume, train
from smallvit.training.budget import decode

logger = logging.getLogger(__name__)


@checked
def conduct(
    folder: Path,
    *,
    started: Callable[[Member], None] = lambda member: None,
    ended: Callable[[Outcome], None] = lambda outcome: None,
) -> bool:
    """Trains what is missing, one run after the other, so that each has the device to itself.

    Args:
        folder: Of a set that `begin` wrote.
        started: Called before a member is trained or goes on.
        ended: Called after it is finished or has failed.

    Returns:
        Whether all members were tried; False where a stop was requested.

    Raises:
        ValueError: Another process works on this set.
    """
    with alone(folder):
        command = read_set(folder).command
        for member in unfinished(folder):
            note_commit(folder, member)
            started(member)
            error = try_member(member, folder / member.folder, command)
            if error is None:
                return False
            ended(note_end(folder, member, error))
    return True


def try_member(
    member: Member,
    place: Path,
    command: str,
    *,
    jobs: int = 1,
    read: Callable[[], object] = lambda: None,
) -> str | None:
    """Trains one member, from its beginning or from where it was stopped.

    If it fails, the others are trained nevertheless.

    Args:
        member: Which.
        place: Its run folder.
        command: For the record: what was typed for the set.
        jobs: How many runs share the cores.
        read: Called when other runs find the data in the cache; where a run goes on, at once.

    Returns:
        Why it failed; empty if it is finished, and None where a stop was requested.
    """
    torch = sys.modules["torch"]
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(_threads(member, place, jobs, usual))
        return "" if _train(member, place, command, read).finished else None
    except Exception as failure:
        logger.debug("%s failed", member.name, exc_info=True)
        return str(failure) or type(failure).__name__
    finally:
        torch.set_num_threads(usual)
        _tidy()


def _threads(member: Member, place: Path, jobs: int, usual: int) -> int:
    """How many threads a run computes with: on a CPU its share, or as many as it had before."""
    chosen = leaf(member.changes, "loop.device") or "auto"
    on_cpu = chosen in ("auto", "cpu") and choose_device(chosen).type == "cpu"
    if not on_cpu or THREADS & os.environ.keys():
        return usual
    before = None
    if (place / INFO).is_file():
        before = read_json(place / INFO).get("threads")
    return min(before or max(usual // jobs, 1), usual)


def _train(member: Member, place: Path, command: str, read: Callable[[], object]) -> Run:
    data = member.changes.get("data", {})
    if (place / INFO).is_file():
        if "source" in data:
            Run.open(place).moved(source=data["source"], root=data.get("root"))
        download = bool(data.get("download"))
        read()
        return resume(place, download=download, shown=False)
    planned = plan(changes=member.changes)
    _refuse_others(place, planned.dataset)
    decode(planned.config, planned.dataset)  # the first run must not pay for what all of them use
    read()
    return train(
        planned.config,
        out=place,
        dataset=planned.dataset,
        audited=planned.audit,
        command=f"{command}  # {member.name}",
        shown=False,
    )


def _refuse_others(place: Path, dataset: Dataset) -> None:
    """Refuses data in which the test images are not those of the other runs.

    Raises:
        ValueError: A run of this set has other test images.
    """
    for info in sorted(place.parent.glob(f"*/{INFO}")):
        about: dict[str, Any] = {}
        with contextlib.suppress(ValueError):  # it is damaged, which is said of that run
            about = read_json(info).get("data", {})
        if "tested" in about and about["tested"] != dataset.tested:
            raise ValueError(
                f"{shown(dataset.source)} has other test images than {info.parent.name} was "
                "tested on: choose another --out"
            )


def _tidy() -> None:
    """Gives back what the last run held: memory of the device, and compiled code."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
    torch = sys.modules["torch"]
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
