"""`smallvit models` and `smallvit info`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smallvit.cli.app import app, refusal
from smallvit.cli.terminal import say
from smallvit.formats import format_of, sources

if TYPE_CHECKING:
    from smallvit.runs import Card

_NAMED = 12


@app.command()
def models(
    pattern: Annotated[
        str, typer.Argument(help='Which names, such as "cct*"; "*+*" lists add-ons.')
    ] = "*",
    classes: Annotated[int, typer.Option(help="Classes, for the parameter counts.")] = 10,
) -> None:
    """List the models with their parameters and papers, and the convolutional baselines."""
    from fnmatch import fnmatchcase

    from rich.console import Console
    from rich.table import Table

    from smallvit.models.baselines import BASELINES
    from smallvit.models.build import count_parameters
    from smallvit.models.names import find_variant, list_models

    names = list_models(pattern)
    baselines = [name for name in BASELINES if fnmatchcase(name, pattern)]
    if not names and not baselines:
        raise refusal(f"no model matches {pattern!r}; `smallvit models` lists all")
    table = Table("model", "parameters", "image size", "paper", box=None, pad_edge=False)
    for name in names:
        variant = find_variant(name)
        millions = f"{count_parameters(name, num_classes=classes) / 1e6:.2f} M"
        table.add_row(name, millions, f"{variant.image_size} px", variant.paper)
    for name in baselines:
        millions = f"{count_parameters(name, num_classes=classes) / 1e6:.2f} M"
        table.add_row(name, millions, "any", "a convolutional baseline")
    Console().print(table)


@app.command()
def info(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|FILE", help=f"What to describe: {sources()}.")
    ],
) -> None:
    """Say what a run or an exported model is: model, data, classes, accuracy, versions."""
    from smallvit.text import shown

    if record := format_of(source):
        card = record.code.read_card(source)
        files = [source] if source.is_file() else source.iterdir()
        megabytes = sum(file.stat().st_size for file in files) / 1e6
        lines = {"file": f"{source}, {megabytes:,.1f} MB, exported with {_versions(card)}"}
    else:
        from smallvit.runs.folder import Run

        run = Run.open(source)
        card = run.card.measured(run.evaluation())
        status = run.info.get("status", "unknown")
        lines = {"run": f"{run.folder}, {status}, trained with {_versions(card)}"}
    lines |= _lines(card)
    width = max(map(len, lines))
    for name, text in lines.items():
        say(f"{name:<{width}}  {shown(text)}")


def _versions(card: "Card") -> str:
    return ", ".join(f"{name} {version}" for name, version in card.versions.items())


def _lines(card: "Card") -> dict[str, str]:
    from smallvit.config_io import leaf
    from smallvit.evaluation import Estimate
    from smallvit.runs.card import short_of_folds
    from smallvit.text import some

    facts, data = card.facts, leaf(card.config, "data.source")
    parameters = facts.get("parameters")
    counts = ", ".join(f"{count:,} {split}" for split, count in facts.get("counts", {}).items())
    kind = {1: "grey", 3: "colour"}.get(card.channels, f"{card.channels} channels")
    lines = {
        "model": str(card.model.get("name"))
        + (f", {parameters:,} parameters" if parameters else ""),
        "data": str(data or "unknown") + (f": {counts}" if counts else ""),
        "classes": f"{len(card.classes):,}: {some(card.classes, _NAMED)}",
        "images": "{}×{}, {}, {}".format(*card.image_size, kind, card.fit),
        "accuracy": "not measured",
        "temperature": f"{card.temperature:.4g}",
    }
    if card.accuracy:
        value, low, high = card.accuracy
        lines["accuracy"] = Estimate(value=value, low=low, high=high).percent
        folds = facts.get("folds")
        lines["accuracy"] += (
            f" in {folds} folds; this model, trained on all images, was not tested itself"
            if folds
            else " on test"
        )
        if short := short_of_folds(facts):
            lines["accuracy"] += f"; {short}"
    if facts.get("steps"):
        lines["steps"] = f"{facts['steps']:,}"
    return lines
