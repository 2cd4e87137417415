"""Many runs, one answer: `compare`, `ablate`, `curve` and `reproduce`, all through one engine.

A function such as `compare_set` says what is to be trained, `begin` writes that down, `conduct`
trains what is missing, `conclude` says what was found.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from smallvit.experiments import ablate, compare, curve, reproduce
from smallvit.experiments.ablate import ablate_set
from smallvit.experiments.compare import compare_set
from smallvit.experiments.curve import curve_set
from smallvit.experiments.engine import conduct
from smallvit.experiments.folder import begin, read_outcomes, read_set
from smallvit.experiments.reproduce import reproduce_set
from smallvit.experiments.sets import Member, Outcome, RunSet
from smallvit.files import write_bytes, write_json
from smallvit.reporting.report import figure_svg, sheet_page
from smallvit.reporting.sheet import Sheet

__all__ = [
    "Member",
    "Outcome",
    "RunSet",
    "ablate_set",
    "begin",
    "compare_set",
    "conclude",
    "conduct",
    "curve_set",
    "read_outcomes",
    "reproduce_set",
]

PAGE, SUMMARY, FIGURE = "page.html", "summary.json", "figure.svg"

#: By the kind of the set.
CONCLUDE: dict[str, Callable[..., tuple[Sheet, dict[str, Any]]]] = {
    "compare": compare.conclude,
    "ablate": ablate.conclude,
    "curve": curve.conclude,
    "reproduce": reproduce.conclude,
}


def conclude(folder: Path) -> Sheet:
    """Reads the set in a folder, and writes its page, its numbers and its figure beside it.

    Raises:
        ValueError: There is no set, or a run of it is damaged.
        OSError: The page cannot be written.
    """
    runs, outcomes = read_set(folder), read_outcomes(folder)
    sheet, plain = CONCLUDE[runs.kind](runs, outcomes)
    write_bytes(folder / PAGE, sheet_page(sheet).encode())
    write_json(folder / SUMMARY, plain)
    if sheet.charts:
        write_bytes(folder / FIGURE, figure_svg(sheet.charts[0]).encode())
    return sheet
