"""The application itself, and what its commands share."""

import logging
from typing import Annotated

import typer

import smallvit
from smallvit.data.sources import HELP

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


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help=f"{HELP[0].upper()}{HELP[1:]}.",
    ),
]


def refusal(sentence: str) -> typer.Exit:
    """Says what the user got wrong; to be raised."""
    typer.echo(f"smallvit: {sentence}", err=True)
    return typer.Exit(2)
