"""`smallvit predict`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from smallvit.cli.app import app


@app.command()
def predict(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN|FILE", help="A run folder, or an exported .onnx or .pt2 file."),
    ],
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATHS…",
            help="Images, folders of them at any depth, patterns, and - for a list on standard "
            "input, a path a line.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write a .csv, .json, .jsonl or .parquet file."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many classes to name.")] = 5,
    flip: Annotated[bool, typer.Option(help="Ask for the mirror image too.")] = False,
    batch_size: Annotated[int, typer.Option(help="Images at a time.")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Name the classes of images, with calibrated probabilities.

    Files that cannot be read become rows with an error. Exits with 1 if there is no other row.
    """
    from smallvit.inference import Predictor, write_rows
    from smallvit.inference import predict as predict_paths
    from smallvit.inference.rows import check_output

    if out is not None:
        check_output(out)
    predictor = Predictor.open(source, device)
    top = min(top, len(predictor.classes))
    shown = out is not None and sys.stderr.isatty()
    rows = predict_paths(
        predictor, paths, top=top, flip=flip, batch_size=batch_size, progress=shown
    )
    if out is not None:
        count, failed = write_rows(rows, out, top=top)
        typer.echo(f"wrote {count:,} rows to {out}", err=True)
    else:
        count = failed = 0
        for row in rows:
            count, failed = count + 1, failed + bool(row.error)
            _show(row.path, row.error, row.classes, row.probabilities)
    if failed:
        typer.echo(f"{failed:,} of {count:,} could not be predicted", err=True)
    if failed == count:
        raise typer.Exit(1)


def _show(path: str, error: str, classes: tuple[str, ...], shares: tuple[float, ...]) -> None:
    from smallvit.text import shown

    answers = (f"{shown(c)} {100 * p:.1f} %" for c, p in zip(classes, shares, strict=True))
    typer.echo(f"{shown(path)}\t" + (f"error: {shown(error)}" if error else "\t".join(answers)))
