"""`compare`: models under the same data, splits and budget, and which of them is better."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from smallvit.arguments import Between, checked
from smallvit.config_io import leaf, nested, overlaid
from smallvit.experiments.rows import (
    Row,
    evaluations_of,
    make_rows,
    seen_before,
    tell_p,
    verdicts,
)
from smallvit.experiments.sets import CHOSEN, Member, Outcome, RunSet
from smallvit.files import at_home
from smallvit.models.names import check_name
from smallvit.recipes import Plan, plan
from smallvit.reporting.charts import Chart, Point
from smallvit.reporting.comparing import points
from smallvit.reporting.sheet import Cell, Sheet, Table, accuracy_over
from smallvit.runs.changes import BUDGET
from smallvit.text import counted, shown, some

PRETRAINED = "pretrained:"

#: What may follow any name, and what it sets whatever the recipe does: DRLoc is an option of the
#: run. Beside such a name the others have none.
LOSSES: dict[str, dict[str, Any]] = {
    "+drloc": {"loss": {"drloc": "auto", "drloc_form": "normalised"}},
    "+drloc-released": {"loss": {"drloc": "auto", "drloc_form": "released"}},
}
WITHOUT: dict[str, Any] = {"loss": {"drloc": 0.0}}

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
        models: Names, as `changes_for` reads them.
        seeds: Trainings of each.
        command: For the record: what was typed.

    Raises:
        ValueError: A name is not known, or the data cannot be read.
    """
    changes = changes_of_all(models)
    planned = plan(changes=overlaid(settings, next(iter(changes.values()))))
    shared = with_budget(with_splits(settings, planned), planned)
    members = [
        member
        for name, change in changes.items()
        for member in members_of(name, overlaid(shared, change), seeds)
    ]
    facts = {"data": planned.dataset.source, **facts_of_budget(settings, shared)}
    return RunSet(kind="compare", members=tuple(members), facts=facts, command=command)


