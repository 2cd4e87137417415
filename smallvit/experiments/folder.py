"""The folder of a set: `set.json`, which says what is to be trained, and a run folder per member.

Everything else is read from there: what is finished, what was stopped, and why something failed.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smallvit.arguments import checked
from smallvit.config_io import from_plain, leaf, to_plain
from smallvit.data.named import is_named
from smallvit.experiments.sets import FORMAT, Member, Outcome, RunSet
from smallvit.files import at_home, read_json, write_json
from smallvit.runs.folder import Run
from smallvit.runs.places import INFO, locked, refuse_taken
from smallvit.text import shown

SET, FAILED, LOCK = "set.json", "failed.json", ".lock"


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
    if new not in (None, old) and not is_named(str(new)) and not at_home(new).exists():
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
    place, error = folder / member.folder, _failures(folder).get(member.name, "")
    try:
        run = Run.open(place) if (place / INFO).is_file() else None
    except ValueError as damage:
        return Outcome(member=member, error=str(damage))
    return Outcome(member=member, run=run, error=error)


def unfinished(folder: Path) -> list[Member]:
    """The members of a set that are to be trained, gone on with or tried again, in order."""
    return [each.member for each in read_outcomes(folder) if each.state != "finished"]


def note_commit(folder: Path, member: Member) -> None:
    """Keeps with which version of the code a member is trained now; see `RunSet.noted`."""
    runs, goes_on = read_set(folder), (folder / member.folder / INFO).is_file()
    if (noted := runs.noted(member, _commit(), goes_on=goes_on)) != runs:
        write_json(folder / SET, to_plain(noted))


def note_end(folder: Path, member: Member, error: str) -> Outcome:
    """Keeps why a member failed, or forgets it where it did not; returns what became of it."""
    failed = _failures(folder)
    new = {name: text for name, text in failed.items() if name != member.name}
    if error:
        new[member.name] = error
    if new != failed:
        write_json(folder / FAILED, new)
    return read_outcome(folder, member)


def _failures(folder: Path) -> dict[str, str]:
    """Why members failed, by their names."""
    path = folder / FAILED
    return read_json(path) if path.is_file() else {}


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
