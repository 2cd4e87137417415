"""The tables of docs/results.md, made from results/*.json and the papers' tables.

    python tools/results.py      # writes the tables; a test fails while they are out of date

Figures of results/curves/*.json are written to docs/assets/. What stands between the markers is
made here; all other text is written by hand.
"""

import re
import statistics
from pathlib import Path

from smallvit.experiments.curve import figure_of
from smallvit.experiments.papers import COMPACT, DRLOC, SPT, Published
from smallvit.experiments.reproduce import overview
from smallvit.experiments.results import CurvePoint, CurveResult, Result, read_curve, read_results
from smallvit.reporting.report import figure_svg

ROOT = Path(__file__).parent.parent
PAGE, RESULTS = ROOT / "docs" / "results.md", ROOT / "results"
CURVES, ASSETS = RESULTS / "curves", PAGE.parent / "assets"
WIDTH = 110  # letters in a line of a command

PAPERS = {
    SPT: "Shifted Patch Tokenization and Locality Self-Attention",
    DRLOC: "Dense Relative Localization",
    COMPACT: "Compact Transformers",
}


def measured() -> str:
    """What was trained: a line each in a table, then its command and what is to be known of it."""
    published = {row.key: row.percent for row, _ in overview(RESULTS)}
    lines = [
        "| | accuracy | seeds | paper | images seen | minutes | images/s | device | commit |",
        "|---|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    details = []
    for result in read_results(RESULTS):
        name, first = result.row or result.title, result.trainings[0]
        cells = (
            name,
            f"{result.spread()}",
            len(result.trainings),
            published.get(result.row or "", "–"),
            f"{result.images_seen:,}",
            _mean(result, "minutes", ".1f"),
            _mean(result, "images_per_second", ",.0f"),
            first.hardware,
            first.commit or "–",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
        details.append(_detail(name, result))
    return "\n".join([*lines, "", *details])


def _detail(name: str, result: Result) -> str:
    """The command of a result, an option never apart from its value, and its notes."""
    lines = [""]
    for option in re.split(" (?=--)", result.command):
        joined = f"{lines[-1]} {option}".strip()
        if len(joined) <= WIDTH:
            lines[-1] = joined
        else:
            lines.append(option)
    command = " \\\n    ".join(lines)
    text = f"**{name}**\n\n```sh\n{command}\n```\n"
    return f"{text}\n{' '.join(result.notes)}\n" if result.notes else text


def _mean(result: Result, name: str, form: str) -> str:
    values = [value for each in result.trainings if (value := getattr(each, name)) is not None]
    return format(sum(values) / len(values), form) if values else "–"


def papers() -> str:
    """Every row of the papers, with what has been run of it."""
    parts = []
    pairs = [
        (row, result if result and result.as_published else None)
        for row, result in overview(RESULTS)
    ]
    for paper, title in PAPERS.items():
        of_paper = [(row, result) for row, result in pairs if row.paper == paper]
        run = sum(result is not None for _, result in of_paper)
        parts.append(f"**{title}** (arXiv {paper}): {run} of {len(of_paper)} rows run.\n")
        parts.append("| row | model | published | ours | seeds |\n|---|---|--:|--:|--:|")
        parts += [_line(row, result) for row, result in of_paper]
        parts.append("")
    return "\n".join(parts)


def _line(row: Published, result: Result | None) -> str:
    ours = result.spread() if result else "not run"
    seeds = len(result.trainings) if result else ""
    return f"| `{row.key}` | `{row.model}` | {row.percent} | {ours} | {seeds} |"


def curves() -> str:
    """Accuracy against training images: a figure and a table for each file."""
    parts = [_curve(read_curve(path), figure.name) for path, figure in figures().items()]
    return "\n".join(parts) or "None has been run yet.\n"


def figures() -> dict[Path, Path]:
    """Files of curves, and where the figure of each belongs."""
    return {path: ASSETS / f"curve-{path.stem}.svg" for path in sorted(CURVES.glob("*.json"))}


def _curve(result: CurveResult, figure: str) -> str:
    counts = sorted({point.images for each in result.models for point in each.points})
    lines = [
        f"**{result.title}**: `{result.command}`; {result.budget} each; "
        f"{', '.join(result.hardware)}; commit {', '.join(result.commits) or '–'}.\n",
        f"![Accuracy against training images](assets/{figure})\n",
        f"| training images | {' | '.join(f'{count:,}' for count in counts)} |",
        "|---|" + "--:|" * len(counts),
    ]
    for model in result.models:
        found = {point.images: point for point in model.points}
        cells = [_spread(found[n]) if n in found else "–" for n in counts]
        lines.append(f"| `{model.model}` | {' | '.join(cells)} |")
    said = (each.answer for each in result.models if each.answer)
    return "\n".join([*lines, "", *(f"- {note}" for note in (*said, *result.notes))]) + "\n"


def _spread(point: CurvePoint) -> str:
    """Mean and deviation over seeds; of one seed its interval over test images."""
    found, only = point.accuracies, point.accuracy
    mean = f"{100 * statistics.mean(found):.1f}"
    if found[1:]:
        return f"{mean} ± {100 * statistics.stdev(found):.1f}"
    return f"{mean} ({100 * only.low:.1f}–{100 * only.high:.1f})"


PARTS = {"measured": measured, "curves": curves, "papers": papers}


def page() -> str:
    """The page with its tables up to date."""
    text = PAGE.read_text()
    for name, make in PARTS.items():
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        found = between.search(text)
        if found is None:
            raise SystemExit(f"{PAGE} has no part between <!-- {name} --> and <!-- /{name} -->")
        text = text[: found.end(1)] + make() + text[found.start(2) :]
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
    for path, figure in figures().items():
        figure.write_text(figure_svg(figure_of(read_curve(path))))
