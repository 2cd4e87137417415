"""`smallvit export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from smallvit.cli.app import app


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run folder.")],
    format: Annotated[
        Literal["onnx", "pt2", "safetensors", "timm"],
        typer.Option(help="onnx and pt2 take decoded images of any size; timm is a folder."),
    ] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to; model.FORMAT in the run folder if left out."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Write a trained model for other programs, checked against the run on real images."""
    from smallvit.formats import export as write

    path = write(run, out, format=format, force=force)
    typer.echo(f"wrote {path}")
    script = path.with_suffix(".py")
    if format == "onnx" and script.exists():
        typer.echo(f"and {script}, which uses it: python {script} IMAGE…")
