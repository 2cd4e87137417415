"""`smallvit evaluate` and `smallvit report`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from smallvit.cli.app import app, refusal
from smallvit.cli.terminal import say
from smallvit.devices import DeviceName
from smallvit.runs.places import is_run
from smallvit.text import shown

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Device = Annotated[
    DeviceName,
    typer.Option("--device", help="Where to compute; auto takes a GPU if there is one."),
]


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]", help="Other images of the same classes; the run's own if left out."
        ),
    ] = None,
    split: Annotated[Literal["train", "val", "test"], typer.Option(help="Which images.")] = "test",
    flip: Annotated[
        bool, typer.Option("--flip", help="Average with the mirror image of each image.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write all numbers to this file as JSON; - prints them.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Say how good a trained model is, and how sure that is.

    The plain test of the run's own data is also kept in the run folder, where
    the report finds it; anything else leaves the run as it is.
    """
    from smallvit.files import check_target, write_bytes
    from smallvit.inference.evaluate import evaluate as evaluate_run

    if data is not None and not is_run(run) and is_run(Path(data)):
        words = shlex.join(["smallvit", "evaluate", data, str(run)])
        raise refusal(
            f"{shown(str(run))} is not a run, {shown(data)} is: the run comes first: {shown(words)}"
        )
    if json is not None:
        check_target(json)
    progress = sys.stderr.isatty()
    evaluation = evaluate_run(
        run, data, split=split, flip=flip, device=device, progress=progress, save=True
    )
    if json == Path("-"):
        say(evaluation.to_json().rstrip())
        return
    if json is not None:
        write_bytes(json, evaluation.to_json().encode())
    say(evaluation.describe())


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
