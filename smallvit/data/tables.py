"""CSV and Parquet tables of (path, label[, split])."""

import csv
import math
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from smallvit.data.samples import Source
from smallvit.data.sources import split_names
from smallvit.extras import require
from smallvit.text import counted, shown, some

Column = tuple[str, Sequence[Any]]
"""A name and the cells below it."""

_COLUMNS = "expected are the columns path, label and optionally split"


def read_table(path: Path) -> Source:
    """Reads a table; relative paths start at the table's folder."""
    named = _parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _csv(path)
    names, columns = [name for name, _ in named], dict(named)
    for name in ("path", "label", "split"):
        if names.count(name) > 1:
            raise ValueError(f"{shown(path)} has several columns called {name}: keep one of them")
    missing = [name for name in ("path", "label") if name not in columns]
    if missing:
        raise ValueError(
            f"{shown(path)} has no column {' and no column '.join(missing)}, but "
            f"{some(columns, 6) or 'none at all'}: {_COLUMNS}"
        )
    if not columns["path"]:
        raise ValueError(f"{shown(path)} has no rows: {_COLUMNS}, and one row per image")
    files = [_text(value) for value in columns["path"]]
    labels = [_text(value) for value in columns["label"]]
    _refuse_blank(path, "path", files)
    _refuse_blank(path, "label", labels)
    for number, file in enumerate(files, start=1):
        _refuse_null(file, f"row {number} of {shown(path)}, counted from 1 below the header,")
    images = tuple(path.parent / file for file in files)
    if not any(map(os.path.exists, images)):
        odd = os.sep == "/" and "\\" in files[0]
        raise ValueError(
            f"none of the {len(images):,} files of {shown(path)} exists, beginning with "
            f"{shown(images[0])}: relative paths start at the folder of the table"
            + (", and folders are separated by / here" if odd else "")
        )
    return Source(
        images=images,
        names=files,
        labels=[shown(label) for label in labels],
        splits=split_names(map(_text, columns.get("split", [""] * len(images))), path),
    )


def _csv(path: Path) -> list[Column]:
    # surrogateescape: a path that is not UTF-8 reaches the file system as it was written.
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        header = file.readline()
        _refuse_null(header, f"the header of {shown(path)}")
        separator = max(",;\t", key=header.count)
        reader = csv.reader(chain([header], file), delimiter=separator, skipinitialspace=True)
        try:
            cells, *rows = [row for row in reader if row] or [[]]
        except csv.Error as error:
            raise ValueError(
                f"line {reader.line_num} of {shown(path)} cannot be read: {error}; is a "
                "closing quote missing?"
            ) from error
    names = [cell.strip().lower() for cell in cells]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            todo = (
                "put quotes around a field that contains the separator"
                if len(row) > len(names)
                else "fill in what is missing"
            )
            raise ValueError(
                f"row {number} of {shown(path)}, counted from 1 below the header, has "
                f"{counted(len(row), 'field')} and the header {len(names)}: {todo}"
            )
    return [(name, [row[i] for row in rows]) for i, name in enumerate(names)]


def _parquet(path: Path) -> list[Column]:
    parquet = require("pyarrow.parquet", "parquet", "reading Parquet")
    arrow = require("pyarrow", "parquet", "reading Parquet")
    try:
        table = parquet.ParquetFile(path).read()
        columns = zip(table.column_names, table.columns, strict=True)
        return [(name.strip().lower(), column.to_pylist()) for name, column in columns]
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{shown(path)} cannot be read as Parquet: {error}") from error


def _text(value: Any) -> str:
    """A cell as text, bytes taken for UTF-8; empty and "not a number" become ""."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bytes):
        value = os.fsdecode(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return "" if text.lower() == "nan" else text


def _refuse_null(text: str, title: str) -> None:
    if "\0" in text:
        raise ValueError(f"{title} has a NUL byte: if it is saved as UTF-16, save it as UTF-8")


def _refuse_blank(path: Path, column: str, cells: Sequence[str]) -> None:
    blank = [str(number) for number, cell in enumerate(cells, start=1) if not cell]
    if blank:
        raise ValueError(
            f"{counted(len(blank), 'row has', 'rows have')} no {column} (empty or NaN) in "
            f"{shown(path)}: row {some(blank)}, counted from 1 below the header; fill them in or "
            "remove them"
        )
