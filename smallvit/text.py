"""How names, lists and counts are worded."""

import difflib
import os
from collections.abc import Iterable


def shown(name: str | os.PathLike[str]) -> str:
    """A name as text that any terminal, page or file can take.

    Names may contain anything: bytes that are not UTF-8 and control characters are escaped.
    """
    text = os.fspath(name)
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else _escape(c) for c in text)
    return "".join(escaped)


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # one byte that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def some(names: Iterable[str | os.PathLike[str]], limit: int = 3) -> str:
    """The first few names of a list, and how many more there are."""
    listed = [shown(name) for name in names]
    more = f" and {len(listed) - limit:,} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more


def counted(count: float, one: str, more: str | None = None) -> str:
    """A number with its noun: 1 image, 2 images, 1.5 minutes."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:,g}"
    return f"{number} {one if count == 1 else more or one + 's'}"


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown word: "; did you mean 'x'?", or nothing.

    Args:
        word: What was written.
        known: What could have been meant.
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
