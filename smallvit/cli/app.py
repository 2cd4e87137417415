"""The application itself, and what its commands share."""

import logging
import shlex
import sys
import time
from typing import Annotated

import typer

import smallvit
from smallvit.cli.terminal import say
from smallvit.cli.threads import Neighbours

#: When the command began, for those whose time is limited.
STARTED = time.monotonic()
#: What others compute since then, for those that compute long.
NEIGHBOURS = Neighbours()

app = typer.Typer(
    help="Vision transformers that learn from small datasets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(requested: bool) -> None:
    if requested:
        say(f"smallvit {smallvit.__version__}")
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


def refusal(sentence: str) -> typer.Exit:
    """Prints what the user got wrong, and returns what to raise."""
    say(f"smallvit: {sentence}", err=True)
    return typer.Exit(2)


def typed() -> str:
    """What was typed, for the record."""
    return shlex.join(["smallvit", *sys.argv[1:]])
