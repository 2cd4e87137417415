"""The tables of docs/results.md, made from results/*.json and the papers' tables.

    python tools/results.py      # writes the tables; a test fails while they are out of date

What stands between the markers is made here; all other text is written by hand.
"""

import re
from pathlib import Path

from smallvit.experiments.papers import COMPACT, DRLOC, SPT, Published
from smallvit.experiments.reproduce import overview
from smallvit.experiments.results import Result, read_results

ROOT = Path(__file__).parent.parent
PAGE, RESULTS = ROOT / "docs" / "results.md", ROOT / "results"

PAPERS = {
    SPT: "Shifted Patch Tokenization and Locality Self-Attention",
    DRLOC: "Dense Relative Localization",
    COMPACT: "Compact Transformers",
}


def measured() -> str:
    """What was trained, one line each."""
    published = {row.key: f"{row.accuracy:g}" for row, _ in overview(RESULTS)}
    lines = [
        "| | accuracy | seeds | paper | images seen | minutes | images/s | device | commit |",
        "|---|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for result in read_results(RESULTS):
        first = result.trainings[0]
        cells = (
            f"{result.row or result.title}: `{result.command}`",
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
    notes = [f"- {each.row or each.title}: {' '.join(each.notes)}" for each in _noted()]
    return "\n".join([*lines, "", *notes]) + "\n"


def _noted() -> list[Result]:
    return [result for result in read_results(RESULTS) if result.notes]


def _mean(result: Result, name: str, form: str) -> str:
    values = [value for each in result.trainings if (value := getattr(each, name)) is not None]
    return format(sum(values) / len(values), form) if values else "–"


def papers() -> str:
    """Every row of the papers, with what has been run of it."""
    parts = []
    pairs = overview(RESULTS)
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
    return f"| `{row.key}` | `{row.model}` | {row.accuracy:g} | {ours} | {seeds} |"


PARTS = {"measured": measured, "papers": papers}


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
