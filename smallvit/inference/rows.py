r"""Rows of predictions to files: CSV, JSON, JSON lines, Parquet. `COLUMNS` says what a row holds.

A file gets its name when it is complete. Bytes of a path that are not UTF-8 are written as \xNN.

Spreadsheets take cells that begin with =, +, - or @ for formulas, and names of files come from
strangers. So in CSV a path that begins so is written with "./" in front, which is the same file,
and other text that begins so and is not a number with an apostrophe. The other formats keep both
as they are.
"""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import IO, Annotated, Any

from smallvit.arguments import Between, checked
from smallvit.extras import require
from smallvit.files import check_target, writing
from smallvit.inference.predictor import Row
from smallvit.text import shown

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_GROUP = 10_000
_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the output.

    Attributes:
        name: In CSV and Parquet a ranked column is NAME_1, NAME_2, …; in JSON it is a key of each
            of the `predictions`.
        type: Of its values.
        value: A row's value, or None; of a ranked column one value per predicted class.
        ranked: Whether there is one value per predicted class.
        text: A value as the terminal shows it.
        guard: What CSV puts before text that a spreadsheet would take for a formula.
    """

    name: str
    type: type[str | float | int]
    value: Callable[[Row], Any]
    ranked: bool = False
    text: Callable[[Any], str] = str
    guard: str = "'"


COLUMNS = [
    Column(
        name="path",
        type=str,
        value=lambda row: os.fsencode(row.path).decode("utf-8", "backslashreplace"),
        guard="./",
    ),
    Column(name="error", type=str, value=lambda row: row.error or None, text="error: {}".format),
    Column(name="class", type=str, value=attrgetter("classes"), ranked=True),
    Column(
        name="probability",
        type=float,
        value=attrgetter("probabilities"),
        ranked=True,
        text=lambda probability: f"{100 * probability:.1f} %",
    ),
]
"""What a row of predictions holds, in every format and on the terminal."""


def _nested(row: Row, digits: int | None = None) -> dict[str, Any]:
    """A row as JSON has it, its numbers rounded if `digits` says so."""

    def plain(value: Any) -> Any:
        return round(value, digits) if digits and isinstance(value, float) else value

    single = {column.name: plain(column.value(row)) for column in COLUMNS if not column.ranked}
    ranked = {column.name: map(plain, column.value(row)) for column in COLUMNS if column.ranked}
    ranks = zip(*ranked.values(), strict=True)
    return single | {"predictions": [dict(zip(ranked, rank, strict=True)) for rank in ranks]}


def _flat(row: Row) -> dict[str, Any]:
    """A row as a table has it; ranks that it does not have are left out."""
    values = _nested(row)
    for rank, prediction in enumerate(values.pop("predictions"), 1):
        values |= {f"{name}_{rank}": value for name, value in prediction.items()}
    return values


def _flat_columns(top: int) -> dict[str, Column]:
    """The columns of a table, by their names there."""
    ranked = [column for column in COLUMNS if column.ranked]
    return {column.name: column for column in COLUMNS if not column.ranked} | {
        f"{column.name}_{rank}": column for rank in range(1, top + 1) for column in ranked
    }


def line(row: Row) -> str:
    """A row as the terminal shows it: tabs between columns, spaces within a prediction."""
    texts = {column.name: column.text for column in COLUMNS}
    values = _nested(row)
    predictions = values.pop("predictions")
    cells = [{name: value} for name, value in values.items() if value is not None] + predictions
    return "\t".join(
        " ".join(shown(texts[name](value)) for name, value in cell.items()) for cell in cells
    )


def check_output(path: Path) -> None:
    """Refuses a file whose format is not known, or that cannot be written, before any work.

    Raises:
        ValueError: The name ends with no known suffix.
        OSError: There is no such folder.
        ImportError: Parquet needs a package that is not installed.
    """
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"{path} has no known format: name it {', '.join(WRITERS)}")
    check_target(path)
    if path.suffix.lower() == ".parquet":
        _arrow("pyarrow.parquet")


@checked
def write_rows(
    rows: Iterable[Row],
    path: str | os.PathLike[str],
    *,
    top: Annotated[int, Between(1, 1_000_000)],
) -> tuple[int, int]:
    """Writes rows as they come, in the format that the name says.

    CSV and Parquet have the columns path, error, class_1, probability_1, class_2 and so on; JSON is
    an array with one object per line, JSON lines the objects alone.

    Args:
        rows: Of `predict`.
        path: A name that ends with .csv, .json, .jsonl or .parquet.
        top: How many classes a row has.

    Returns:
        How many rows there were, and how many of them have errors.
    """
    path = Path(path)
    check_output(path)
    count = failed = 0

    def counted() -> Iterator[Row]:
        nonlocal count, failed
        for row in rows:
            count, failed = count + 1, failed + bool(row.error)
            yield row

    with writing(path, shared=True) as file:
        WRITERS[path.suffix.lower()](file, counted(), top)
    return count, failed


def _write_csv(file: IO[bytes], rows: Iterator[Row], top: int) -> None:
    columns = _flat_columns(top)
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    # A bare carriage return begins a row for many readers, and csv does not quote it.
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for row in rows:
        values = _flat(row)
        cells = [_cell(values.get(name), column) for name, column in columns.items()]
        (quoted if any("\r" in cell for cell in cells) else writer).writerow(cells)
    text.flush()
    text.detach()  # the file is closed by whoever opened it


def _cell(value: Any, column: Column) -> str:
    if isinstance(value, float):
        return f"{value:.{_DIGITS}f}"
    text = "" if value is None else str(value)
    harmless = column.guard == "'" and _is_number(text)
    return column.guard + text if text.startswith(_FORMULA) and not harmless else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _object(row: Row) -> bytes:
    return json.dumps(_nested(row, _DIGITS), ensure_ascii=False).encode()


def _write_json(file: IO[bytes], rows: Iterator[Row], top: int) -> None:
    file.write(b"[")
    for number, row in enumerate(rows):
        file.write((b",\n" if number else b"\n") + _object(row))
    file.write(b"\n]\n")


def _write_lines(file: IO[bytes], rows: Iterator[Row], top: int) -> None:
    for row in rows:
        file.write(_object(row) + b"\n")


def _write_parquet(file: IO[bytes], rows: Iterator[Row], top: int) -> None:
    arrow, parquet = _arrow("pyarrow"), _arrow("pyarrow.parquet")
    types = {str: arrow.string(), float: arrow.float32(), int: arrow.int64()}
    schema = arrow.schema({name: types[c.type] for name, c in _flat_columns(top).items()})
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(rows, _GROUP)):
            writer.write_table(arrow.Table.from_pylist([_flat(row) for row in group], schema))


def _arrow(module: str) -> Any:
    return require(module, "parquet", "writing Parquet")


WRITERS: dict[str, Callable[[IO[bytes], Iterator[Row], int], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".jsonl": _write_lines,
    ".parquet": _write_parquet,
}
"""By the suffix of a file's name."""
