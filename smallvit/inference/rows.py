r"""Rows of predictions to files, as they come: CSV, JSON, JSON lines, Parquet.

A file is written beside its place and moved there when it is whole. Bytes of a path that are no
UTF-8 are written as \xNN.

Spreadsheets take cells that begin with =, +, - or @ for formulas, and names of files come from
strangers. So in CSV a path that begins so is written with "./" in front, which is the same file,
and a class name that begins so and is no number with an apostrophe. The other formats keep both as
they are.
"""

import csv
import io
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any

from smallvit.extras import require
from smallvit.inference.predicting import Row

SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_GROUP = 10_000


def check_output(path: Path) -> None:
    """Refuses a file whose form is not known, or that cannot be written; to be asked first.

    Raises:
        ValueError: The name says no format.
        OSError: There is no such folder.
        ImportError: Parquet needs a package that is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} has no known format: name it {', '.join(SUFFIXES)}")
    if path.is_dir() or not path.parent.is_dir():
        state = "is a folder" if path.is_dir() else "lies in a folder that is not there"
        raise OSError(f"{path} {state}: choose another name")
    if path.suffix.lower() == ".parquet":
        require("pyarrow.parquet", "parquet", "writing Parquet")


def write_rows(rows: Iterable[Row], path: str | os.PathLike[str], *, top: int) -> tuple[int, int]:
    """Writes rows as they come, in the format that the name says.

    CSV and Parquet have the columns path, error, class_1, probability_1, class_2 and so on; JSON is
    an array with an object a line, JSON lines the objects alone.

    Args:
        rows: Of `predict`.
        path: A name that ends with .csv, .json, .jsonl or .parquet.
        top: How many classes a row has.

    Returns:
        How many rows there were, and how many of them have errors.
    """
    path = Path(path)
    check_output(path)
    kind = path.suffix.lower()
    count = failed = 0

    def counted() -> Iterator[Row]:
        nonlocal count, failed
        for row in rows:
            count, failed = count + 1, failed + bool(row.error)
            yield row

    with _whole(path) as file:
        _WRITERS[kind](file, counted(), top)
    return count, failed


@contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when it is whole."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _text(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _write_csv(file: IO[bytes], rows: Iterator[Row], top: int) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_columns(top))
    for row in rows:
        path = _text(row.path)
        cells: list[Any] = [f"./{path}" if path.startswith(_FORMULA) else path, row.error]
        for name, share in zip(row.classes, row.probabilities, strict=True):
            risky = name.startswith(_FORMULA) and not _is_number(name)
            cells += [f"'{name}" if risky else name, f"{share:.6f}"]
        writer.writerow(cells + [""] * (2 + 2 * top - len(cells)))
    text.flush()
    text.detach()  # the file is closed by whoever opened it


def _columns(top: int) -> list[str]:
    pairs = ((f"class_{k}", f"probability_{k}") for k in range(1, top + 1))
    return ["path", "error", *(name for pair in pairs for name in pair)]


def _object(row: Row) -> bytes:
    answers = zip(row.classes, row.probabilities, strict=True)
    plain = {
        "path": _text(row.path),
        "error": row.error or None,
        "predictions": [{"class": name, "probability": round(p, 6)} for name, p in answers],
    }
    return json.dumps(plain, ensure_ascii=False).encode()


def _write_json(file: IO[bytes], rows: Iterator[Row], top: int) -> None:
    file.write(b"[")
    for number, row in enumerate(rows):
        file.write((b",\n" if number else b"\n") + _object(row))
    file.write(b"\n]\n")


def _write_lines(file: IO[bytes], rows: Iterator[Row], top: int) -> None:
    for row in rows:
        file.write(_object(row) + b"\n")


def _write_parquet(file: IO[bytes], rows: Iterator[Row], top: int) -> None:
    arrow, parquet = (
        require(name, "parquet", "writing Parquet") for name in ("pyarrow", "pyarrow.parquet")
    )
    types = [
        arrow.float32() if name.startswith("p") and "_" in name else arrow.string()
        for name in _columns(top)
    ]
    schema = arrow.schema(list(zip(_columns(top), types, strict=True)))
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(rows, _GROUP)):
            writer.write_table(arrow.Table.from_pylist([_record(row) for row in group], schema))


def _record(row: Row) -> dict[str, Any]:
    record: dict[str, Any] = {"path": _text(row.path), "error": row.error or None}
    for k, (name, share) in enumerate(zip(row.classes, row.probabilities, strict=True), 1):
        record |= {f"class_{k}": name, f"probability_{k}": share}
    return record


_WRITERS: dict[str, Callable[[IO[bytes], Iterator[Row], int], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".jsonl": _write_lines,
    ".parquet": _write_parquet,
}
