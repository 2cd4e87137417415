"""Decoded images on disk: uint8 files that are mapped into memory, named by their content.

An entry appears under its name only when it is complete. Its space is reserved first, so a full
disk is an error message (writing to a mapped file would end in SIGBUS), and a build that was killed
or ran twice at once leaves no incomplete entry.
"""

import contextlib
import errno
import io
import json
import logging
import math
import os
import re
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import UInt8

from smallvit.files import at_home, writing

logger = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Names that only the cache gives: a hash and an ending, or a file that is being written.
#: The folder may hold a person's own files too.
_OWN = re.compile(r"[0-9a-f]{32}\.(npy|json|lock|npz)(\.\d+-[0-9a-f]{8}\.part)?")

_SUM = "crc32"

#: Inode, bytes and time of the entries that this process opened and found whole.
_opened: dict[str, tuple[int, int, int]] = {}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of the cache.

    Attributes:
        path: Its file.
        size: Its bytes on disk.
        about: Source, split, fit and shape of its images.
    """

    path: Path
    size: int
    about: Mapping[str, Any]


def directory() -> Path:
    """SMALLVIT_CACHE, or the folder smallvit in the user's cache folder."""
    if chosen := os.environ.get("SMALLVIT_CACHE"):
        return at_home(chosen)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "smallvit"


def programs() -> Path:
    """Where programs that were compiled for training are kept between runs."""
    return directory() / "smallvit-compiled-programs"  # a name that nobody else gives


def entries() -> list[Entry]:
    """Every complete entry, newest first."""
    files = [(path.stat().st_mtime, path) for path in _own(directory()) if path.suffix == ".npy"]
    found = []
    for _, path in sorted(files, reverse=True):
        about = _read_about(path)
        about.pop(_SUM, None)
        found.append(Entry(path=path, size=path.stat().st_size, about=about))
    return found


def clear() -> int:
    """Removes everything the cache wrote, and returns the bytes freed.

    Named datasets, links and whatever has another name than the cache gives stay. A process that
    uses an entry keeps it; one that is writing an entry stops with an error.
    """
    freed = 0
    root = directory()
    for path in [*_own(root), *_own(root / "surveys")]:
        freed += path.stat().st_size
        path.unlink(missing_ok=True)
    if not programs().is_symlink():
        freed += sum(path.stat().st_size for path in programs().rglob("*") if path.is_file())
        shutil.rmtree(programs(), ignore_errors=True)
    return freed


def _own(folder: Path) -> list[Path]:
    """The files in a folder that the cache wrote."""
    if not folder.is_dir():
        return []
    files = [path for path in folder.iterdir() if _OWN.fullmatch(path.name)]
    return [path for path in files if path.is_file() and not path.is_symlink()]


def holds(key: str, shape: tuple[int, ...]) -> bool:
    """Whether there is an entry of that key, as far as its name and its size tell."""
    path = directory() / f"{key}.npy"
    return path.is_file() and path.stat().st_size == len(_header(shape)) + math.prod(shape)


def stored(
    key: str,
    shape: tuple[int, ...],
    rows: Callable[[], Iterator[UInt8[np.ndarray, "..."]]],
    about: Mapping[str, Any],
) -> UInt8[np.ndarray, "..."]:
    """The entry of a key as a read-only memory map; built first if it is missing.

    Args:
        key: A hash of everything the pixels depend on.
        shape: The shape of all images together.
        rows: Yields the images one by one.
        about: What the list of entries shows of it.

    Raises:
        OSError: The disk is full or the folder cannot be written.
    """
    path = directory() / f"{key}.npy"
    if (known := _mapped(path, shape)) is not None:
        return known
    if path.is_file():
        logger.warning("%s is damaged: decoding its images again", path)
    with _locked(path) as locked:
        if (known := _mapped(path, shape)) is not None:
            return known
        if locked:  # so a file that is there was left by a build that was killed
            for stale in path.parent.glob(f"{key}.npy.*.part"):
                stale.unlink(missing_ok=True)
        _write(path, shape, rows, about)
    if (known := _mapped(path, shape)) is None:
        raise OSError(f"{path} was removed while it was built: start again")
    return known


def _write(
    path: Path,
    shape: tuple[int, ...],
    rows: Callable[[], Iterator[UInt8[np.ndarray, "..."]]],
    about: Mapping[str, Any],
) -> None:
    started = time.perf_counter()
    checksum = 0
    with open_entry(path, reserve=int(np.prod(shape)) + 128) as file:
        file.write(_header(shape))
        for row in rows():
            data = row.tobytes()
            checksum = zlib.crc32(data, checksum)
            file.write(data)
        file.truncate(file.tell())  # the reservation was rounded up
        with open_entry(path.with_suffix(".json")) as description:
            description.write(json.dumps({**about, "shape": shape, _SUM: checksum}).encode())
    seconds = time.perf_counter() - started
    logger.info("decoded %d images in %.1f s into %s", shape[0], seconds, path)


