"""The command line: thin; it parses, calls and prints."""

import logging
from typing import Annotated

import typer

import smallvit

app = typer.Typer(
    help="Vision transformers that learn from small datasets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"smallvit {smallvit.__version__}")
        raise typer.Exit


@app.callback()
def options(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Vision transformers that learn from small datasets."""
    level = logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("smallvit").setLevel(level)


@app.command()
def models(
    pattern: Annotated[
        str, typer.Argument(help='Which names, such as "cct*"; "*+*" lists add-ons.')
    ] = "*",
    classes: Annotated[int, typer.Option(help="Classes, for the parameter counts.")] = 10,
) -> None:
    """List the models with their parameters and papers."""
    from rich.console import Console
    from rich.table import Table

    from smallvit.models.registry import count_parameters, list_models, parse_name

    names = list_models(pattern)
    if not names:
        raise _refusal(f"no model matches {pattern!r}; `smallvit models` lists all")
    table = Table("model", "parameters", "image size", "paper", box=None, pad_edge=False)
    for name in names:
        variant, _ = parse_name(name)
        millions = f"{count_parameters(name, num_classes=classes) / 1e6:.2f} M"
        table.add_row(name, millions, f"{variant.image_size} px", variant.paper)
    Console().print(table)


def _refusal(sentence: str) -> typer.Exit:
    typer.echo(f"smallvit: {sentence}", err=True)
    return typer.Exit(2)


def main() -> None:
    """Runs the command line; what the user got wrong is a sentence, not a traceback."""
    try:
        app()
    except (ValueError, OSError) as error:
        raise SystemExit(_refusal(str(error)).exit_code) from error


if __name__ == "__main__":
    main()