def listed(models: Iterable[str]) -> list[str]:
    """Names that may be joined by commas, one by one.

    Raises:
        ValueError: One is listed twice, or there is none.
    """
    names = [name.strip() for text in models for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("which models? Name some with --models, separated by commas")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{some(twice)} is listed twice: name every model once")
    return names


def changes_of_all(models: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What `changes_for` gives each of several names; one with a loss has the others do without.

    Raises:
        ValueError: As `listed` and `changes_for` do.
    """
    names = listed(models)
    base = WITHOUT if any(name.endswith(tuple(LOSSES)) for name in names) else {}
    return {name: overlaid(base, changes_for(name)) for name in names}


def changes_for(spec: str) -> dict[str, Any]:
    """The partial config of a model's name: `vit_9_p4+spt+lsa+drloc`, `resnet18`, `auto`.

    One of `LOSSES` may follow. A pretrained start is a run folder or a name of timm's,
    `pretrained:SOURCE`, or with a name before it, as in `cct_7_3x1+pretrained:cct.pth`, a
    checkpoint.

    Raises:
        ValueError: There is no such model, or a pretrained start is not there.
    """
    ending = next((each for each in LOSSES if spec.endswith(each)), "")
    name, loss = spec.removesuffix(ending), LOSSES.get(ending, {})
    if not name or "+drloc" in name.partition(PRETRAINED)[0]:
        raise ValueError(
            f"{shown(spec)}: {' or '.join(LOSSES)} comes last, behind the name of a model and its "
            "add-ons, as in vit_9_p4+spt+lsa+drloc"
        )
    if PRETRAINED in name:
        model, _, source = name.partition(PRETRAINED)
        # What looks like a path must be there; anything else is a name that timm may know.
        if source.startswith((".", "/", "~")) and not at_home(source).exists():
            raise ValueError(f"{shown(spec)}: there is no file or run folder {shown(source)}")
        start: dict[str, Any] = {"model": {"pretrained": source}}
        if model := model.removesuffix("+"):
            start["model"]["name"] = str(check_name(model))
        return overlaid(loss, start)
    if name != "auto":
        check_name(name)
    return overlaid(loss, {"model": {"name": name}})


def members_of(row: str, changes: Mapping[str, Any], seeds: int) -> list[Member]:
    """The members of a row: the same with one seed after the other, the settings' own first.

    The splits stay as they are: `data.seed` does not change.
    """
    first = int(leaf(changes, "seed") or 0)
    return [
        Member(row=row, seed=seed, changes=overlaid(changes, {"seed": seed}))
        for seed in range(first, first + seeds)
    ]


def with_splits(settings: Mapping[str, Any], planned: Plan) -> dict[str, Any]:
    """The settings with the first model's share of validation images, which others may not have."""
    made = planned.dataset.held_out.get("val")
    if "val" not in planned.dataset.splits:
        made = 0.0
    return dict(settings) if made is None else overlaid(settings, nested("data.val", made))


def with_budget(settings: Mapping[str, Any], planned: Plan) -> dict[str, Any]:
    """The settings with a budget: their own, or what the recipe gives the first model."""
    if _has_budget(settings):
        return dict(settings)
    schedule = planned.config.schedule
    name = "steps" if schedule.steps is not None else "epochs"
    return overlaid(settings, nested(f"schedule.{name}", getattr(schedule, name)))


def _has_budget(settings: Mapping[str, Any]) -> bool:
    return any(leaf(settings, path) is not None for path in BUDGET)


def facts_of_budget(settings: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """How long each run trains, and whether the settings left that to the recipe."""
    return {"budget": tell_budget(shared), CHOSEN: not _has_budget(settings)}


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
    notes += [_chosen(row) for row in rows if row.runs and row.name.partition("+")[0] == "auto"]
    if several:
        notes.append(
            "Intervals are about another seed and other test images of the same kind, together; p "
            "is corrected after Holm for the number of rows."
        )
    if short := sum(len(row.runs) - len(row.seeds) for row in rows if row.seeds):
        notes.append(f"{counted(short, 'test was', 'tests were')} cut short, and left out.")
    sheet = Sheet(
        title=f"{counted(len(rows), 'model')} on {shown(str(runs.facts.get('data', 'data')))}",
        lead=(*verdicts(rows), *seen_before(rows)),
        notes=tuple(notes),
        tables=(table_of(rows, title=title, versus=versus), seeds_table(rows)),
        charts=tuple(charts_of(rows)),
        failures={name: text for row in rows for name, text in row.errors.items()},
        record=record_of(runs),
    )
    return sheet, {"kind": runs.kind, "rows": [row.to_plain() for row in rows]}


def _chosen(row: Row) -> str:
    """Which model the recipe took where it was left to it."""
    sizes = {run.info["model"]["name"]: run.image_size for run in row.runs}
    models = [f"{name}, of {height}×{width} pixels" for name, (height, width) in sizes.items()]
    return f"{row.name} is {' and '.join(models)}."


def record_of(runs: RunSet) -> dict[str, str]:
    """What one needs to repeat a set."""
    record = {"command": runs.command, "commit": ", ".join(runs.commits)}
    return {name: text for name, text in record.items() if text}


def table_of(rows: Sequence[Row], *, title: str, versus: str) -> Table:
    """All rows with their numbers."""
    columns = (
        *("model", "accuracy", "± std", "95 % interval", f"{versus}, points", "p"),
        *("minutes", "images/s", "parameters", "FLOPs", "seeds"),
    )
    cells = []
    for row in rows:
        gap = row.versus.difference if row.versus else None
        apart = f"{points(gap.value)} ({points(gap.low)} to {points(gap.high)})" if gap else "–"
        done, wanted = len(row.accuracies), len(row.outcomes)
        cells.append(
            (
                Cell(text=row.name),
                Cell.percent(row.accuracy.value if row.accuracy else None),
                Cell.percent(row.deviation, unit=""),
                Cell.bounds(row.accuracy),
                Cell(text=apart, sort=gap.value if gap else -9.0),
                Cell(text="–" if row.p is None else tell_p(row.p), sort=2 if not row.p else row.p),
                Cell.number(row.minutes, "{:.1f}"),
                Cell.size(row.images_per_second),
                Cell.size(row.parameters),
                Cell.size(row.flops),
                Cell(text=f"{done}" if done == wanted else f"{done} of {wanted}", sort=float(done)),
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


def seeds_table(rows: Sequence[Row]) -> Table:
    """Every run, for those who want to see the spread."""
    cells = []
    for row in rows:
        accuracies = dict(zip(row.seeds, row.accuracies, strict=True))
        for outcome in row.outcomes:
            cells.append(
                (
                    Cell(text=row.name),
                    Cell.number(float(outcome.member.seed), "{:.0f}"),
                    Cell.percent(accuracies.get(outcome.member.seed)),
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
                {name: [(row.minutes or 0.0, row.tested.value)] for name, row in ends.items()},
                intervals={name: [row.tested] for name, row in ends.items()},
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
