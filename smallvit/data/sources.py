"""The forms in which people have images: folders, tables, arrays and named datasets.

Importing this imports nothing heavy, so that the command's help can show `HELP`.
"""

import logging
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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


#: A path is read by the first form that matches it.
FORMS = (
    Form(
        "a folder of train.npz, val.npz and test.npz (any of them)",
        lambda path: path.is_dir() and any(split_name(file.stem) for file in path.glob("*.npz")),
        ("arrays", "read_arrays"),
    ),
    Form(
        "a folder of class folders, alone or below train/, val/ and test/ (any of them)",
        Path.is_dir,
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
) -> "Source":
    """Finds the images of a source; see `load_data`.

    Raises:
        ValueError: There is no such source, or it is not laid out as expected.
    """
    from smallvit.data.named import NAMED, default_root, read_named

    path = Path(spec).expanduser()
    if isinstance(spec, str) and spec.partition(":")[0] in NAMED:
        if path.exists():
            logger.warning("%s is read as the dataset of that name; the folder is ./%s", spec, spec)
        folder = default_root() if root is None else Path(root).expanduser()
        return read_named(spec, folder, download=download)
    for form in FORMS:
        if form.matches(path):
            module, reader = form.reader
            source: Source = getattr(import_module(f"smallvit.data.{module}"), reader)(path)
            return source
    problem = (
        f"{shown(path)} is not a source of images: expected is {HELP}"
        if path.exists()
        else f"there is no file, folder or dataset {shown(path)}{nearest(str(spec), NAMED)}"
    )
    raise ValueError(f"{problem}. Datasets by name are {', '.join(NAMED)}")
