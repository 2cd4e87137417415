"""What run folders say of themselves while they are written, read without touching anything.

Folders may be a stranger's, or damaged: what cannot be read is said beside the rest, links are not
followed, and files larger than a training writes are left alone.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from smallvit.config_io import leaf
from smallvit.experiments import PAGE
from smallvit.experiments.folder import SET
from smallvit.reporting.report import REPORT
from smallvit.runs.places import EVALUATION, INFO, LOCK, LOG, held
from smallvit.runs.reading import check_info
from smallvit.text import shown
from smallvit.watching.reading import (
    MOST_STEPS,
    Line,
    is_plain_file,
    number,
    read_log,
    read_object,
)

State = Literal["running", "finished", "stopped", "failed", "damaged"]
Point = tuple[float, float]
T = TypeVar("T")

MOST_RUNS = 300
"""Those changed last are shown."""

_DEPTH = 4  # runs/<set>/<run> is two below
_ENTRIES = 20_000  # looked at in all
_INFO_BYTES, _EVALUATION_BYTES = 4_000_000, 64_000_000
_POINTS = 200  # of a curve
_INTERVALS = 4  # of the log, from which the time left is told


@dataclass(frozen=True, kw_only=True)
class Watched:
    """One run, as far as its folder says.

    Attributes:
        name: Its folder, seen from the watched one.
        state: How it stands; "stopped" may go on, "failed" had a loss that is not finite.
        changed: When it last wrote something, in seconds since 1970.
        model: Its model.
        data: What it is trained on.
        step: Steps done.
        steps: Steps to do.
        left: Seconds until the last step; None where that cannot be told.
        seconds: Of training and validation so far.
        images_per_second: Of the last interval.
        val: Accuracy on the validation split, of the weights that are kept: in a run that is not
            finished the last.
        accuracy: On the test split.
        report: Whether it has a report.
        problem: What is wrong with the folder.
    """

    name: str
    state: State
    changed: float
    model: str = ""
    data: str = ""
    step: int = 0
    steps: int = 0
    left: float | None = None
    seconds: float = 0.0
    images_per_second: float | None = None
    val: float | None = None
    accuracy: float | None = None
    report: bool = False
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class WatchedSet:
    """A set of runs.

    Attributes:
        name: Its folder, seen from the watched one.
        kind: The question that it answers.
        members: How many runs it wants.
        finished: How many are there.
        page: Whether it has a page.
    """

    name: str
    kind: str = ""
    members: int = 0
    finished: int = 0
    page: bool = False


@dataclass(frozen=True)
class Listing:
    """Everything below a folder.

    Attributes:
        runs: By name, those changed last first.
        sets: By name.
        left_out: Runs that are not listed.
        folders: Where each run or set lies.
    """

    runs: dict[str, Watched]
    sets: dict[str, WatchedSet]
    left_out: int
    folders: dict[str, Path]


class Folders:
    """All runs below a folder; what has not changed since is not read again.

    Args:
        root: A run folder, or one that holds run folders, at some depth.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Path, tuple[tuple[int, int], Any]] = {}

    def listing(self, now: float) -> Listing:
        """What is there now.

        Args:
            now: Seconds since 1970.
        """
        found = list(_walk(self.root))
        runs = sorted((path for path, name in found if name == INFO), key=_changed, reverse=True)
        shown_runs = {self._name(path): path for path in runs[:MOST_RUNS]}
        watched = {name: self._run(name, path, now) for name, path in shown_runs.items()}
        sets = {self._name(path): path for path, name in found if name == SET}
        states = {path: watched[name].state for name, path in shown_runs.items()}
        listing = Listing(
            runs=watched,
            sets={name: self._set(name, path, states) for name, path in sets.items()},
            left_out=len(runs) - len(watched),
            folders={**shown_runs, **sets},
        )
        there = set(listing.folders.values())  # what is gone need not be remembered
        self._known = {path: kept for path, kept in self._known.items() if path.parent in there}
        return listing

    def curves(self, folder: Path) -> dict[str, dict[str, list[Point]]]:
        """Loss and accuracy by kind of images, against the number of images seen."""
        lines, _ = self._log(folder)
        seen = {each["step"]: count for each in lines if (count := number(each.get("images")))}
        curves: dict[str, dict[str, list[Point]]] = {}
        for name in ("accuracy", "loss"):
            for kind in ("train", "val"):
                points = [
                    (seen.get(each["step"], float(each["step"])), float(each[name]))
                    for each in lines
                    if each["kind"] == kind and number(each.get(name)) is not None
                ]
                if points:
                    curves.setdefault(name, {})[kind] = thinned(points)
        return curves

    def _name(self, path: Path) -> str:
        relative = path.relative_to(self.root)
        return shown(path.resolve().name if relative == Path() else str(relative))

    def _run(self, name: str, folder: Path, now: float) -> Watched:
        """One run; whatever is wrong with its folder must not hide the others."""
        report = is_plain_file(folder / REPORT)
        run = Watched(name=name, state="damaged", changed=_changed(folder), report=report)
        try:
            return self._described(run, folder, now)
        except (ValueError, OSError, OverflowError) as error:
            return replace(run, problem=shown(str(error)))

    def _described(self, run: Watched, folder: Path, now: float) -> Watched:
        info = self._kept(folder / INFO, _read_about)
        check_info(info, folder / INFO)
        lines, problem = self._log(folder)
        step, steps = _progress(info, lines)
        state = _state(info, folder)
        timed = [float(each["seconds"]) for each in lines if number(each.get("seconds"))]
        kept = info.get("best_step")  # beside the test of the same weights
        validated = [each for each in lines if each["kind"] == "val"]
        vals = [number(e.get("accuracy")) for e in validated if kept in (None, e.get("step"))]
        speeds = [number(each.get("images_per_second")) for each in lines]
        accuracy = None
        with contextlib.suppress(ValueError, OSError):  # not tested yet, or damaged
            accuracy = self._kept(folder / EVALUATION, _read_accuracy)
        return replace(
            run,
            state="damaged" if problem else state,
            model=shown(str(leaf(info, "model.name") or "")),
            data=shown(Path(str(leaf(info, "data.source") or "")).name),
            step=step,
            steps=steps,
            left=_left(lines, steps, now - run.changed) if state == "running" else None,
            seconds=math.fsum(timed),
            images_per_second=next((each for each in reversed(speeds) if each is not None), None),
            val=next((each for each in reversed(vals) if each is not None), None),
            accuracy=accuracy,
            problem=problem,
        )

    def _set(self, name: str, folder: Path, states: dict[Path, State]) -> WatchedSet:
        found = WatchedSet(name=name, page=is_plain_file(folder / PAGE))
        try:
            plain = self._kept(folder / SET, _read_about)
        except (ValueError, OSError):
            return found
        members = plain.get("members")
        finished = [p for p, state in states.items() if p.parent == folder and state == "finished"]
        return replace(
            found,
            kind=shown(str(plain.get("kind", "")))[:20],
            members=len(members) if isinstance(members, list) else 0,
            finished=len(finished),
        )

    def _log(self, folder: Path) -> tuple[list[Line], str]:
        """The whole lines of a log up to a damaged one, and what is wrong with that."""
        try:
            return self._kept(folder / LOG, read_log)
        except FileNotFoundError:
            return [], ""
        except OSError as error:
            return [], shown(str(error))

    def _kept(self, path: Path, read: Callable[[Path], T]) -> T:
        """What `read` makes of a file, or made of it before, if it is still the same.

        Raises:
            OSError: There is no file, or its folder cannot be entered.
        """
        status = path.lstat()
        version = (status.st_mtime_ns, status.st_size)
        if self._known.get(path, ((-1, -1), None))[0] != version:
            self._known[path] = version, read(path)
        kept: T = self._known[path][1]
        return kept


