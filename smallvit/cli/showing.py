"""How a set of runs looks in a terminal: while it is trained, and in the end."""

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from smallvit.cli.terminal import legible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from smallvit.experiments.sets import Member, Outcome
    from smallvit.reporting.sheet import Sheet

logger = logging.getLogger("smallvit.cli")


def renderables(sheet: "Sheet", width: int) -> "Iterator[RenderableType]":
    """A sheet for a terminal: tables first, and the answer last, where it is seen."""
    from rich.text import Text

    table = sheet.tables[0]
    rows = [[cell.text for cell in row] for row in table.rows]
    # As many columns, from the left, as fit beside each other; the page has all.
    yield columns_that_fit(table.columns, rows, width)
    for name, text in sheet.failures.items():
        yield Text(legible(f"failed: {name}: {text}"), style="red")
    for sentence in sheet.notes:
        yield Text(legible(sentence), style="dim")
    for sentence in sheet.lead:
        yield Text(legible(sentence), style="bold")


def columns_that_fit(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> "RenderableType":
    """A table of the first columns, as many as `width` characters hold, at least one."""
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False)
    lengths = [
        max(cell_len(legible(text)) for text in [heading, *(row[number] for row in rows)])
        for number, heading in enumerate(headings)
    ]
    fitting = [n for n in range(len(lengths)) if not n or sum(lengths[: n + 1]) + 2 * n <= width]
    for number in fitting:
        justify: Literal["left", "right"] = "right" if number else "left"
        shown.add_column(legible(headings[number]), justify=justify, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(legible(row[number])) for number in fitting))
    return shown


class Show:
    """Says what happens: a line per run, and a table of the whole set for a terminal."""

    def __init__(self, folder: Path) -> None:
        from smallvit.experiments import read_outcomes

        self.folder = folder
        self.running: dict[str, Member] = {}
        # Read once: a table that is drawn every other second must not keep the training waiting.
        outcomes = read_outcomes(folder)
        self.rows = {each.member.name: each.member.row for each in outcomes}
        self.states = {each.member.name: self._state(each) for each in outcomes}

    @staticmethod
    def _state(outcome: "Outcome") -> tuple[str, float | None]:
        if outcome.state != "finished" or outcome.run is None:
            return outcome.state, None
        evaluation = outcome.run.evaluation()
        return "finished", evaluation.accuracy.value if evaluation else None

    def started(self, member: "Member") -> None:
        """A member is now being trained."""
        self.running[member.name] = member

    def ended(self, outcome: "Outcome") -> None:
        """A member is finished, or has failed."""
        self.running.pop(outcome.member.name, None)
        self.states[outcome.member.name] = state, accuracy = self._state(outcome)
        done = sum(state in ("finished", "failed") for state, _ in self.states.values())
        said = outcome.error if state == "failed" else "no test split"
        if accuracy is not None:
            said = f"{100 * accuracy:.1f} %"
        logger.info("%d of %d: %s: %s", done, len(self.states), outcome.member.name, said)

    def __rich__(self) -> "RenderableType":
        """The table of a running set."""
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable("row", "done", "accuracy", "now", box=None, pad_edge=False)
        for row in dict.fromkeys(self.rows.values()):
            states = [state for name, state in self.states.items() if self.rows[name] == row]
            found = [accuracy for _, accuracy in states if accuracy is not None]
            done = sum(state == "finished" for state, _ in states)
            failed = sum(state == "failed" for state, _ in states)
            now = f"{failed} failed" if failed else ""
            if running := [each for each in self.running.values() if each.row == row]:
                now = ", ".join(
                    f"seed {each.seed}: {progress(self.folder / each.folder)}" for each in running
                )
            mean = f"{100 * sum(found) / len(found):.1f} %" if found else "–"
            shown.add_row(Text(legible(row)), f"{done} of {len(states)}", mean, now)
        return shown


def progress(folder: Path) -> str:
    """How far a run is, by what its folder holds."""
    from smallvit.runs.folder import Run
    from smallvit.runs.places import INFO

    if not (folder / INFO).is_file():
        return "reading data"
    run = Run.open(folder)
    log = run.log()
    step = max((int(line["step"]) for line in log), default=0)
    val = [line["accuracy"] for line in log if line["kind"] == "val" and "accuracy" in line]
    share = f"{100 * step / max(run.config.schedule.steps or 1, 1):.0f} %"
    return f"{share}, val {100 * val[-1]:.1f} %" if val else share


@contextlib.contextmanager
def showing(folder: Path) -> "Iterator[Show]":
    """On a terminal a live table; warnings appear above it."""
    show = Show(folder)
    if not sys.stderr.isatty():
        yield show
        return
    from rich.console import Console
    from rich.live import Live

    console: Console = Console(stderr=True)
    with Live(
        console=console, refresh_per_second=0.5, transient=True, get_renderable=show.__rich__
    ):
        handlers = [
            handler
            for handler in logging.getLogger().handlers
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.__stderr__
        ]
        for handler in handlers:
            handler.setStream(sys.stderr)  # rich's, which writes above the table
        try:
            yield show
        finally:
            for handler in handlers:
                handler.setStream(sys.__stderr__)
