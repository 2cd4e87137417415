"""What is wrong with a dataset, before anything is trained on it."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, get_args

from smallvit.data.checks import CHECKS
from smallvit.data.dataset import Dataset
from smallvit.data.findings import Finding, Level, View
from smallvit.text import shown, some

if TYPE_CHECKING:
    from rich.console import RenderableType

OVERRIDES = ("leaks", "conflicts", "unreadable", "case")
"""Codes of errors that may be allowed: `--allow leaks` and so on."""

_ROWS = 40
_COLOURS = {"error": "bold red", "warning": "yellow", "hint": "cyan"}


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found; `render` shows it as a table.

    Attributes:
        source: What was audited.
        counts: Images of each class, by split.
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
        strange = set(allow) - set(OVERRIDES)
        if strange:
            raise ValueError(f"allow holds {some(sorted(strange))}: allowed are {OVERRIDES}")
        return [f for f in self.findings if f.level == "error" and f.code not in allow]

    def check(self, allow: Collection[str] = ()) -> None:
        """Stops on errors.

        Args:
            allow: Codes of `OVERRIDES` to pass over.

        Raises:
            ValueError: There are errors left; the message holds all of them.
        """
        if errors := self.errors(allow):
            listed = "\n".join(f"- {finding.message}" for finding in errors)
            raise ValueError(f"{shown(self.source)} cannot be trained on as it is:\n{listed}")

    def to_json(self) -> str:
        """The whole audit as JSON."""
        return json.dumps(asdict(self), indent=2)


def audit(dataset: Dataset, *, patch_size: int = 4) -> Audit:
    """Looks for everything that makes results worse, or better than they are.

    Args:
        dataset: From `load_data`, whose survey of the images this rests on.
        patch_size: Images smaller than this are reported.
    """
    view = View(dataset, patch_size)
    findings = [finding for check in CHECKS for finding in check(view)]
    return Audit(
        source=shown(dataset.source),
        counts=view.counts,
        sizes=view.ranges(),
        findings=tuple(sorted(findings, key=lambda each: get_args(Level).index(each.level))),
    )


def render(audit: Audit) -> "RenderableType":
    """The audit as tables for a terminal; names are shown literally, whatever they hold."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    counts = Table()
    counts.add_column("class")
    for split in audit.counts:
        counts.add_column(split, justify="right")
    names = list(next(iter(audit.counts.values()), {}))
    for name in names[:_ROWS]:
        counts.add_row(Text(name), *(f"{part[name]:,}" for part in audit.counts.values()))
    if len(names) > _ROWS:
        counts.add_row(f"… {len(names) - _ROWS:,} more", *("" for _ in audit.counts))
    counts.add_section()
    totals = (f"{sum(part.values()):,}" for part in audit.counts.values())
    counts.add_row(f"{len(names):,} classes", *totals)

    lines = [
        f"{name}: {low:,.4g} to {high:,.4g}, median {middle:,.4g}"
        for name, (low, middle, high) in audit.sizes.items()
    ]
    findings = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    for finding in audit.findings:
        findings.add_row(Text(finding.level, _COLOURS[finding.level]), Text(finding.message))
    if not audit.findings:
        findings.add_row(Text("nothing found", "green"))
    return Group(Text(audit.source, "bold"), counts, Text(" · ".join(lines)), Text(), findings)
