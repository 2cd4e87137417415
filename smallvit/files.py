"""Files that are written whole or not at all, and folders walked in one way."""

import contextlib
import errno
import glob
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

IMAGE_SUFFIXES = frozenset(
    [".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"]
)
UNREAD_SUFFIXES = frozenset([".heic", ".heif", ".avif", ".jxl", ".jp2"])
"""Of images too, but in formats that are not read."""


@contextlib.contextmanager
def writing(path: Path, *, shared: bool = False) -> Iterator[IO[bytes]]:
    """Opens a temporary file beside `path`, forces it to disk and moves it there.

    If the block raises, or the disk is full, `path` stays as it was and the temporary file is
    removed.

    Args:
        path: The file to write; its folder must exist.
        shared: Whether other processes may write the same file at the same time. Each then has a
            temporary file of its own. Otherwise what a killed process left is overwritten.

    Raises:
        OSError: It cannot be written, or something that is no file has its name.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(f"{path} is a device or a pipe, and not replaced by a file: name a file")
    middle = f".{os.getpid()}-{secrets.token_hex(4)}" if shared else ""
    part = path.with_name(f"{path.name}{middle}.part")
    try:
        # A link there would lead the bytes to a file that is not ours.
        with open(part, "xb" if shared else "wb", opener=without_links) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def without_links(path: str, flags: int) -> int:
    """For `open`: raises OSError where the file is a link."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def at_home(path: str | os.PathLike[str]) -> Path:
    """A path with the home folder for ~; ~NAME stays as it is where nobody has that name."""
    return Path(os.path.expanduser(path))


def hash_bytes(data: bytes) -> str:
    """What is recorded of a file, so that a change of it is found."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    with writing(path) as file:
        file.write(data)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes plain data as JSON, whole or not at all."""
    write_bytes(path, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Plain data from a JSON file.

    Raises:
        ValueError: It is not a JSON object.
    """
    return json_object(path.read_bytes(), path)


def json_object(data: bytes, path: Path) -> dict[str, Any]:
    """Plain data from what a JSON file holds; see `read_json`."""
    try:
        plain = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(plain, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object")
    return plain


def check_target(path: Path) -> None:
    """Refuses a file that cannot be written where it is to lie, before any work.

    Raises:
        OSError: It is a folder, or there is no folder for it.
    """
    if path.is_dir() or not path.parent.is_dir():
        state = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise OSError(f"{path} {state}: choose another name")


def tensors_to_bytes(tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a safetensors file; tensors may be on any device and share memory."""
    from safetensors.torch import save

    copies = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    return save(copies, dict(metadata))


def write_tensors(path: Path, tensors: Mapping[str, "Tensor"], **metadata: str) -> None:
    """Writes a safetensors file, whole or not at all."""
    write_bytes(path, tensors_to_bytes(tensors, metadata))


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """All tensors of a safetensors file.

    Raises:
        ValueError: It does not exist, or is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error


class Found(NamedTuple):
    """A path, and why there is no file to open; None where there is one."""

    path: str
    error: OSError | None = None


def is_image(name: str) -> bool:
    """Whether a file is an image by its name."""
    return suffix_of(name) in IMAGE_SUFFIXES


def suffix_of(name: str) -> str:
    """The end of a file's name from its last dot on, in small letters."""
    return os.path.splitext(name)[1].lower()


def listed(folder: str | os.PathLike[str]) -> "list[os.DirEntry[str]]":
    """The entries of a folder by name, but hidden ones and what macOS adds to archives."""
    with os.scandir(folder) as entries:
        visible = [e for e in entries if not e.name.startswith((".", "__MACOSX"))]
    return sorted(visible, key=attrgetter("name"))


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is a folder or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def walk(
    folder: str | os.PathLike[str], above: Iterable[str | os.PathLike[str]] = ()
) -> Iterator[Found]:
    """Every visible file at any depth, links followed, each folder in order of names.

    A folder that cannot be listed is yielded with its error. So is a link back to a folder above
    it, which is not followed: its error has `errno.ELOOP`.

    Args:
        folder: Where to begin.
        above: Further folders that links must not lead back to.
    """
    above = tuple(above)
    try:
        if any(os.path.samefile(folder, each) for each in above):
            raise OSError(errno.ELOOP, "it is a link back to a folder above it")
        entries = listed(folder)
    except OSError as error:
        yield Found(os.fspath(folder), error)
        return
    for entry in entries:
        if is_folder(entry):
            yield from walk(entry.path, (*above, folder))
        else:
            yield Found(entry.path)


def images_in(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> Iterator[Found]:
    """The image files that paths stand for, one by one: what `predict` and `explain` take.

    A folder stands for the files in it, at any depth, that are images by their names, those of
    formats that are not read included, so that none is passed over in silence; a pattern
    such as "photos/**/*.jpg" for the files that match it, sorted; "-" for the paths on standard
    input, one per line; anything else for itself, whether it exists or not. What stands for
    nothing is yielded with an error whose `strerror` is the rest of "PATH: …".
    """
    for each in [paths] if isinstance(paths, str | os.PathLike) else paths:
        path, nothing = os.fspath(each), ""
        files: Iterator[Found] = iter([Found(path)])
        if path == "-":  # names of files need not be text
            names = (os.fsdecode(line).rstrip("\r\n") for line in sys.stdin.buffer)
            files = (Found(name) for name in names if name)
        elif os.path.isdir(path):
            files, nothing = _images_below(path), "it holds no images"
        elif glob.has_magic(path) and not os.path.lexists(path):
            matches = sorted(glob.glob(path, recursive=True))
            files = (Found(match) for match in matches if not os.path.isdir(match))
            nothing = "no file matches this pattern"
        empty = True
        for file in files:
            empty = False
            yield file
        if empty and nothing:
            yield Found(path, OSError(errno.ENOENT, nothing))


def _images_below(folder: str) -> Iterator[Found]:
    for file in walk(folder):
        if file.error is None:
            if is_image(file.path) or suffix_of(file.path) in UNREAD_SUFFIXES:
                yield file
        elif file.error.errno != errno.ELOOP:
            reason = f"it cannot be listed: {file.error.strerror}"
            yield Found(file.path, OSError(file.error.errno, reason))
