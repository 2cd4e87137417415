"""`smallvit explain`."""

from pathlib import Path
from typing import Annotated

import typer

from smallvit.cli.app import app, refusal


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES…", help="Images, or folders of images.")
    ],
    out: Annotated[Path, typer.Option(help="The folder for the sheets.")] = Path("explained"),
    class_: Annotated[
        str | None,
        typer.Option("--class", help="The class to speak for; by default the predicted one."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or mps; auto is a GPU if there is one.")
    ] = "auto",
) -> None:
    """Show where a model looks: attention and class evidence, laid over each image.

    Writes a PNG for each image. Images that cannot be read are named; it is an
    error only if there is no other.
    """
    from smallvit.explaining.probes import receptive_field
    from smallvit.explaining.sheets import explain_files
    from smallvit.runs.folder import Run
    from smallvit.text import shown

    opened = Run.open(run)
    side, (height, width) = receptive_field(opened.model()), opened.image_size
    if side is not None:
        typer.echo(f"a token sees {side}×{side} of {height}×{width} pixels before any attention")
    some = False
    for each in explain_files(opened, images, out, name=class_, device=device):
        if each.error:
            typer.echo(f"{shown(each.path)}: {each.error}", err=True)
            continue
        some = True
        answer = f"{shown(each.answer)}, {each.probability:.1%}"
        typer.echo(f"{shown(each.path)}: {answer} → {shown(each.sheet or '')}")
    if not some:
        raise refusal("no image could be read")
