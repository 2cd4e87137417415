"""`smallvit explain`."""

from pathlib import Path
from typing import Annotated

import typer

from smallvit.cli.app import app, refusal
from smallvit.cli.evaluating import RunFolder
from smallvit.cli.terminal import say


@app.command()
def explain(
    run: RunFolder,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES",
            help="Images, folders of them at any depth, patterns, and - for a list on standard "
            "input, one path per line.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder for the sheets.")] = Path("explained"),
    class_: Annotated[
        str | None,
        typer.Option("--class", help="The class to explain; by default the predicted one."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or mps; auto is a GPU if there is one.")
    ] = "auto",
) -> None:
    """Show where a model looks: attention and gradient maps over each image.

    Writes one PNG per image. Images that cannot be read are named; it is an error only if no image
    can be read.
    """
    from smallvit.explaining.probes import about_field
    from smallvit.explaining.sheets import explain_files
    from smallvit.runs.folder import Run
    from smallvit.text import shown

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
