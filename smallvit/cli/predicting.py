"""`smallvit explain`, `predict`, `export` and `serve`: a trained model at work."""

import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from smallvit.cli.app import app, refusal
from smallvit.cli.evaluating import RunFolder
from smallvit.cli.terminal import say
from smallvit.formats import FORMATS, TRUST, format_of, sources
from smallvit.runs.places import is_run
from smallvit.text import counted, shown

_IMAGES = (
    "Images, folders of them at any depth, patterns, and - for a list on standard input, one path "
    "per line."
)
_MANY = 3  # images from which a command is shown without their names
_Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
_Trust = Annotated[bool, typer.Option("--trust", help=TRUST)]


@app.command()
def explain(
    run: RunFolder,
    images: Annotated[list[str], typer.Argument(metavar="IMAGES", help=_IMAGES)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the sheets.")] = Path(
        "explained"
    ),
    class_: Annotated[
        str | None,
        typer.Option("--class", help="The class to explain; by default the predicted one."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or mps; auto is a GPU if there is one.")
    ] = "auto",
) -> None:
    """Show where a model looks: attention and gradient maps over each image.

    Writes one PNG per image. Images that cannot be read are named; it is an
    error only if no image can be read.
    """
    from smallvit.explaining.probes import about_field
    from smallvit.explaining.sheets import explain_files
    from smallvit.runs.folder import Run

    _refuse_swapped("explain", str(run), images, is_run)
    opened = Run.open(run)
    if field := about_field(opened.model(), opened.image_size):
        say(field)
    written = 0
    for each in explain_files(opened, images, out, name=class_, device=device):
        if each.error:
            say(f"{shown(each.path)}: {each.error}", err=True)
            continue
        written += 1
        predicted = f"{shown(each.predicted)}, {each.probability:.1%}"
        say(f"{shown(each.path)}: {predicted} → {shown(each.sheet or '')}")
        if each.silent:
            say(f"  {each.silent}")
    if not written:
        raise refusal("no image could be read")


@app.command()
def predict(
    source: Annotated[str, typer.Argument(metavar="RUN|FILE", help=f"What to load: {sources()}.")],
    paths: Annotated[list[str], typer.Argument(metavar="PATHS", help=_IMAGES)],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write a .csv, .json, .jsonl or .parquet file."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many classes to name.")] = 5,
    flip: Annotated[bool, typer.Option(help="Average with the mirror image.")] = False,
    batch_size: Annotated[int, typer.Option(help="Images per forward pass.")] = 32,
    device: _Device = "auto",
    trust: _Trust = False,
) -> None:
    """Name the classes of images, with calibrated probabilities.

    Files that cannot be read become rows with an error. Exits with 1 if there is no other row.
    """
    from smallvit.inference import Predictor, write_rows
    from smallvit.inference import predict as predict_paths
    from smallvit.inference.rows import check_output, line

    if out is not None:
        check_output(out)
    _refuse_swapped("predict", source, paths, _is_model)
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


def _refuse_swapped(
    command: str, source: str, paths: list[str], is_model: Callable[[Path], bool]
) -> None:
    """Refuses images where the model is expected, if one of the images is a model."""
    models = [] if is_model(Path(source)) else [path for path in paths if is_model(Path(path))]
    if not models:
        return
    images = [source, *(path for path in paths if path != models[0])]
    words = ["smallvit", command, models[0], *(images if len(images) < _MANY else ["IMAGES"])]
    raise refusal(
        f"{shown(source)} is not a model, {shown(models[0])} is: the model comes first: "
        f"{shown(shlex.join(words))}"
    )


def _is_model(path: Path) -> bool:
    """Whether `Predictor.open` would find a model there."""
    try:
        return format_of(path) is not None or is_run(path)
    except (ValueError, OSError):  # another file
        return False


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


@app.command()
def serve(
    source: Annotated[str, typer.Argument(metavar="RUN|FILE", help=f"What to serve: {sources()}.")],
    host: Annotated[
        str,
        typer.Option(help="The address to listen on; 0.0.0.0 is every address of this machine."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes any free one.")] = 8000,
    device: _Device = "auto",
    trust: _Trust = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name under which a reverse proxy asks for it, besides this machine's own; "
            "may be repeated."
        ),
    ] = None,
    max_mb: Annotated[float, typer.Option(help="Largest upload in megabytes.")] = 10,
    max_pixels: Annotated[int, typer.Option(help="Largest image in pixels.")] = 50_000_000,
    queue: Annotated[int, typer.Option(help="Images that may wait for the model.")] = 16,
    requests: Annotated[
        int, typer.Option(help="Predictions at once, those being uploaded included.")
    ] = 64,
    seconds: Annotated[float, typer.Option(help="Longest time for one request.")] = 30,
) -> None:
    """Serve a model over HTTP, with a page to try it on.

    POST /predict takes an image; GET /healthz, /metrics and /openapi.json are for
    tools. Stop it with Ctrl+C.
    """
    from smallvit.server import Limits
    from smallvit.server import serve as run_server

    if not math.isfinite(1e6 * max_mb):
        raise refusal(f"--max-mb is {max_mb}: expected is a number of megabytes")
    limits = Limits(
        upload=round(1e6 * max_mb),
        pixels=max_pixels,
        queue=queue,
        requests=requests,
        seconds=seconds,
    )
    run_server(
        source,
        host=host,
        port=port,
        device=device,
        trust=trust,
        allow_hosts=allow_host or (),
        limits=limits,
    )
