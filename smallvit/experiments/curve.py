"""`curve`: accuracy against the number of training images, and what more of them would bring."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smallvit.arguments import checked
from smallvit.config_io import leaf, overlaid
from smallvit.evaluation.paired import same_images
from smallvit.evaluation.power_law import PowerLaw, fit_power_law
from smallvit.evaluation.seeds import hits_of
from smallvit.experiments import compare
from smallvit.experiments.results import CurveOfModel, CurvePoint, CurveResult
from smallvit.experiments.rows import Row, evaluations_of, make_rows, seen_before
from smallvit.experiments.sets import Outcome, RunSet
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
        models: Names, as `compare.changes_for` reads them; none is the settings' own.
        shares: Of the training images; by default doublings from a sixteenth on, as far as a
            class keeps a few images.
        seeds: Trainings of each.
        command: For the record: what was typed.

    Raises:
        ValueError: A name is not known, the data cannot be read, there are too few shares, or the
            settings have one.
    """
    if leaf(settings, "data.limit") is not None:
        raise ValueError("a curve varies data.limit itself: leave it out, and name --shares")
    own = leaf(settings, "model.name") or "auto"
    changes = compare.changes_of_all(models or [own])
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
    rows = [(row_name(name, share), name, share) for name in changes for share in chosen]
    members = []
    for row, name, share in rows:
        for member in compare.members_of(row, overlaid(settings, changes[name]), seeds):
            limit = {"data": {"limit": share, "limit_seed": member.seed}}
            members.append(replace(member, changes=overlaid(member.changes, limit)))
    facts = {
        "data": planned.dataset.source,
        "budget": compare.tell_budget(settings),
        "rows": {row: [name, share] for row, name, share in rows},
    }
    return RunSet(kind="curve", members=tuple(members), facts=facts, command=command)


def row_name(model: str, share: float) -> str:
    """The name of a row."""
    return f"{model} with {100 * share:.4g} %"


def make_curves(runs: RunSet, outcomes: Sequence[Outcome]) -> list[Curve]:
    """The curve of each model, with its law."""
    rows = {row.name: row for row in make_rows(outcomes)}
    named: dict[str, list[tuple[int, Row]]] = {}
    for name, (model, _) in runs.facts["rows"].items():
        row, found = rows[name], named.setdefault(model, [])
        if row.accuracy is not None:
            counts = [run.info["data"]["counts"]["train"] for run in row.runs]
            found.append((round(sum(counts) / len(counts)), row))
    return [_fitted(model, sorted(each, key=lambda p: p[0])) for model, each in named.items()]


def _fitted(model: str, found: list[tuple[int, Row]]) -> Curve:
    evaluations = {count: list(evaluations_of(row).values()) for count, row in found}
    firsts = [each[0] for each in evaluations.values()]
    law, why = None, ""
    if len(evaluations) < 3:
        why = f"only {counted(len(evaluations), 'number')} of images could be trained"
    elif not all(same_images(firsts[0], each) for each in firsts):
        tested = sorted({each.count for each in firsts})
        why = "the test images are not the same"
        if len(tested) > 1:
            why = f"time ran out in some tests, which have {tested[0]:,} to {tested[-1]:,} images"
    else:
        law = fit_power_law({count: hits_of(each) for count, each in evaluations.items()})
    return Curve(model=model, points=tuple(found), law=law, why=why)


def conclude(runs: RunSet, outcomes: Sequence[Outcome]) -> tuple[Sheet, dict[str, Any]]:
    """What the curves say: for people, and as plain data."""
    curves = make_curves(runs, outcomes)
    rows = [row for curve in curves for _, row in curve.points]
    data = shown(str(runs.facts.get("data", "data")))
    charts = [figure_of(result_of(data, runs, curves))] if rows else []
    sheet = Sheet(
        title=f"Would more images help? {data}",
        lead=(*(_answer(curve) for curve in curves), *seen_before(rows)),
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


def _answer(curve: Curve) -> str:
    """What twice the images would bring."""
    law = curve.law
    if law is None:
        return f"{curve.model}: cannot tell what more images would bring: {curve.why}."
    gain, most = law.gain(), law.counts[-1]
    now = curve.points[-1][1]
    range_text = f"{points(gain.value)} points ({points(gain.low)} to {points(gain.high)})"
    sentence = (
        f"{curve.model}: with twice the images ({2 * most:,} instead of {most:,}) expect "
        f"{range_text} on top of {100 * now.tested.value:.1f} %."
    )
    if law.seeds < 2:
        sentence += " Each was trained once, so that the interval leaves out what seeds change."
    if gain.low < 0.0005:
        sentence += " These runs cannot tell whether more images would help at all."
    return sentence


def _table(curves: Sequence[Curve]) -> Table:
    cells = []
    for curve in curves:
        for count, row in curve.points:
            fitted = curve.law.accuracy(count) if curve.law else None
            cells.append(
                (
                    Cell(text=curve.model),
                    Cell.number(float(count), "{:,.0f}"),
                    Cell.percent(row.tested.value),
                    Cell.percent(row.deviation, unit=""),
                    Cell.bounds(row.accuracy),
                    Cell.percent(fitted.value if fitted else None),
                    Cell.number(row.minutes, "{:.1f}"),
                )
            )
        if curve.law:
            more = curve.law.counts[-1] * 2
            forecast = curve.law.accuracy(more)
            cells.append(
                (
                    Cell(text=f"{curve.model}, forecast"),
                    Cell.number(float(more), "{:,.0f}"),
                    Cell.percent(forecast.value),
                    Cell.percent(None),
                    Cell.bounds(forecast),
                    Cell.percent(forecast.value),
                    Cell.number(None, ""),
                )
            )
    columns = ("model", "images", "accuracy", "± std", "95 % interval", "law", "minutes")
    return Table(title="Numbers of images", columns=columns, rows=tuple(cells))


def result_of(title: str, runs: RunSet, curves: Sequence[Curve]) -> CurveResult:
    """What the repository keeps of learning curves."""
    done = [run for curve in curves for _, row in curve.points for run in row.runs]
    return CurveResult(
        title=title,
        data=Path(str(runs.facts.get("data", "data"))).name,
        budget=str(runs.facts.get("budget", "")),
        models=tuple(
            CurveOfModel(
                model=curve.model,
                parameters=next((row.parameters for _, row in curve.points), None),
                points=tuple(
                    CurvePoint(
                        images=count,
                        accuracy=row.tested,
                        accuracies=row.accuracies,
                        minutes=row.minutes,
                        images_seen=row.images_seen,
                    )
                    for count, row in curve.points
                ),
                answer=_answer(curve),
            )
            for curve in curves
        ),
        command=runs.command,
        commits=runs.commits,
        hardware=tuple(sorted({each for run in done for each in run.across_parts("device")})),
        torch=tuple(sorted({each for run in done for each in run.across_parts("torch")})),
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
