"""`smallvit export`."""

from pathlib import Path
from typing import Annotated

import typer

from smallvit.cli.app import app
from smallvit.cli.terminal import say
from smallvit.formats import FORMATS


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run folder.")],
    format: Annotated[
        str,
        typer.Option(
            metavar="|".join(FORMATS),
            help="; ".join(f"{name}: {record.about}" for name, record in FORMATS.items()) + ".",
        ),
    ] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file; model.FORMAT in the run folder if left out."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a trained model for other programs, checked against the run on real images."""
    from smallvit.formats import export as write

    path = write(run, out, format=format, force=force)
    say(f"wrote {path}")
    script = path.with_suffix(".py")
    if FORMATS[format].script and script.exists():
        say(f"and {script}, which uses it: python {script} IMAGE…")
