"""`smallvit models`."""

from typing import Annotated

import typer

from smallvit.cli.app import app, refusal


@app.command()
def models(
    pattern: Annotated[
        str, typer.Argument(help='Which names, such as "cct*"; "*+*" lists add-ons.')
    ] = "*",
    classes: Annotated[int, typer.Option(help="Classes, for the parameter counts.")] = 10,
) -> None:
    """List the models with their parameters and papers, and the convolutional baselines."""
    from fnmatch import fnmatchcase

    from rich.console import Console
    from rich.table import Table

    from smallvit.models.baselines import BASELINES
    from smallvit.models.build import count_parameters
    from smallvit.models.names import find_variant, list_models

    names = list_models(pattern)
    baselines = [name for name in BASELINES if fnmatchcase(name, pattern)]
    if not names and not baselines:
        raise refusal(f"no model matches {pattern!r}; `smallvit models` lists all")
    table = Table("model", "parameters", "image size", "paper", box=None, pad_edge=False)
    for name in names:
        variant = find_variant(name)
        millions = f"{count_parameters(name, num_classes=classes) / 1e6:.2f} M"
        table.add_row(name, millions, f"{variant.image_size} px", variant.paper)
    for name in baselines:
        millions = f"{count_parameters(name, num_classes=classes) / 1e6:.2f} M"
        table.add_row(name, millions, "any", "a convolutional baseline")
    Console().print(table)