@contextlib.contextmanager
def open_entry(path: Path, reserve: int = 0) -> Iterator[IO[bytes]]:
    """A file of the cache to write, complete or not at all.

    Args:
        path: Its name.
        reserve: Bytes to reserve before the first is written.

    Raises:
        OSError: There is no space, or the folder cannot be written; says what to do.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path, shared=True) as file:
            _reserve(file, reserve)
            yield file
    except OSError as error:
        if error.errno in _FULL:
            free = shutil.disk_usage(path.parent).free
            raise OSError(
                error.errno,
                f"no space for the decoded images: {reserve / 1e6:,.0f} MB are needed in "
                f"{path.parent} and {free / 1e6:,.0f} MB are free. Set SMALLVIT_CACHE to a folder "
                "on a larger disk, choose a smaller image_size, or remove old entries with "
                "`smallvit cache --clear`",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise OSError(
                error.errno,
                f"the cache folder {path.parent} cannot be written ({error.strerror}): "
                "set SMALLVIT_CACHE to another folder",
            ) from error
        raise


def _reserve(file: IO[bytes], size: int) -> None:
    """Reserves space, so that a full disk is an error at the start and not at the end."""
    if not size:
        return
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:
            if error.errno in _FULL:
                raise
    if shutil.disk_usage(Path(file.name).parent).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Waits for another process that builds the same entry.

    Yields whether there is a lock. Without one (on some file systems and platforms) the work is
    done twice, and entries are complete all the same.
    """
    lock = path.with_suffix(".lock")
    with contextlib.ExitStack() as held:
        locked = False
        try:
            import fcntl

            lock.parent.mkdir(parents=True, exist_ok=True)
            while not locked:
                held.close()  # a file that was removed before it was ours keeps nobody out
                file = held.enter_context(lock.open("wb"))
                fcntl.flock(file, fcntl.LOCK_EX)
                locked = lock.exists() and os.path.samestat(os.fstat(file.fileno()), lock.stat())
            held.callback(lock.unlink, missing_ok=True)
        except (ImportError, OSError):
            pass
        yield locked


def _mapped(path: Path, shape: tuple[int, ...]) -> UInt8[np.ndarray, "..."] | None:
    """An entry, or None if it is missing or damaged."""
    try:
        if path.is_symlink():
            return None
        # The header is known: nothing in the file has to be parsed.
        header, status = _header(shape), path.stat()
        with path.open("rb") as file:
            same = file.read(len(header)) == header
        if not same or status.st_size != len(header) + math.prod(shape):
            return None
        pixels = np.memmap(path, np.uint8, "r", len(header), shape)
    except (OSError, ValueError):
        return None
    identity = (status.st_ino, status.st_size, status.st_mtime_ns)
    opened = str(pixels.filename)  # as `refuse_truncated` finds it: without links, from the root
    if _opened.get(opened) != identity:  # a process reads it all once
        if _read_about(path).get(_SUM) != _checksum(pixels):
            return None
        # A file written just now may be written again without a later time.
        old = time.time_ns() - status.st_mtime_ns > 10**9
        _opened[opened] = (*identity[:2], status.st_mtime_ns if old else -1)
    return pixels


def _header(shape: tuple[int, ...]) -> bytes:
    """How a .npy file of that shape begins."""
    file = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def _checksum(pixels: UInt8[np.ndarray, "..."]) -> int:
    """CRC-32 finds what goes wrong by accident, and is five times as fast as BLAKE2."""
    checksum = 0
    for start in range(0, len(pixels), 1024):
        checksum = zlib.crc32(np.ascontiguousarray(pixels[start : start + 1024]).data, checksum)
    return checksum


def refuse_truncated(pixels: np.ndarray) -> None:
    """Refuses a mapped entry whose file has become shorter: touching it would end the process.

    Raises:
        OSError: It has.
    """
    path = str(getattr(pixels, "filename", None))
    if path not in _opened:
        return
    try:
        status = os.stat(path)
    except OSError:
        return  # removed: the mapping still has it
    inode, size, _ = _opened[path]
    if status.st_ino == inode and status.st_size < size:
        raise OSError(
            f"{path} was shortened while it was in use: something else writes into the cache; "
            "start again, and the images are decoded again"
        )


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.with_suffix(".json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}
