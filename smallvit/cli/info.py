"""`smallvit info`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smallvit.cli.app import app

if TYPE_CHECKING:
    from smallvit.inference import Card

_NAMED = 12


@app.command()
def info(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FILE",
            help="A run folder, or an exported .onnx, .pt2 or .safetensors file.",
        ),
    ],
) -> None:
    """Say what a run or an exported file is: model, data, classes, accuracy, versions."""
    from smallvit.inference.predictor import read_card
    from smallvit.runs.card import Card, accuracy_of
    from smallvit.text import shown

    lines = {}
    if source.is_file():
        card = read_card(source)
        size = f"{source.stat().st_size / 1e6:,.1f} MB"
        lines = {"file": f"{source}, {size}, exported with {_versions(card)}"}
    else:
        from smallvit.runs.folder import Run

        run = Run.open(source)
        card = Card.of(run, accuracy_of(run))
        written = ", ".join(f"{name} {run.info.get(name)}" for name in ("smallvit", "torch"))
        status = run.info.get("status", "unknown")
        lines = {"run": f"{run.folder}, {status}, trained with {written}"}
    lines |= _lines(card)
    width = max(map(len, lines))
    for name, text in lines.items():
        typer.echo(f"{name:<{width}}  {shown(text)}")


def _versions(card: "Card") -> str:
    return ", ".join(f"{name} {version}" for name, version in card.versions.items())


def _lines(card: "Card") -> dict[str, str]:
    from smallvit.evaluation import Estimate

    facts, data = card.facts, card.config.get("data", {})
    many = facts.get("parameters")
    counts = ", ".join(f"{count:,} {split}" for split, count in facts.get("counts", {}).items())
    more = len(card.classes) - _NAMED
    named = ", ".join(card.classes[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
    kind = {1: "grey", 3: "colour"}.get(card.channels, f"{card.channels} channels")
    lines = {
        "model": str(card.model.get("name")) + (f", {many:,} parameters" if many else ""),
        "data": str(data.get("source") or "unknown") + (f": {counts}" if counts else ""),
        "classes": f"{len(card.classes):,}: {named}",
        "images": "{}×{}, {}, {}".format(*card.image_size, kind, card.fit),
        "accuracy": "not measured",
        "temperature": f"{card.temperature:.4g}",
    }
    if card.accuracy:
        value, low, high = card.accuracy
        lines["accuracy"] = Estimate(value=value, low=low, high=high).percent + " on test"
    if facts.get("steps"):
        lines["steps"] = f"{facts['steps']:,}"
    return lines
