"""One engine for all experiments: a set of runs as data, each an ordinary run folder.

A set is a folder with `set.json`, which says what is to be trained, and one run folder per member.
Everything else is read from there: what is finished is never repeated, what was stopped or killed
goes on where it was, and what failed is reported beside the rest and tried again next time.
"""

import contextlib
import gc
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from smallvit.arguments import checked
from smallvit.config_io import differences, flattened, from_plain, leaf, overlaid, to_plain
from smallvit.data import Dataset
from smallvit.data.named import NAMED
from smallvit.devices import THREADS, choose_device
from smallvit.files import at_home, read_json, write_json
from smallvit.recipes import plan
from smallvit.runs.changes import BUDGET
from smallvit.runs.folder import Run
from smallvit.runs.places import INFO, locked, refuse_taken
from smallvit.text import shown, some
from smallvit.training import resume, train

logger = logging.getLogger(__name__)

SET, FAILED, LOCK = "set.json", "failed.json", ".lock"
FORMAT = 1
"""Of the sets that are written; newer ones are refused."""

CHOSEN = "chosen"
"""Among the facts: whether the recipe chose the budget, which it may do by what it measures."""

_COMMITS = "commits"  # of each member, among the facts

_PLACES = ("source", "root", "download")
"""Keys of `data` that say where it lies: another machine may have it somewhere else."""

Kind = Literal["compare", "ablate", "curve", "reproduce"]
State = Literal["waiting", "unfinished", "finished", "failed"]


