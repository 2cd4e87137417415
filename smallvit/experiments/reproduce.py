"""`reproduce`: a row of a paper trained here, beside its published value."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smallvit.arguments import checked
from smallvit.config_io import flattened, leaf, overlaid
from smallvit.experiments import compare
from smallvit.experiments.papers import CLASSES, COUNTS, Published, find_row, rows
from smallvit.experiments.results import NOT_THE_ROW, Result, Training, read_results
from smallvit.experiments.rows import Row, make_rows
from smallvit.experiments.sets import Outcome, RunSet
from smallvit.reporting.comparing import points
from smallvit.reporting.sheet import Cell, Sheet, Table, accuracy_over
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run

#: Benchmarks are used as they are published, with the duplicates that they have.
_ALLOWED = ("leaks", "conflicts")

#: What may be set without training something else: where the data is, and what trains on it.
_ELSEWHERE = {
    *("seed", "data.source", "data.root", "data.download", "data.allow"),
    *("loop.device", "loop.deterministic", "loop.log_test"),
}
_NEAR = 0.01
"""Numbers of images may differ by this share: the last batch of a pass is left out or not."""


@checked
def reproduce_set(
    key: str,
    settings: Mapping[str, Any] | None = None,
    *,
    seeds: compare.Seeds = 1,
    best_of_epochs: bool = False,
    command: str = "",
) -> RunSet:
    """The runs that reproduce a row of a paper.

    Args:
        key: Of the row, such as cifar100/sl-vit.
        settings: A partial config that goes before the row's own, such as where the data is.
        seeds: Trainings.
        best_of_epochs: Whether to log the accuracy on the test split at every validation.
        command: For the record: what was typed.

    Raises:
        ValueError: There is no such row, or a setting is not known or not allowed.
    """
    published = find_row(key)
    changes = overlaid(
        {
            "recipe": published.recipe,
            "data": {"source": published.data, "allow": list(_ALLOWED)},
            "model": {"name": published.model},
        },
        published.changes,
        settings or {},
    )
    if best_of_epochs:
        changes = overlaid(changes, {"loop": {"log_test": True}})
    RunConfig().changed(changes)  # refused here, and not by every run
    members = compare.members_of(key, changes, seeds)
    return RunSet(kind="reproduce", members=tuple(members), facts={"row": key}, command=command)


def conclude(runs: RunSet, outcomes: Sequence[Outcome]) -> tuple[Sheet, dict[str, Any]]:
    """Ours beside the published value: for people, and as plain data."""
    published = find_row(runs.facts["row"])
    (row,) = make_rows(outcomes)
    other_data, otherwise = departures(runs, row.runs)
    best = [_best_of_epochs(o.run) for o in row.outcomes if o.run and o.member.seed in row.seeds]
    logged = [value for value in best if value is not None]
    sheet = Sheet(
        title=f"{published.key}: {published.model} as in arXiv {published.paper}",
        lead=(_lead(published, row), *_warning(other_data, otherwise)),
        notes=tuple(_notes(published, row, logged, same_data=not other_data)),
        tables=(_table(published, row, logged), compare.seeds_table([row])),
        charts=_charts(row),
        failures=row.errors,
        record=compare.record_of(runs),
    )
    plain = {
        "kind": "reproduce",
        "row": published.key,
        "published": published.accuracy,
        "chosen": published.chosen,
        "best_of_epochs_on_test": best,
        **row.to_plain(),
    }
    return sheet, plain


def _lead(published: Published, row: Row) -> str:
    if row.accuracy is None:
        return f"{published.key} is published with {published.accuracy:g} %; ours is not trained."
    spread = "" if row.deviation is None else f" ± {100 * row.deviation:.2f}"
    gap = row.accuracy.value - published.accuracy / 100
    return (
        f"Ours {100 * row.accuracy.value:.2f}{spread} % ({len(row.accuracies)} of "
        f"{len(row.outcomes)} seeds, after the last step), published {published.accuracy:g} % "
        f"({published.chosen}): {points(gap)} points."
    )


def departures(runs: RunSet, finished: Sequence[Run]) -> tuple[list[str], list[str]]:
    """In what finished runs are not the published row: the data, and how it was trained."""
    published = find_row(runs.facts["row"])
    if not finished:
        return [], []
    first, data, trained = finished[0], [], []
    about = first.info["data"]
    classes, expected = len(about["classes"]), CLASSES[published.data.partition(":")[0]]
    if classes != expected:
        data.append(f"the data has {classes} classes and not {expected}")
    images = sum(number for name, number in about["counts"].items() if name != "test")
    count = COUNTS.get(published.data, 0) * (leaf(published.changes, "data.limit") or 1)
    if count and abs(images - count) > _NEAR * count:
        data.append(f"the data has {images:,} training images and not {count:,.0f}")
    seen, wanted = first.info["steps"] * first.config.loop.batch_size, published.images_seen
    if wanted and abs(seen - wanted) > _NEAR * wanted:
        trained.append(f"{seen:,} images were seen in training and not {wanted:,}")
    own = reproduce_set(published.key).members[0].changes
    changed = [
        f"{path}={value}"
        for path, value in flattened(runs.members[0].changes).items()
        if value not in (None, leaf(own, path)) and path not in _ELSEWHERE
    ]
    if changed:
        trained.append(f"{', '.join(changed)} {'was' if len(changed) == 1 else 'were'} set")
    return data, trained


def _warning(data: Sequence[str], trained: Sequence[str]) -> tuple[str, ...]:
    """One sentence about what makes it another experiment; none where nothing does."""
    return (f"{NOT_THE_ROW}{'; '.join([*data, *trained])}.",) if data or trained else ()


def _notes(published: Published, row: Row, best: Sequence[float], *, same_data: bool) -> list[str]:
    notes = [published.note] if published.note else []
    if row.accuracy is not None:
        low, high = 100 * row.accuracy.low, 100 * row.accuracy.high
        notes.append(
            f"The 95 % interval over seeds and other test images of the same kind is {low:.1f} to "
            f"{high:.1f} %."
        )
    if row.accuracy is not None and same_data:
        notes[-1] += (
            " The published number is of the same test images, so that most of its difference from "
            "ours is one of seeds and training."
        )
    if best:
        text = ", ".join(f"{100 * value:.2f}" for value in best)
        notes.append(
            f"The highest accuracy on the test split at any validation, chosen by that split "
            f"itself as many papers do: {text} %. It is too good, and is used for nothing."
        )
    return notes


def _table(published: Published, row: Row, best: Sequence[float]) -> Table:
    cells = [
        (
            Cell(text="ours, last step"),
            Cell.percent(row.accuracy.value if row.accuracy else None),
            Cell.percent(row.deviation, unit=""),
            Cell(text=f"{len(row.accuracies)}"),
            Cell.number(row.images_seen, "{:,.0f}"),
            Cell.number(row.minutes, "{:.1f}"),
        ),
        (
            Cell(text=f"published, {published.chosen}"),
            Cell.percent(published.accuracy / 100),
            Cell(text="–"),
            Cell(text="–"),
            Cell.number(published.images_seen, "{:,.0f}"),
            Cell(text="–"),
        ),
    ]
    if best:
        mean = sum(best) / len(best)
        beside = (Cell(text="–"), Cell(text=f"{len(best)}"), Cell(text="–"), Cell(text="–"))
        name = Cell(text="ours, best epoch on the test split")
        cells.insert(1, (name, Cell.percent(mean), *beside))
    columns = ("", "accuracy", "± std", "seeds", "images seen", "minutes")
    return Table(title="Ours and theirs", columns=columns, rows=tuple(cells))


def _charts(row: Row) -> tuple[Any, ...]:
    """Accuracy on augmented training images, seed by seed."""
    lines = {}
    for run in row.runs:
        log = [line for line in run.log() if line["kind"] == "train" and "accuracy" in line]
        if log:
            lines[f"seed {run.config.seed}"] = [(line["images"], line["accuracy"]) for line in log]
    if not lines:
        return ()
    title = "Accuracy on augmented training images"
    return (accuracy_over(lines, title=title, x_label="images seen"),)


def _best_of_epochs(run: Run) -> float | None:
    """The highest logged accuracy on the test split; None where it was not logged."""
    values = [float(line["accuracy"]) for line in run.log() if line["kind"] == "test"]
    return max(values, default=None)


def result_of(runs: RunSet, outcomes: Sequence[Outcome]) -> Result:
    """What the repository keeps of a reproduction.

    Raises:
        ValueError: No run of it is finished and tested.
    """
    published = find_row(runs.facts["row"])
    finished = [(each.run, each) for each in outcomes if each.run and each.state == "finished"]
    trainings = []
    for run, outcome in finished:
        (row,) = make_rows([outcome])
        evaluation = run.evaluation()
        if evaluation is None:
            continue
        trainings.append(
            Training(
                seed=run.config.seed,
                accuracy=evaluation.accuracy,
                best_of_epochs=_best_of_epochs(run),
                minutes=row.minutes,
                images_per_second=row.images_per_second,
                commit=runs.trained_with(outcome.member),
                hardware=", ".join(run.across_parts("device")),
                torch=", ".join(run.across_parts("torch")),
                curve=tuple(run.log()),
            )
        )
    if not trainings:
        raise ValueError(f"no run of {published.key} is finished: there is no result to keep")
    first, _ = finished[0]
    other_data, _ = departures(runs, [first])
    return Result(
        row=published.key,
        data=Path(first.config.data.source).name if other_data else published.data,
        model=first.info["model"]["name"],
        recipe=first.config.recipe,
        command=runs.command,
        images_seen=first.info["steps"] * first.config.loop.batch_size,
        parameters=first.info["parameters"],
        trainings=tuple(trainings),
        config=first.config.to_dict(),
        notes=_warning(*departures(runs, [first])),
    )


def overview(results: Path) -> list[tuple[Published, Result | None]]:
    """Every row of the papers, with what has been run of it."""
    found = {result.row: result for result in read_results(results) if result.row}
    return [(row, found.get(row.key)) for row in rows()]
