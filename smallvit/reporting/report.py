"""`report`: the page, rendered and written."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallvit.arguments import checked
from smallvit.evaluation import METRICS
from smallvit.evaluation.calibration import calibration_error
from smallvit.evaluation.results import largest_confusions
from smallvit.files import check_target, write_bytes
from smallvit.pages import content_security
from smallvit.reporting.charts import HEIGHT, WIDTH, Chart, calibration, curves, temperature_chart
from smallvit.reporting.comparing import compare_runs, points
from smallvit.reporting.facts import RunFacts, brief_facts, gather
from smallvit.reporting.matrix import draw_matrix
from smallvit.reporting.narrative import (
    about_folds,
    about_result,
    about_run,
    caveats,
    duration,
    unfinished,
)
from smallvit.reporting.sheet import Sheet
from smallvit.runs.folder import Run, folds_of
from smallvit.text import shown

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT, COMPARISON = "report.html", "comparison.html"

_CONFUSED = 15
_LONG = 48
_LEGEND_LINE = 17  # height of a line of a figure's legend, in units of the chart
_LEGEND_SHORT = 18  # letters of which two fit beside each other

RunLike = str | os.PathLike[str] | Run


@checked
def report(
    runs: RunLike | Sequence[RunLike],
    out: str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    progress: bool = False,
) -> Path:
    """Writes one self-contained HTML page about a run, or about several side by side.

    What is missing, as of a run that was interrupted or whose data is gone, is left out, and the
    page says why.

    Args:
        runs: A run folder, several of them, or the folder of a cross-validation.
        out: The file to write; by default report.html in the run folder, or comparison.html
            beside the first run.
        device: auto, cpu, cuda or mps; where predictions and maps are computed.
        progress: Whether to show a bar while images are decoded.

    Returns:
        The file.

    Raises:
        ValueError: A path is not a run folder, a run is damaged, or a run is listed twice.
        OSError: The file cannot be written.
    """
    listed = [runs] if isinstance(runs, str | os.PathLike | Run) else list(runs)
    opened = [run for each in listed for run in _opened(each)]
    if not opened:
        raise ValueError("no run was given: name one run folder or several")
    folders = [run.folder.resolve() for run in opened]
    twice = [folder for folder in folders if folders.count(folder) > 1]
    if twice:
        raise ValueError(f"{shown(twice[0])} is listed twice: name every run once")
    single = len(opened) == 1
    beside = opened[0].folder / REPORT if single else opened[0].folder.parent / COMPARISON
    path = beside if out is None else Path(out)
    check_target(path)
    if single:
        page = run_page(gather(opened[0], device=device, progress=progress))
    else:
        folds = len(listed) == 1
        page = comparison_page([brief_facts(run) for run in opened], folds=folds)
    write_bytes(path, page.encode())
    return path


def _opened(run: RunLike) -> list[Run]:
    """A run, or all folds of a cross-validation."""
    return (not isinstance(run, Run) and folds_of(run)) or [Run.open(run)]


def run_page(facts: RunFacts) -> str:
    """The page of one run, as HTML."""
    evaluation, run = facts.evaluation, facts.run
    source = shown(Path(run.info["data"]["source"]).name)
    values: dict[str, Any] = {
        "title": f"{run.info['model']['name']} on {source}",
        "facts": facts,
        "evaluation": evaluation,
        "about": about_run(facts),
        "unfinished": unfinished(facts),
        "crossed": about_folds(run),
        "curves": curves(run, facts.log),
        "record": record(run),
        "config": run.config.to_yaml(),
    }
    if facts.temperatures:
        values["temperatures"] = temperature_chart(facts.temperatures)
    if evaluation is not None:
        values |= {
            "result": about_result(evaluation, seen=run.info.get("seen_before", 0)),
            "caveats": caveats(facts),
            "matrix": draw_matrix(evaluation),
            "confusions": largest_confusions(evaluation, _CONFUSED),
            "calibration": calibration(evaluation, facts.uncalibrated),
        }
    return render("run.html", values)


def comparison_page(facts: Sequence[RunFacts], *, folds: bool = False) -> str:
    """The page of several runs, as HTML."""
    title = f"{len(facts)} folds of one run" if folds else f"{len(facts)} runs compared"
    comparison = compare_runs(facts, folds=folds)
    return render("comparison.html", {"title": title, "comparison": comparison})


def sheet_page(sheet: Sheet) -> str:
    """The page of an experiment, as HTML."""
    return render("sheet.html", {"title": sheet.title, "sheet": sheet})


def figure_svg(chart: Chart) -> str:
    """A chart with its title and legend as a file for papers; dark where the reader's screen is."""
    columns = 1 if any(len(each.label) > _LEGEND_SHORT for each in chart.series) else 2
    below = _LEGEND_LINE * -(-len(chart.series) // columns) + 8
    values = {"it": chart, "below": below, "line": _LEGEND_LINE, "columns": columns}
    return render("figure.svg", values)


def record(run: Run) -> dict[str, str]:
    """What was recorded of a run, for those who want to repeat it."""
    info = run.info
    wanted = ("smallvit", "torch", "python", "device", "processes", "threads", "created", "ended")
    rows = {"folder": str(run.folder), "command": info.get("command", "")}
    rows |= {name: str(info[name]) for name in wanted if info.get(name) not in (None, "")}
    rows["seed"] = str(run.config.seed)
    rows["data"] = str(info["data"]["source"])
    rows["data fingerprint"] = str(info["data"]["fingerprint"])
    return {name: shown(value) for name, value in rows.items() if value}


def page_code() -> tuple[str, str]:
    """The style and the script inside every page."""
    environment = _environment()
    style, script = (
        environment.get_template(name).render().strip() for name in ("style.css", "script.js")
    )
    return style, script


def render(template: str, values: dict[str, Any]) -> str:
    """A template of the folder pages/ with its values."""
    from markupsafe import Markup

    style, script = page_code()

    values = {
        **values,
        "style": Markup(style),
        "script": Markup(script),
        "policy": content_security(style, script, "img-src data:"),
    }
    return _environment().get_template(template).render(values)


def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("smallvit.reporting", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "calibration_error": calibration_error,
        "shown": shown,
        "percent": lambda value: f"{100 * value:.1f}\u00a0%",
        "number": lambda value: f"{value:,}",
        "together": lambda text: re.sub(r" (?=%)|(?<=\bp) (?=[<\d])", "\u00a0", text),
        "short": lambda name: name if len(name) <= _LONG else f"{name[: _LONG - 1]}…",
        "duration": duration,
        "points": points,
    }
    environment.filters |= filters
    environment.globals |= {"METRICS": METRICS, "WIDTH": WIDTH, "HEIGHT": HEIGHT}
    return environment
