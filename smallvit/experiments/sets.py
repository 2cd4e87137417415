"""What a set of runs is: as data, and what became of each run so far."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from smallvit.config_io import differences, flattened, overlaid, to_plain
from smallvit.runs.changes import BUDGET
from smallvit.runs.folder import Run
from smallvit.text import some

FORMAT = 1
"""Of the sets that are written; newer ones are refused."""

CHOSEN = "chosen"
"""Among the facts: whether the recipe chose the budget, which it may do by what it measures."""

_COMMITS = "commits"
"""Among the facts: the versions of the code with which each member was trained."""

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
        facts = {**self.facts, "budget": other.facts.get("budget")}
        given = other.members[0].changes.get("schedule", {})
        return replace(self, facts=facts)._with_section("schedule", names, given)

    def placed(self, data: Mapping[str, Any]) -> "RunSet":
        """With the data of all members where a partial config of `data` says."""
        given = {key: value for key, value in data.items() if value is not None}
        return self._with_section("data", _PLACES, given)

    def _with_section(
        self, section: str, names: Sequence[str], given: Mapping[str, Any]
    ) -> "RunSet":
        """With what is given under some names of a section of all members' changes, and no more."""
        new = {name: given[name] for name in names if name in given}

        def changed(member: Member) -> Member:
            old = member.changes.get(section, {})
            kept = {name: value for name, value in old.items() if name not in names}
            return replace(member, changes={**member.changes, section: {**kept, **new}})

        return replace(self, members=tuple(map(changed, self.members)))

    def noted(self, member: Member, commit: str, *, goes_on: bool) -> "RunSet":
        """With the version of the code with which a member is trained now, if the code tells one.

        A member that goes on keeps those of its earlier parts too.
        """
        earlier = str(self.facts.get(_COMMITS, {}).get(member.name, "")) if goes_on else ""
        if not commit and not earlier:
            return self
        commit = commit or "unknown"
        all_parts = dict.fromkeys([*filter(None, earlier.split(", ")), commit])
        known = [each for each in self.commits if each != commit]
        facts = overlaid(self.facts, {_COMMITS: {member.name: ", ".join(all_parts)}})
        return replace(self, commits=(*known, commit), facts=facts)

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
