"""From what people have to a list of images: folders, tables, arrays and names."""

import difflib
import logging
import os
from pathlib import Path

from smallvit.data.arrays import read_arrays, split_files
from smallvit.data.folders import read_folder
from smallvit.data.named import NAMED, default_root, is_name, read_named
from smallvit.data.samples import Found
from smallvit.data.tables import read_table
from smallvit.text import shown

logger = logging.getLogger(__name__)


def find(
    spec: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
) -> Found:
    """Finds the images of a source; see `load_data`.

    Raises:
        ValueError: There is no such source, or it is not laid out as expected.
    """
    path = Path(spec).expanduser()
    if isinstance(spec, str) and is_name(spec):
        if path.exists():
            logger.warning("%s is read as the dataset of that name; the folder is ./%s", spec, spec)
        below = default_root() if root is None else Path(root).expanduser()
        return read_named(spec, below, download=download)
    if path.is_dir():
        return read_arrays(path) if split_files(path) else read_folder(path)
    if not path.exists():
        near = difflib.get_close_matches(str(spec), NAMED, n=2, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else f"names are {', '.join(NAMED)}"
        raise ValueError(f"there is no file, folder or dataset {shown(path)}; {hint}")
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_arrays(path)
    if suffix in (".csv", ".tsv", ".parquet", ".pq"):
        return read_table(path)
    raise ValueError(
        f"{shown(path)} is no source of images: expected a folder, a .csv, .parquet or .npz "
        f"file, or one of the names {', '.join(NAMED)}"
    )
