"""`smallvit predict`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from smallvit.cli.app import app
from smallvit.cli.terminal import say
from smallvit.formats import TRUST, sources


@app.command()
def predict(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN|FILE", help=f"What to load: {sources()}."),
    ],
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATHS",
            help="Images, folders of them at any depth, patterns, and - for a list on standard "
            "input, one path per line.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write a .csv, .json, .jsonl or .parquet file."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many classes to name.")] = 5,
    flip: Annotated[bool, typer.Option(help="Average with the mirror image.")] = False,
    batch_size: Annotated[int, typer.Option(help="Images per forward pass.")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    trust: Annotated[bool, typer.Option("--trust", help=TRUST)] = False,
) -> None:
    """Name the classes of images, with calibrated probabilities.

    Files that cannot be read become rows with an error. Exits with 1 if there is no other row.
    """
    from smallvit.inference import Predictor, write_rows
    from smallvit.inference import predict as predict_paths
    from smallvit.inference.rows import check_output, line
    from smallvit.text import counted

    if out is not None:
        check_output(out)
    predictor = Predictor.open(source, device, trust=trust)
    top = min(top, len(predictor.classes))
    progress = out is not None and sys.stderr.isatty()
    rows = predict_paths(
        predictor, paths, top=top, flip=flip, batch_size=batch_size, progress=progress
    )
    if out is not None:
        count, failed = write_rows(rows, out, top=top)
        say(f"wrote {counted(count, 'row')} to {out}", err=True)
    else:
        count = failed = 0
        for row in rows:
            count, failed = count + 1, failed + bool(row.error)
            say(line(row))
    if failed:
        say(f"{failed:,} of {count:,} could not be predicted", err=True)
    if failed == count:
        raise typer.Exit(1)
