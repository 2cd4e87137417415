"""What an audit reports; `smallvit.data.checks` holds the checks."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from smallvit.text import shown, some

Level = Literal["error", "warning", "hint"]

OVERRIDES = ("leaks", "conflicts", "unreadable", "case")
"""Codes of errors that may be allowed: `--allow leaks` and so on."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing worth knowing about a dataset.

    Attributes:
        level: An error stops training, a warning does not, a hint is worth a thought.
        code: What kind it is.
        message: A sentence that says what was found and what to do.
        items: Every case of it: groups of "split: name", or classes.
    """

    level: Level
    code: str
    message: str
    items: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit.

    Attributes:
        source: What was audited.
        counts: Images per class, by split.
        sizes: Smallest, median and largest height, width and aspect (width / height).
        findings: Errors first.
    """

    source: str
    counts: Mapping[str, Mapping[str, int]]
    sizes: Mapping[str, tuple[float, float, float]]
    findings: tuple[Finding, ...]

    @property
    def flips_matter(self) -> bool:
        """Whether a mirrored image may belong to another class."""
        return any(finding.code == "flip" for finding in self.findings)

    def errors(self, allow: Collection[str] = ()) -> list[Finding]:
        """Errors that were not allowed."""
        unknown = set(allow) - set(OVERRIDES)
        if unknown:
            raise ValueError(f"allow holds {some(sorted(unknown))}: allowed are {OVERRIDES}")
        return [f for f in self.findings if f.level == "error" and f.code not in allow]

    def check(self, allow: Collection[str] = ()) -> None:
        """Stops on errors.

        Args:
            allow: Codes of `OVERRIDES` to ignore.

        Raises:
            ValueError: There are errors left; the message holds all of them.
        """
        if errors := self.errors(allow):
            left_out = [finding for finding in self.findings if finding.code == "note"]
            lines = "\n".join(f"- {finding.message}" for finding in (*errors, *left_out))
            raise ValueError(f"{shown(self.source)} cannot be trained on as it is:\n{lines}")

    def to_json(self) -> str:
        """The whole audit as JSON."""
        return json.dumps(asdict(self), indent=2)
