"""What a terminal cannot show, in signs that it can."""

import codecs
import sys
from typing import Any

import typer

from smallvit.text import shown

_SIGNS = {
    "×": "x",
    "…": "...",
    "·": "-",
    "–": "-",
    "−": "-",
    "→": "->",
    "±": "+-",
    "≥": ">=",
    "≤": "<=",
    "λ": "lambda",
    "α": "alpha",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "\u00a0": " ",
}
"""Our own signs; anything else is in names of files and classes, and escaped."""


def adapt_streams() -> None:
    """Lets standard output and error take any text, whatever encoding they have."""
    codecs.register_error("smallvit", _spelled)
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # not in a test that captures them
            reconfigure(errors="smallvit")


def say(text: str, *, err: bool = False) -> None:
    """Prints a line; typer would write UTF-8 where a stream says that it takes ASCII alone."""
    typer.echo(text, file=sys.stderr if err else sys.stdout)


def legible(text: str) -> str:
    """Text as standard output shows it: tables are laid out with it, so that columns stay so.

    Selectors of a sign's form are left out: terminals do not agree on how wide they make it.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    codecs.register_error("smallvit", _spelled)
    plain = text.replace("\ufe0e", "").replace("\ufe0f", "")
    return plain.encode(encoding, "smallvit").decode(encoding)


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_SIGNS.get(sign) or _escaped(sign) for sign in text), error.end


def _escaped(sign: str) -> str:
    text = shown(sign)
    return text if text.isascii() else sign.encode("unicode_escape").decode("ascii")
