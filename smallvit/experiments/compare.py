"""`compare`: models under the same data, splits and budget, and which of them is better."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from smallvit.arguments import Between, checked
from smallvit.config_io import leaf, nested, overlaid
from smallvit.evaluation import Estimate
from smallvit.experiments.engine import Member, Outcome, RunSet, seeded
from smallvit.experiments.rows import Row, evaluations_of, make_rows
from smallvit.experiments.specs import changes_for, listed
from smallvit.recipes import Plan, plan
from smallvit.reporting.charts import Chart, Point
from smallvit.reporting.comparing import points
from smallvit.reporting.sheet import Cell, Sheet, Table, accuracy_over
from smallvit.runs.config import BUDGET
from smallvit.text import counted, shown

_SAMPLES = 40

Seeds = Annotated[int, Between(1, 1_000)]
"""Trainings of each row."""


@checked
def compare_set(
    settings: Mapping[str, Any], models: Sequence[str], *, seeds: Seeds = 3, command: str = ""
) -> RunSet:
    """The runs of a comparison.

    Args:
        settings: A partial config that all share; its seed is the first one's.
        models: Names, as `smallvit.experiments.specs` reads them.
        seeds: Trainings of each.
        command: For the record: what was typed.

    Raises:
        ValueError: A name is not known, or the data cannot be read.
    """
    changes = {name: changes_for(name) for name in listed(models)}
    planned = plan(changes=overlaid(settings, next(iter(changes.values()))))
    shared = with_budget(with_splits(settings, planned), planned)
    members = [
        member
        for name, change in changes.items()
        for member in members_of(name, overlaid(shared, change), seeds)
    ]
    facts = {"data": planned.dataset.source, "budget": tell_budget(shared)}
    return RunSet(kind="compare", members=tuple(members), facts=facts, command=command)


def members_of(row: str, changes: Mapping[str, Any], seeds: int) -> list[Member]:
    """The members of a row; the first seed is the settings' own."""
    return list(seeded(row, changes, seeds, first=int(leaf(changes, "seed") or 0)))


def with_splits(settings: Mapping[str, Any], planned: Plan) -> dict[str, Any]:
    """The settings with the first model's share of validation images, which others may not have."""
    made = planned.dataset.held_out.get("val")
    if "val" not in planned.dataset.splits:
        made = 0.0
    return dict(settings) if made is None else overlaid(settings, nested("data.val", made))


def with_budget(settings: Mapping[str, Any], planned: Plan) -> dict[str, Any]:
    """The settings with a budget: their own, or what the recipe gives the first model."""
    if any(leaf(settings, path) is not None for path in BUDGET):
        return dict(settings)
    schedule = planned.config.schedule
    name = "steps" if schedule.steps is not None else "epochs"
    return overlaid(settings, nested(f"schedule.{name}", getattr(schedule, name)))


def tell_budget(settings: Mapping[str, Any]) -> str:
    """How long each run trains."""
    for name in ("steps", "minutes", "epochs"):
        if (value := leaf(settings, f"schedule.{name}")) is not None:
            return counted(value, name.removesuffix("s"))
    return "the recipe's"


def conclude(
    runs: RunSet, outcomes: Sequence[Outcome], *, title: str = "Models", versus: str = "− first"
) -> tuple[Sheet, dict[str, Any]]:
    """What a comparison found: for people, and as plain data.

    Args:
        runs: The set.
        outcomes: Of its members.
        title: Of the table.
        versus: Heading of the differences.
    """
    rows = make_rows(outcomes)
    tested = next((each for row in rows for each in evaluations_of(row).values()), None)
    several = max((len(row.accuracies) for row in rows), default=0) > 1
    images = counted(tested.count, "test image") if tested else "no test images"
    notes = [
        f"Every row is trained on the same {shown(str(runs.facts.get('data', 'data')))} with the "
        f"same splits and budget ({runs.facts.get('budget')} per run), and tested on {images}.",
    ]
    if several:
        notes.append(
            "Intervals are about another seed and other test images of the same kind, together; p "
            "is corrected after Holm for the number of rows."
        )
    if short := sum(len(row.runs) - len(row.seeds) for row in rows if row.seeds):
        notes.append(f"{counted(short, 'test was', 'tests were')} cut short, and left out.")
    sheet = Sheet(
        title=f"{counted(len(rows), 'model')} on {shown(str(runs.facts.get('data', 'data')))}",
        lead=tuple(verdicts(rows)),
        notes=tuple(notes),
        tables=(table_of(rows, title=title, versus=versus), seeds_table(rows)),
        charts=tuple(charts_of(rows)),
        failures={name: text for row in rows for name, text in row.errors.items()},
        record=record_of(runs),
    )
    return sheet, {"kind": runs.kind, "rows": [row.to_plain() for row in rows]}