def _read_about(path: Path) -> dict[str, Any]:
    return read_object(path, _INFO_BYTES)


def _read_accuracy(path: Path) -> float | None:
    """The number alone: the whole of an evaluation takes much memory."""
    return number(leaf(read_object(path, _EVALUATION_BYTES), "accuracy.value"))


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    """Folders of runs and sets, and which of both; runs hold no others."""
    waiting, looked = [(root, 0)], 0
    while waiting and looked < _ENTRIES:
        folder, depth = waiting.pop(0)
        try:
            with os.scandir(folder) as entries:
                visible = [e for e in entries if not e.name.startswith(".")]
            names = {entry.name for entry in visible if entry.is_file(follow_symlinks=False)}
            below = sorted(e.name for e in visible if e.is_dir(follow_symlinks=False))
        except OSError:
            continue
        looked += len(visible)
        if INFO in names:
            yield folder, INFO
            continue
        if SET in names:
            yield folder, SET
        if depth < _DEPTH:
            waiting += [(folder / name, depth + 1) for name in below]


def _changed(folder: Path) -> float:
    """When a run last wrote something."""
    times = [0.0]
    for name in (INFO, LOG):
        try:
            times.append((folder / name).lstat().st_mtime)
        except OSError:
            continue
    return max(times)


def _state(info: dict[str, Any], folder: Path) -> State:
    if info.get("status") == "finished":
        return "finished"
    if held(folder / LOCK):
        return "running"
    return "failed" if info.get("status") == "not finite" else "stopped"


def _progress(info: dict[str, Any], lines: Sequence[Line]) -> tuple[int, int]:
    """Steps done and to do; the time may have changed the latter."""
    step = max((line["step"] for line in lines), default=0)
    planned = [each.get("steps") for each in lines if each["kind"] == "plan"]
    candidates = [*reversed(planned), leaf(info, "config.schedule.steps"), info.get("steps")]
    if info.get("status") == "finished":
        candidates.insert(0, info.get("steps"))
    found = [each for each in candidates if type(each) is int and 0 < each <= MOST_STEPS]
    steps = found[0] if found else 0
    return (steps if info.get("status") == "finished" else min(step, steps or step)), steps


def _left(lines: Sequence[Line], steps: int, age: float) -> float | None:
    """Seconds until the last step, from what the last intervals took.

    Args:
        lines: Of the log.
        steps: To do.
        age: Seconds since the last line.
    """
    ends = [line["step"] for line in lines if line["kind"] == "train"]
    if not ends or not steps:
        return None
    begin = [0, *ends][-_INTERVALS - 1 :][0]
    taken = math.fsum(number(line.get("seconds")) or 0.0 for line in lines if line["step"] > begin)
    if ends[-1] <= begin or taken <= 0:
        return None
    left = taken / (ends[-1] - begin) * (steps - ends[-1]) - max(age, 0.0)
    return number(max(0.0, left))


def thinned(points: Sequence[T]) -> list[T]:
    """At most so many points as can be seen, the last among them."""
    if len(points) <= _POINTS:
        return list(points)
    stride = -(-(len(points) - 1) // (_POINTS - 1))
    return [*points[:-1:stride], points[-1]]
