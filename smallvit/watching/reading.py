"""Files of folders that may be damaged or a stranger's: no links, nothing that is too large."""

import math
import stat
from pathlib import Path
from typing import Any

from smallvit.files import json_object, without_links
from smallvit.runs.reading import log_line
from smallvit.text import shown

Line = dict[str, Any]

MOST_STEPS = 10**12
_LOG_BYTES = 8_000_000


def is_plain_file(path: Path) -> bool:
    """Whether it is a file and no link, pipe or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a file.

    Raises:
        ValueError: It is a link or no file, is larger than that, or cannot be read.
    """
    if not is_plain_file(path):
        raise ValueError(f"{path} is damaged: it is a link, or no file")
    try:
        with open(path, "rb", opener=without_links) as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise ValueError(f"{path} has more than {most:,} bytes, and is not shown")
    return data


def read_object(path: Path, most: int) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ValueError: It is damaged, or cannot be read.
    """
    return json_object(read_plain(path, most), path)


def read_log(path: Path) -> tuple[list[Line], str]:
    """The whole lines of a log up to a damaged one, and what is wrong with that."""
    lines: list[Line] = []
    try:
        # A line without its end is being written.
        *whole, _ = read_plain(path, _LOG_BYTES).decode("utf-8", "backslashreplace").split("\n")
        for number, text in enumerate(whole, 1):
            line = log_line(text, f"line {number} of {path}")
            if not 0 <= line["step"] <= MOST_STEPS:
                raise ValueError(f"line {number} of {path} is damaged: no run has such a step")
            lines.append(line)
    except ValueError as error:
        return lines, shown(str(error))[:500]
    return lines, ""


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of more than 300 digits
        return None