def record_of(runs: RunSet) -> dict[str, str]:
    """What one needs to repeat a set."""
    record = {"command": runs.command, "commit": ", ".join(runs.commits)}
    return {name: text for name, text in record.items() if text}


def verdicts(rows: Sequence[Row]) -> list[str]:
    """What can be concluded, a sentence each: first the whole, then each row against the first."""
    known = [row for row in rows if row.accuracy is not None]
    if not known:
        return ["Cannot tell: nothing has been tested yet."]
    base, others = known[0], [row for row in known[1:] if row.versus is not None]
    sentences = [_sentence(row, base) for row in others]
    failed = [row for row in rows if row.accuracy is None and row.errors]
    sentences += [f"{row.name}: cannot tell, all of its runs failed." for row in failed]
    return [*_overall(base, others), *sentences]


def _overall(base: Row, others: Sequence[Row]) -> list[str]:
    """The answer to "which one?", where there is one."""
    if not others:
        return []
    better = [row for row in others if row.verdict == "better"]
    if better:
        best = max(better, key=_mean)
        rivals = [row for row in better if row is not best]
        beside = f"; whether it beats {_names(rivals)} was not tested" if rivals else ""
        return [f"{best.name} is better than {base.name} here{beside}."]
    if all(row.verdict == "worse" for row in others):
        return [f"{base.name} is the best of these {len(others) + 1} here."]
    open_rows = [row for row in others if row.verdict == "cannot tell"]
    best = max((base, *open_rows), key=_mean)
    fastest = max((base, *open_rows), key=lambda row: row.images_per_second or 0.0)
    faster = (fastest.images_per_second or 0.0) > 1.2 * (best.images_per_second or 0.0)
    hint = f" Of these {fastest.name} trains fastest." if faster else ""
    return [
        f"Cannot tell which of {_names((base, *open_rows))} is best: the differences may be "
        f"chance.{hint}"
    ]


def _mean(row: Row) -> float:
    assert row.accuracy is not None
    return row.accuracy.value


def _names(rows: Sequence[Row]) -> str:
    *most, last = names = [row.name for row in rows]
    if any("," in name for name in names):  # of ablate, such as "SPT, all directions"
        return "; ".join([*most, f"and {last}"]) if most else last
    return f"{', '.join(most)} and {last}" if most else last


def _sentence(row: Row, base: Row) -> str:
    assert row.versus is not None
    assert row.p is not None
    gap, seeds = row.versus.difference, row.versus.seeds
    numbers = f"{points(gap.value)} points ({points(gap.low)} to {points(gap.high)})"
    if seeds < 2:
        return (
            f"{row.name} against {base.name}: cannot tell. These two trained models differ by "
            f"{numbers} on other images, p {tell_p(row.p)}, but each was trained once, and another "
            "seed may turn that round: use --seeds 3."
        )
    if row.verdict == "cannot tell":
        reason = "the few test images" if row.versus.from_seeds < 0.5 else "the few seeds"
        return (
            f"{row.name} against {base.name}: cannot tell. The difference of {numbers} may be "
            f"chance, p {tell_p(row.p)}; most of the uncertainty comes from {reason}."
        )
    return f"{row.name} is {row.verdict} than {base.name}: {numbers}, p {tell_p(row.p)}."


