"""The forms in which people have images: folders, tables, arrays and named datasets.

Importing this imports nothing heavy, so that the command's help can show `HELP`.
"""

import logging
import os
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from smallvit.files import at_home
from smallvit.text import nearest, shown

if TYPE_CHECKING:
    from smallvit.data.samples import Source

logger = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")
_SPLIT_NAMES = {"training": "train", "valid": "val", "validation": "val", "testing": "test"}


def split_name(text: str) -> str | None:
    """train, val or test for the names people give them; None for any other name."""
    name = text.strip().lower()
    name = _SPLIT_NAMES.get(name, name)
    return name if name in SPLITS else None


def by_split(paths: Iterable[Path], root: Path) -> dict[str, Path]:
    """Files or folders that are called as splits are, by our names; others are left out.

    Raises:
        ValueError: Two are the same split.
    """
    splits: dict[str, Path] = {}
    for path in paths:
        name = split_name(path.name.removesuffix(".npz"))
        if name in splits:
            raise ValueError(
                f"{shown(root)} holds both {splits[name].name} and {path.name}: only one can be "
                f"the {name} split; rename or move the other"
            )
        if name:
            splits[name] = path
    return splits


def split_names(cells: Iterable[str], path: Path) -> list[str]:
    """The split column of a file by our names; "" where a cell is empty."""
    names = []
    for number, cell in enumerate(cells, start=1):
        name = split_name(cell) if cell else ""
        if name is None:
            raise ValueError(
                f"row {number} of {shown(path)} has the split {shown(cell)!r}: allowed are train, "
                "val (or valid), test, or nothing"
            )
        names.append(name)
    return names


class Form(NamedTuple):
    """One form of data.

    Attributes:
        help: What it is, for help and error messages.
        matches: Whether a path has this form.
        reader: The function from a path to a `Source`: its module in this room, and its name.
    """

    help: str
    matches: Callable[[Path], bool]
    reader: tuple[str, str]


def _file(*suffixes: str) -> Callable[[Path], bool]:
    return lambda path: path.is_file() and path.suffix.lower() in suffixes


def _folder(*, of_arrays: bool) -> Callable[[Path], bool]:
    def matches(path: Path) -> bool:
        arrays = any(split_name(file.stem) for file in path.glob("*.npz"))
        return path.is_dir() and arrays == of_arrays

    return matches


FORMS = (
    Form(
        "a folder of class folders, alone or below train/, val/ and test/",
        _folder(of_arrays=False),
        ("folders", "read_folder"),
    ),
    Form(
        "a .csv, .tsv or .parquet table of path, label and optionally split",
        _file(".csv", ".tsv", ".parquet", ".pq"),
        ("tables", "read_table"),
    ),
    Form(
        "an .npz file of uint8 images, labels and optionally split and classes",
        _file(".npz"),
        ("arrays", "read_arrays"),
    ),
    Form(
        "a folder of such files: train.npz, val.npz and test.npz",
        _folder(of_arrays=True),
        ("arrays", "read_arrays"),
    ),
)
HELP = "; ".join([form.help for form in FORMS]) + (
    "; or the name of a public dataset, such as fashion-mini or cifar10 (a folder of that name is "
    "written ./name)"
)


def find(
    spec: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
    unlabelled: bool = False,
) -> "Source":
    """Finds the images of a source; see `load_data`.

    Raises:
        ValueError: There is no such source, or it is not laid out as expected.
    """
    from smallvit.data.named import NAMED, default_root, is_named, read_named

    path = at_home(spec)
    if isinstance(spec, str) and is_named(spec):
        if path.exists():
            logger.warning("%s is read as the dataset of that name; the folder is ./%s", spec, spec)
        folder = default_root() if root is None else at_home(root)
        return read_named(spec, folder, download=download)
    for form in FORMS:
        if form.matches(path):
            module, reader = form.reader
            how = {"unlabelled": True} if unlabelled and reader == "read_folder" else {}
            read = getattr(import_module(f"smallvit.data.{module}"), reader)
            source: Source = read(path, **how)
            return source
    problem = (
        f"{shown(path)} is not a source of images: expected is {HELP}"
        if path.exists()
        else f"there is no file, folder or dataset {shown(path)}{_near(path, NAMED)}"
    )
    end = "" if problem.endswith("?") else "."
    raise ValueError(f"{problem}{end} Datasets by name are {', '.join(NAMED)}")


def _near(path: Path, named: Iterable[str]) -> str:
    """Which name beside a path that does not exist, or of a dataset, may have been meant."""
    try:
        beside = [str(path.parent / each.name) for each in path.parent.iterdir()]
    except OSError:
        beside = []
    return nearest(str(path), [*beside, *named])
