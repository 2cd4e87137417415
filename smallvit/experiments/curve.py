"""`curve`: accuracy against the number of training images, and what more of them would bring."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smallvit.arguments import checked
from smallvit.config_io import leaf, overlaid
from smallvit.evaluation import Estimate
from smallvit.evaluation.paired import same_images
from smallvit.evaluation.power_law import PowerLaw, fit_power_law
from smallvit.evaluation.seeds import hits_of
from smallvit.experiments import compare
from smallvit.experiments.engine import Member, Outcome, RunSet
from smallvit.experiments.results import CurveOfModel, CurvePoint, CurveResult
from smallvit.experiments.rows import Row, evaluations_of, make_rows
from smallvit.experiments.specs import changes_for, listed
from smallvit.recipes import plan
from smallvit.reporting.charts import Chart
from smallvit.reporting.comparing import points
from smallvit.reporting.sheet import Cell, Sheet, Table, accuracy_over
from smallvit.text import counted, shown

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
_LONG = 30  # letters of the data's name in a figure
_PER_CLASS = 4  # training images that a class must keep on average


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One model at several numbers of images.

    Attributes:
        model: Its name.
        points: Number of training images and row of each.
        law: What was fitted; None where it cannot be.
        why: The reason for that.
    """

    model: str
    points: tuple[tuple[int, Row], ...]
    law: PowerLaw | None = None
    why: str = ""


@checked
def curve_set(
    settings: Mapping[str, Any],
    models: Sequence[str] = (),
    *,
    shares: Sequence[float] = (),
    seeds: compare.Seeds = 3,
    command: str = "",
) -> RunSet:
    """The runs of learning curves.

    Each seed draws a choice of images of its own, in which a smaller one lies in every larger
    one; the test images are the same for all.

    Args:
        settings: A partial config that all share.
        models: Names, as `smallvit.experiments.specs` reads them; none is the settings' own.
        shares: Of the training images; by default doublings from a sixteenth on, as far as a
            class keeps a few images.
        seeds: Trainings of each.
        command: For the record: what was typed.

    Raises:
        ValueError: A name is not known, the data cannot be read, or there are too few shares.
    """
    own = leaf(settings, "model.name") or "auto"
    changes = {name: changes_for(name) for name in listed(models or [own])}
    planned = plan(changes=overlaid(settings, next(iter(changes.values()))))
    count, classes = len(planned.dataset.split("train")), len(planned.dataset.classes)
    enough = [share for share in SHARES if share * count >= _PER_CLASS * classes]
    chosen = sorted(set(shares or enough))
    if len(chosen) < 3:
        raise ValueError(
            f"a curve needs three numbers of images or more, and {len(chosen)} of {count:,} "
            f"training images of {classes} classes {'is' if len(chosen) == 1 else 'are'} left: "
            "name others with --shares"
        )
    if chosen[0] <= 0 or chosen[-1] > 1:
        raise ValueError(f"shares are {chosen}: allowed are numbers above 0 and up to 1")
    settings = compare.with_splits(settings, planned)
    members = []
    for name, change in changes.items():
        for share in chosen:
            row = compare.members_of(row_name(name, share), overlaid(settings, change), seeds)
            members += [_limited(member, share) for member in row]
    facts = {
        "data": planned.dataset.source,
        "budget": compare.tell_budget(settings),
        "rows": {row_name(name, s): [name, s] for name in changes for s in chosen},
    }
    return RunSet(kind="curve", members=tuple(members), facts=facts, command=command)


def row_name(model: str, share: float) -> str:
    """The name of a row."""
    return f"{model} with {100 * share:.4g} %"


def _limited(member: Member, share: float) -> Member:
    data = {"limit": share, "limit_seed": member.seed}
    changes = overlaid(member.changes, {"data": data})
    return Member(row=member.row, seed=member.seed, changes=changes)


def make_curves(runs: RunSet, outcomes: Sequence[Outcome]) -> list[Curve]:
    """The curve of each model, with its law."""
    rows = {row.name: row for row in make_rows(outcomes)}
    named: dict[str, list[tuple[int, Row]]] = {}
    for name, (model, _) in runs.facts["rows"].items():
        row = rows[name]
        if row.accuracy is not None:
            counts = [run.info["data"]["counts"]["train"] for run in row.runs]
            named.setdefault(model, []).append((round(sum(counts) / len(counts)), row))
        else:
            named.setdefault(model, [])
    return [_fitted(model, sorted(each, key=lambda p: p[0])) for model, each in named.items()]


def _fitted(model: str, found: list[tuple[int, Row]]) -> Curve:
    curve = Curve(model=model, points=tuple(found))
    evaluations = {count: list(evaluations_of(row).values()) for count, row in found}
    if len(evaluations) < 3:
        why = f"only {counted(len(evaluations), 'number')} of images could be trained"
        return Curve(model=model, points=curve.points, why=why)
    first = next(iter(evaluations.values()))[0]
    if not all(same_images(first, each[0]) for each in evaluations.values()):
        return Curve(model=model, points=curve.points, why="the test images are not the same")
    law = fit_power_law({count: hits_of(each) for count, each in evaluations.items()})
    return Curve(model=model, points=curve.points, law=law)