def tell_p(p: float) -> str:
    """A p-value as people read it."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def table_of(rows: Sequence[Row], *, title: str, versus: str) -> Table:
    """All rows with their numbers."""
    columns = (
        *("model", "accuracy", "± std", "95 % interval", f"{versus}, points", "p"),
        *("minutes", "images/s", "parameters", "FLOPs", "seeds"),
    )
    cells = []
    for row in rows:
        gap = row.versus.difference if row.versus else None
        cells.append(
            (
                Cell(text=row.name),
                percent_cell(row.accuracy.value if row.accuracy else None),
                percent_cell(row.deviation, unit=""),
                interval_cell(row.accuracy),
                Cell(text=_gap(gap), sort=gap.value if gap else -9.0),
                Cell(text="–" if row.p is None else tell_p(row.p), sort=2 if not row.p else row.p),
                number_cell(row.minutes, "{:.1f}"),
                size_cell(row.images_per_second),
                size_cell(row.parameters),
                size_cell(row.flops),
                Cell(text=_seeds(row), sort=float(len(row.accuracies))),
            )
        )
    return Table(
        title=title,
        columns=columns,
        rows=tuple(cells),
        notes=(
            "± std: the standard deviation over seeds. Minutes and images/s: of training, without "
            "the final test. FLOPs: of one image's forward pass, where a multiplication and an "
            "addition count as two.",
        ),
    )


def _gap(gap: Estimate | None) -> str:
    if gap is None:
        return "–"
    return f"{points(gap.value)} ({points(gap.low)} to {points(gap.high)})"


def _seeds(row: Row) -> str:
    done, wanted = len(row.accuracies), len(row.outcomes)
    return f"{done}" if done == wanted else f"{done} of {wanted}"


def percent_cell(value: float | None, unit: str = " %") -> Cell:
    """A share."""
    return number_cell(None if value is None else 100 * value, "{:.1f}" + unit)


def interval_cell(estimate: Estimate | None) -> Cell:
    """The interval of a share."""
    if estimate is None:
        return Cell(text="–", sort=-1.0)
    text = f"{100 * estimate.low:.1f}–{100 * estimate.high:.1f}"
    return Cell(text=text, sort=estimate.low, interval=estimate)


def number_cell(value: float | None, form: str) -> Cell:
    """A number; a dash where there is none."""
    return Cell(text="–", sort=-1.0) if value is None else Cell(text=form.format(value), sort=value)


def size_cell(value: float | None) -> Cell:
    """A large number in thousands, millions or billions."""
    if value is None:
        return Cell(text="–", sort=-1.0)
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return Cell(text=f"{value / (1e3 if size == 1e4 else size):.3g}{letter}", sort=value)
    return Cell(text=f"{value:,.0f}", sort=value)


def seeds_table(rows: Sequence[Row]) -> Table:
    """Every run, for those who want to see the spread."""
    cells = []
    for row in rows:
        accuracies = dict(zip(row.seeds, row.accuracies, strict=True))
        for outcome in row.outcomes:
            cells.append(
                (
                    Cell(text=row.name),
                    number_cell(float(outcome.member.seed), "{:.0f}"),
                    percent_cell(accuracies.get(outcome.member.seed)),
                    Cell(text=outcome.state),
                    Cell(text=outcome.member.folder),
                )
            )
    return Table(
        title="Runs", columns=("model", "seed", "accuracy", "state", "folder"), rows=tuple(cells)
    )


def charts_of(rows: Sequence[Row]) -> list[Chart]:
    """Accuracy against time: the end of each row, and validation on the way there."""
    charts = []
    ends = {row.name: row for row in rows if row.accuracy is not None and row.minutes is not None}
    if ends:
        charts.append(
            accuracy_over(
                {name: [(row.minutes or 0.0, _mean(row))] for name, row in ends.items()},
                intervals={name: [row.accuracy] for name, row in ends.items() if row.accuracy},
                title="Test accuracy and time",
                x_label="minutes of training",
                joined=False,
            )
        )
    ways = {row.name: _way(row) for row in rows}
    if ways := {name: way for name, way in ways.items() if way}:
        charts.append(
            accuracy_over(ways, title="Validation accuracy", x_label="minutes of training")
        )
    return charts


def _way(row: Row) -> list[Point]:
    """Validation accuracy over minutes, the mean over seeds; none without validation."""
    curves = []
    for run in row.runs:
        seconds, times, values = 0.0, [0.0], [0.0]
        for line in run.log():
            seconds += float(line.get("seconds", 0))
            if line["kind"] == "val" and "accuracy" in line:
                times.append(seconds / 60)
                values.append(line["accuracy"])
        if len(times) > 1:
            curves.append((np.array(times), np.array(values)))
    if not curves:
        return []
    first, last = max(t[1] for t, _ in curves), min(t[-1] for t, _ in curves)
    grid = np.linspace(min(first, last), last, min(_SAMPLES, max(len(t) - 1 for t, _ in curves)))
    means = np.mean([np.interp(grid, t, v) for t, v in curves], axis=0)
    return list(zip(grid.tolist(), means.tolist(), strict=True))
