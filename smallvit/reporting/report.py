"""`report`: the page, rendered and written."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallvit.evaluation.confusions import largest_confusions
from smallvit.files import write_bytes
from smallvit.pages import content_security
from smallvit.reporting.charts import HEIGHT, WIDTH
from smallvit.reporting.comparing import compare_runs, points
from smallvit.reporting.facts import Facts, gather, read_evaluation
from smallvit.reporting.matrix import draw_matrix
from smallvit.reporting.narrative import (
    MEANINGS,
    about_result,
    about_run,
    caveats,
    duration,
    unfinished,
)
from smallvit.reporting.plots import calibration, curves, temperature_chart
from smallvit.runs.folder import INFO, Run
from smallvit.text import shown

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT, COMPARISON = "report.html", "comparison.html"

_CONFUSED = 15
_LONG = 48

Place = str | os.PathLike[str] | Run


def report(
    runs: Place | Sequence[Place],
    out: str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    progress: bool = False,
) -> Path:
    """Writes one self-contained HTML page of a run, or of several side by side.

    What cannot be had, as of a run that was interrupted or whose data is gone, is left out, and
    the page says why.

    Args:
        runs: A run folder, several of them, or the folder of a cross-validation.
        out: The file to write; by default report.html in the run folder, or comparison.html
            beside the first run.
        device: auto, cpu, cuda or mps; where answers and maps are computed.
        progress: Whether to show a bar while images are decoded.

    Returns:
        The file.

    Raises:
        ValueError: Something given is no run folder, is damaged, or is given twice.
        OSError: The file cannot be written.
    """
    given = [runs] if isinstance(runs, str | os.PathLike | Run) else list(runs)
    folders = _expanded(given)
    folds = len(given) == 1 and len(folds_of(given[0])) > 0
    opened = [Run.open(folder) for folder in folders]
    if not opened:
        raise ValueError("no run was given: name one run folder or several")
    places = [run.folder.resolve() for run in opened]
    twice = [place for place in places if places.count(place) > 1]
    if twice:
        raise ValueError(f"{shown(twice[0])} is given twice: name every run once")
    if len(opened) == 1:
        page = run_page(gather(opened[0], device=device, progress=progress))
        path = opened[0].folder / REPORT
    else:
        page = comparison_page([_briefly(run) for run in opened], folds=folds)
        path = opened[0].folder.parent / COMPARISON
    path = path if out is None else Path(out)
    write_bytes(path, page.encode())
    return path


def folds_of(place: Place) -> list[Path]:
    """The run folders of a cross-validation; none where the place is something else."""
    if isinstance(place, Run) or (Path(place) / INFO).is_file():
        return []
    found = [path.parent for path in Path(place).glob(f"fold-*/{INFO}")]
    parts = [path for path in found if path.name[5:].isdecimal()]
    return sorted(parts, key=lambda path: int(path.name[5:]))


def _expanded(given: Sequence[Place]) -> list[Place]:
    expanded: list[Place] = []
    for place in given:
        expanded += folds_of(place) or [place]
    return expanded


def _briefly(run: Run) -> Facts:
    """What a comparison needs: no images, no model."""
    return Facts(run=run, log=tuple(run.log()), evaluation=read_evaluation(run))


def run_page(facts: Facts) -> str:
    """The page of one run, as HTML."""
    found, run = facts.evaluation, facts.run
    last = max((line["step"] for line in facts.log), default=0)
    shown_run: dict[str, Any] = {
        "title": f"{run.info['model']['name']} on {shown(Path(run.info['data']['source']).name)}",
        "facts": facts,
        "found": found,
        "about": about_run(facts),
        "unfinished": unfinished(run, last, tested=found is not None),
        "curves": curves(run, facts.log),
        "record": record(run),
        "config": run.config.to_yaml(),
    }
    if facts.temperatures:
        shown_run["temperatures"] = temperature_chart(facts.temperatures)
    if found is not None:
        shown_run |= {
            "result": about_result(found),
            "caveats": caveats(facts),
            "matrix": draw_matrix(found),
            "confusions": largest_confusions(found, _CONFUSED),
            "calibration": calibration(found, facts.uncalibrated),
        }
    return _render("run.html", **shown_run)


def comparison_page(facts: Sequence[Facts], *, folds: bool = False) -> str:
    """The page of several runs, as HTML."""
    told = compare_runs(facts, folds=folds)
    title = f"{len(facts)} folds of one run" if folds else f"{len(facts)} runs compared"
    return _render("comparison.html", title=title, told=told)


def record(run: Run) -> dict[str, str]:
    """What was written down of a run, for those who want to repeat it."""
    info = run.info
    wanted = ("smallvit", "torch", "python", "device", "processes", "threads", "created", "ended")
    rows = {"folder": str(run.folder), "command": info.get("command", "")}
    rows |= {name: str(info[name]) for name in wanted if info.get(name) not in (None, "")}
    rows["seed"] = str(run.config.seed)
    rows["data"] = str(info["data"]["source"])
    rows["data fingerprint"] = str(info["data"]["fingerprint"])
    return {name: shown(value) for name, value in rows.items() if value}


def _render(template: str, **values: Any) -> str:
    environment = _environment()
    style, script = (
        environment.get_template(name).render().strip() for name in ("style.css", "script.js")
    )
    from markupsafe import Markup

    page: str = environment.get_template(template).render(
        style=Markup(style),
        script=Markup(script),
        policy=content_security(style, script, "img-src data:"),
        **values,
    )
    return page


def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("smallvit.reporting", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "shown": shown,
        "percent": lambda value: f"{100 * value:.1f}\u00a0%",
        "number": lambda value: f"{value:,}",
        "together": lambda text: text.replace(" %", "\u00a0%"),
        "short": lambda name: name if len(name) <= _LONG else f"{name[: _LONG - 1]}…",
        "duration": duration,
        "points": points,
    }
    environment.filters |= filters
    environment.globals |= {"MEANINGS": MEANINGS, "WIDTH": WIDTH, "HEIGHT": HEIGHT}
    return environment
