"""`smallvit report`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from smallvit.cli.app import app
from smallvit.cli.evaluating import Device
from smallvit.cli.terminal import say


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="A run folder; several are compared on one page."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The file to write; otherwise report.html in the run folder, or comparison.html "
            "beside the first run.",
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Write one self-contained HTML page about a run, or about several side by side."""
    from smallvit.reporting import report as write_report

    path = write_report(runs, out, device=device, progress=sys.stderr.isatty())
    say(f"wrote {path}")