def conclude(runs: RunSet, outcomes: Sequence[Outcome]) -> tuple[Sheet, dict[str, Any]]:
    """What the curves say: for people, and as plain data."""
    curves = make_curves(runs, outcomes)
    rows = [row for curve in curves for _, row in curve.points]
    data = shown(str(runs.facts.get("data", "data")))
    charts = [figure_of(result_of(data, runs, curves))] if rows else []
    sheet = Sheet(
        title=f"Would more images help? {data}",
        lead=tuple(sentence for curve in curves for sentence in _answers(curve)),
        notes=(
            "Every seed draws its own choice of images, the smaller ones within the larger ones; "
            "all are tested on the same images. A forecast follows a power law fitted to these "
            "points, and holds for more images of the same kind and the same budget rule "
            f"({runs.facts.get('budget')}), not far beyond twice as many.",
        ),
        tables=(_table(curves), compare.seeds_table(rows)),
        charts=tuple(charts),
        failures={o.member.name: o.error for o in outcomes if o.state == "failed"},
        record=compare.record_of(runs),
    )
    return sheet, {"kind": "curve", "models": [_plain(curve) for curve in curves]}


def _accuracy(row: Row) -> Estimate:
    assert row.accuracy is not None
    return row.accuracy


def _answers(curve: Curve) -> list[str]:
    """What twice the images would bring."""
    law = curve.law
    if law is None:
        return [f"{curve.model}: cannot tell what more images would bring: {curve.why}."]
    gain, most = law.gain(), law.counts[-1]
    now = curve.points[-1][1]
    range_text = f"{points(gain.value)} points ({points(gain.low)} to {points(gain.high)})"
    sentence = (
        f"{curve.model}: with twice the images ({2 * most:,} instead of {most:,}) expect "
        f"{range_text} on top of {100 * _accuracy(now).value:.1f} %."
    )
    if law.seeds < 2:
        sentence += " Each was trained once, so that the interval leaves out what seeds change."
    if gain.low < 0.0005:
        sentence += " These runs cannot tell whether more images would help at all."
    return [sentence]


def _table(curves: Sequence[Curve]) -> Table:
    cells = []
    for curve in curves:
        for count, row in curve.points:
            fitted = curve.law.accuracy(count) if curve.law else None
            cells.append(
                (
                    Cell(text=curve.model),
                    compare.number_cell(float(count), "{:,.0f}"),
                    compare.percent_cell(_accuracy(row).value),
                    compare.percent_cell(row.deviation, unit=""),
                    compare.interval_cell(row.accuracy),
                    compare.percent_cell(fitted.value if fitted else None),
                    compare.number_cell(row.minutes, "{:.1f}"),
                )
            )
        if curve.law:
            more = curve.law.counts[-1] * 2
            forecast = curve.law.accuracy(more)
            cells.append(
                (
                    Cell(text=f"{curve.model}, forecast"),
                    compare.number_cell(float(more), "{:,.0f}"),
                    compare.percent_cell(forecast.value),
                    compare.percent_cell(None),
                    compare.interval_cell(forecast),
                    compare.percent_cell(forecast.value),
                    compare.number_cell(None, ""),
                )
            )
    columns = ("model", "images", "accuracy", "± std", "95 % interval", "law", "minutes")
    return Table(title="Numbers of images", columns=columns, rows=tuple(cells))


def result_of(title: str, runs: RunSet, curves: Sequence[Curve]) -> CurveResult:
    """What the repository keeps of learning curves."""
    infos = [run.info for curve in curves for _, row in curve.points for run in row.runs]
    return CurveResult(
        title=title,
        data=str(runs.facts.get("data", "data")),
        budget=str(runs.facts.get("budget", "")),
        models=tuple(
            CurveOfModel(
                model=curve.model,
                parameters=next((row.parameters for _, row in curve.points), None),
                points=tuple(
                    CurvePoint(
                        images=count,
                        accuracy=_accuracy(row),
                        accuracies=row.accuracies,
                        minutes=row.minutes,
                        images_seen=row.images_seen,
                    )
                    for count, row in curve.points
                ),
            )
            for curve in curves
        ),
        command=runs.command,
        commits=runs.commits,
        hardware=tuple(sorted({str(info.get("device")) for info in infos})),
        torch=tuple(sorted({str(info.get("torch")) for info in infos})),
    )


def figure_of(result: CurveResult) -> Chart:
    """Accuracy against training images, as the page of the set shows it."""
    drawn = [each for each in result.models if each.points]
    lines = {m.model: [(float(p.images), p.accuracy.value) for p in m.points] for m in drawn}
    return accuracy_over(
        lines,
        intervals={m.model: [p.accuracy for p in m.points] for m in drawn},
        title=f"Accuracy on {shown(Path(result.title).name)[:_LONG]}",
        x_label="training images",
        doubling=True,
    )


def _plain(curve: Curve) -> dict[str, Any]:
    law = curve.law
    return {
        "model": curve.model,
        "points": [{"images": count, **row.to_plain()} for count, row in curve.points],
        "law": None if law is None else {n: getattr(law, n) for n in ("floor", "factor", "power")},
        "doubling": None if law is None else vars(law.gain()),
        "why": curve.why,
    }