@dataclass(frozen=True, kw_only=True)
class Member:
    """One run of a set.

    Attributes:
        row: What it is a training of: a row of the table, which other seeds belong to as well.
        seed: Of weights, order and augmentation.
        changes: A partial config; `plan` decides the rest.
    """

    row: str
    seed: int
    changes: dict[str, Any]

    @property
    def name(self) -> str:
        """How people call it."""
        return f"{self.row}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """Its folder within the set's."""
        return f"{slug(self.row)}-seed-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class RunSet:
    """What is to be trained.

    Attributes:
        kind: The question that it answers.
        members: The runs, in the order in which they are trained.
        facts: What else the answer needs, as plain data.
        command: For the record: what was typed.
        commits: Versions of the code in whose repositories it was trained, the last one last;
            `trained_with` names that of each member.
        format: Of the file.
    """

    kind: Kind
    members: tuple[Member, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    commits: tuple[str, ...] = ()
    format: int = FORMAT

    def __post_init__(self) -> None:
        for attribute in ("name", "folder"):
            found = [getattr(member, attribute) for member in self.members]
            if twice := sorted({name for name in found if found.count(name) > 1}):
                raise ValueError(f"{some(twice)} would be trained twice: name every row once")

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows, in order."""
        return tuple(dict.fromkeys(member.row for member in self.members))

    def joined(self, wanted: "RunSet") -> "RunSet":
        """With the members of another set that asks the same question of more runs.

        The data of all members lies where the other set says.

        Raises:
            ValueError: A member of both is not the same, or a new one has not what all share.
        """
        if self.kind != wanted.kind:
            raise ValueError(
                f"this is a set for `smallvit {self.kind}`, not for `smallvit {wanted.kind}`: "
                "choose another --out"
            )
        if wanted.members:
            self = self.placed(wanted.members[0].changes.get("data", {}))
        known = {member.name: member for member in self.members}
        for member in wanted.members:
            old, changes = known.get(member.name), to_plain(member.changes)
            before = (old or next(iter(self.members), member)).changes
            if old is None:
                before, changes = _of_all(before), _of_all(changes)
            if different := differences(flattened(before), flattened(changes)):
                raise ValueError(
                    f"a set goes on with what it began with, and for {member.name} "
                    f"{'; '.join(different)}: give the options that it began with, or choose "
                    "another --out"
                )
        new = tuple(member for member in wanted.members if member.name not in known)
        rows = list(dict.fromkeys([*self.rows, *wanted.rows]))
        members = sorted((*self.members, *new), key=lambda m: (rows.index(m.row), m.seed))
        commands = [self.command] if len(members) > len(wanted.members) else []
        commands += [wanted.command] if new or not commands else []
        return replace(
            self,
            members=tuple(members),
            facts=overlaid(self.facts, wanted.facts),
            command=" && ".join(filter(None, commands)) or self.command,
        )

    def in_budget_of(self, other: "RunSet") -> "RunSet":
        """With another set's budget, where the recipe chose this one's by what it measured."""
        if not self.facts.get(CHOSEN) or not other.members:
            return self
        names = [path.removeprefix("schedule.") for path in BUDGET]
        given = other.members[0].changes.get("schedule", {})
        budget = {name: given[name] for name in names if name in given}

        def same(member: Member) -> Member:
            old = member.changes["schedule"]
            kept = {key: value for key, value in old.items() if key not in names}
            return replace(member, changes={**member.changes, "schedule": {**kept, **budget}})

        facts = {**self.facts, "budget": other.facts.get("budget")}
        return replace(self, members=tuple(map(same, self.members)), facts=facts)

    def placed(self, data: Mapping[str, Any]) -> "RunSet":
        """With the data of all members where a partial config of `data` says."""
        place = {key: data[key] for key in _PLACES if data.get(key) is not None}

        def move(member: Member) -> Member:
            old = member.changes.get("data", {})
            kept = {key: value for key, value in old.items() if key not in _PLACES}
            return replace(member, changes={**member.changes, "data": {**kept, **place}})

        return replace(self, members=tuple(move(member) for member in self.members))

    def trained_with(self, member: Member) -> str:
        """The versions of the code with which a member was trained, in order; empty if unknown."""
        known = self.facts.get(_COMMITS, {})
        # Sets of older versions name those of the whole set alone.
        named = {commit for commits in known.values() for commit in commits.split(", ")}
        others = [commit for commit in self.commits if commit not in named]
        return str(known.get(member.name, "".join(others[-1:])))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one member so far.

    Attributes:
        member: Which.
        run: Its run folder, if it has one.
        error: Why it failed; empty if it did not.
    """

    member: Member
    run: Run | None = None
    error: str = ""

    @property
    def state(self) -> State:
        """How far it is."""
        if self.run is not None and self.run.finished:
            return "finished"
        return "failed" if self.error else "waiting" if self.run is None else "unfinished"


def _of_all(changes: Mapping[str, Any]) -> dict[str, Any]:
    """What all members of a set share: without what a row or a seed sets."""
    kept = {key: each for key, each in changes.items() if key not in ("seed", "model", "loss")}
    data = kept.get("data", {})
    drawn = ("limit", "limit_seed")
    return {**kept, "data": {key: each for key, each in data.items() if key not in drawn}}


def slug(name: str) -> str:
    """A name as part of a folder's: two that differ stay different for all names of models."""
    return re.sub(r"[^\w.+=-]+", "-", name).strip("-.") or "row"


@checked
def begin(folder: Path, wanted: RunSet | None) -> RunSet:
    """Writes a new set, or opens the one that is there and adds what it does not have yet.

    What failed before it had a folder (data that is not there, a value that is not allowed) may be
    wanted with other settings.

    Raises:
        ValueError: The folder holds something else, another set, or another version's, or another
            process works on it; or nothing is wanted and there is no set.
    """
    if not (folder / SET).is_file():
        if wanted is None:
            raise ValueError(f"{folder} holds no set of runs to go on with: it has no {SET}")
        refuse_taken(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SET, to_plain(wanted))
        return wanted
    if wanted is None:
        return read_set(folder)
    with alone(folder):
        found = read_set(folder)
        _refuse_nowhere(found, wanted)
        wanted = wanted.in_budget_of(found)
        found = _begun(folder, found, wanted).joined(wanted)
        write_json(folder / SET, to_plain(found))
    return found


@checked
def relocate(folder: Path, data: Mapping[str, Any]) -> None:
    """Has a set go on with its data in another place, as on another machine.

    Args:
        folder: Of the set.
        data: Where the data lies: `source` and `root` of a config's `data`.

    Raises:
        ValueError: There is no set, nothing lies there, or another process works on the set.
    """
    read_set(folder)  # before a lock is written
    with alone(folder):
        found = read_set(folder)
        before = found.members[0].changes.get("data", {}) if found.members else {}
        wanted = found.placed({**before, **data})
        _refuse_nowhere(found, wanted)
        write_json(folder / SET, to_plain(wanted))


def _refuse_nowhere(found: RunSet, wanted: RunSet) -> None:
    """Refuses to look for the data of a set where there is nothing."""
    old, new = (
        leaf(runs.members[0].changes, "data.source") if runs.members else None
        for runs in (found, wanted)
    )
    named = str(new).partition(":")[0] in NAMED
    if new is not None and new != old and not named and not at_home(new).exists():
        raise ValueError(
            f"the data of this set was {shown(str(old))}, and {shown(str(new))} does not exist"
        )


def _begun(folder: Path, found: RunSet, wanted: RunSet) -> RunSet:
    """A set, in which members that failed before they had a folder take what is wanted now."""
    failed = {each.member.name for each in read_outcomes(folder) if each.state == "failed"}
    false = {name: m for m in wanted.members if (name := m.name) in failed}
    members = (
        member if (folder / member.folder).exists() else false.get(member.name, member)
        for member in found.members
    )
    return replace(found, members=tuple(members))


def read_set(folder: Path) -> RunSet:
    """The set of a folder.

    Raises:
        ValueError: There is none, it is damaged, or was written by a newer version.
    """
    if not (folder / SET).is_file():
        raise ValueError(f"{folder} is not the folder of a set of runs: it has no {SET}")
    plain = read_json(folder / SET)
    if plain.get("format") != FORMAT:
        raise ValueError(
            f"{folder / SET} has format {plain.get('format')!r} and this smallvit reads {FORMAT}: "
            "it was written by a newer version; upgrade smallvit"
        )
    return from_plain(RunSet, plain)


@checked
def read_outcomes(folder: Path) -> list[Outcome]:
    """What the folder holds of each member."""
    return [read_outcome(folder, member) for member in read_set(folder).members]


def read_outcome(folder: Path, member: Member) -> Outcome:
    """What the folder holds of one member."""
    failed = read_json(folder / FAILED) if (folder / FAILED).is_file() else {}
    place, error = folder / member.folder, failed.get(member.name, "")
    try:
        run = Run.open(place) if (place / INFO).is_file() else None
    except ValueError as damage:
        return Outcome(member=member, error=str(damage))
    return Outcome(member=member, run=run, error=error)


@checked
def conduct(
    folder: Path,
    *,
    started: Callable[[Member], None] = lambda member: None,
    ended: Callable[[Outcome], None] = lambda outcome: None,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Trains what is missing, one run after the other, so that each has the device to itself.

    Args:
        folder: Of a set that `begin` wrote.
        started: Called before a member is trained or goes on.
        ended: Called after it is finished or has failed.
        clock: Seconds; only their differences count.

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
            error = try_member(member, folder / member.folder, command, clock=clock)
            if error is None:
                return False
            ended(note_end(folder, member, error))
    return True


def unfinished(folder: Path) -> list[Member]:
    """The members of a set that are to be trained, gone on with or tried again, in order."""
    return [each.member for each in read_outcomes(folder) if each.state != "finished"]


def try_member(
    member: Member,
    place: Path,
    command: str,
    *,
    jobs: int = 1,
    read: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> str | None:
    """Trains one member; if it fails, the others are trained nevertheless. See `train_member`.

    Args:
        member: Which.
        place: Its run folder.
        command: For the record: what was typed for the set.
        jobs: How many runs share the cores.
        read: See `train_member`.
        clock: Seconds; only their differences count.

    Returns:
        Why it failed; empty if it is finished, and None where a stop was requested.
    """
    torch = sys.modules["torch"]
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(_threads(member, place, jobs, usual))
        return "" if train_member(member, place, command, read=read, clock=clock).finished else None
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


def train_member(
    member: Member,
    place: Path,
    command: str,
    *,
    read: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Run:
    """One member from its beginning, or from where it was stopped.

    Args:
        member: Which.
        place: Its run folder.
        command: For the record: what was typed for the set.
        read: Called when other runs find the data in the cache; where a run goes on, at once.
        clock: Seconds; only their differences count.
    """
    data = member.changes.get("data", {})
    if (place / INFO).is_file():
        if "source" in data:
            Run.open(place).moved(source=data["source"], root=data.get("root"))
        download = bool(data.get("download"))
        read()
        return resume(place, download=download, shown=False, clock=clock)
    planned = plan(changes=member.changes)
    _refuse_others(place, planned.dataset)
    for split in planned.dataset.splits:  # the first run must not pay for what all of them use
        (planned.dataset.uncut if split == "train" else planned.dataset).pixels(split)
    read()
    return train(
        planned.config,
        out=place,
        dataset=planned.dataset,
        audited=planned.audit,
        command=f"{command}  # {member.name}",
        shown=False,
        clock=clock,
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


def note_commit(folder: Path, member: Member) -> None:
    """Keeps with which version of the code a member is trained now, if the code tells one.

    One that goes on keeps those of its earlier parts too.
    """
    runs, commit = read_set(folder), _commit()
    goes_on = (folder / member.folder / INFO).is_file()
    earlier = str(runs.facts.get(_COMMITS, {}).get(member.name, "")) if goes_on else ""
    if not commit and not earlier:
        return
    commit = commit or "unknown"
    all_parts = dict.fromkeys([*filter(None, earlier.split(", ")), commit])
    known = [each for each in runs.commits if each != commit]
    facts = overlaid(runs.facts, {_COMMITS: {member.name: ", ".join(all_parts)}})
    write_json(folder / SET, to_plain(replace(runs, commits=(*known, commit), facts=facts)))


def note_end(folder: Path, member: Member, error: str) -> Outcome:
    """Keeps why a member failed, or forgets it where it did not; returns what became of it."""
    path = folder / FAILED
    failed = read_json(path) if path.is_file() else {}
    new = {name: text for name, text in failed.items() if name != member.name}
    if error:
        new[member.name] = error
    if new != failed:
        write_json(path, new)
    return read_outcome(folder, member)


def _tidy() -> None:
    """Gives back what the last run held: memory of the device, and compiled code."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
    torch = sys.modules["torch"]
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keeps other processes out; a lock that a killed process held is free again.

    Raises:
        ValueError: Another process works on this set, or this is one of several.
        OSError: The lock cannot be written, or is a link.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a set of runs is trained in one process: start it without torchrun")
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(folder / LOCK))
        except ValueError as error:
            raise ValueError(f"another process is training in {folder}: wait for it") from error
        yield


def _commit() -> str:
    """The commit of our repository, if the code lies in one; "-dirty" where files were changed.

    A copy of the code elsewhere says it by SMALLVIT_COMMIT.
    """
    copied = os.environ.get("SMALLVIT_COMMIT", "")
    for words in (["ls-files", "--error-unmatch", __file__], ["describe", "--always", "--dirty"]):
        try:
            done = subprocess.run(
                ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True
            )
        except OSError:
            return copied
        if done.returncode:
            return copied
    return done.stdout.strip()
