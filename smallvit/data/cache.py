"""Decoded images on disk: uint8 files that are mapped into memory, found by their content.

An entry appears under its name only when it is whole: it is written beside it with ordinary writes
into space reserved first, flushed, and renamed. So a full disk is an error with a sentence (a
mapping written to would end in SIGBUS), and a build that was killed or ran twice at once leaves no
half entry to be read.
"""

import errno
import json
import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import UInt8

logger = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of the cache.

    Attributes:
        path: Its file.
        size: Its bytes on disk.
        about: What it was made from.
    """

    path: Path
    size: int
    about: Mapping[str, Any]


def directory() -> Path:
    """SMALLVIT_CACHE, or smallvit's place in the user's cache folder."""
    if chosen := os.environ.get("SMALLVIT_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "smallvit"


def entries() -> list[Entry]:
    """Every entry that is whole, newest first."""
    found = [(path.stat().st_mtime, path) for path in directory().glob("*.npy")]
    return [
        Entry(path=path, size=path.stat().st_size, about=_about(path))
        for _, path in sorted(found, reverse=True)
    ]


def clear() -> int:
    """Removes everything the cache wrote, and returns the bytes freed; named datasets stay.

    A process that has an entry mapped keeps its pages; one that is writing an entry is told.
    """
    freed = 0
    root = directory()
    for pattern in ("*.npy", "*.json", "*.part", "*.lock", "surveys/*.npz", "surveys/*.part"):
        for path in root.glob(pattern):
            freed += path.stat().st_size
            path.unlink(missing_ok=True)
    return freed


def stored(
    key: str,
    shape: tuple[int, ...],
    rows: Callable[[], Iterator[UInt8[np.ndarray, "..."]]],
    about: Mapping[str, Any],
) -> UInt8[np.ndarray, "..."]:
    """The entry of a key as a read-only mapping; made first if it is not there.

    Args:
        key: A hash of everything the pixels depend on.
        shape: Of the whole entry.
        rows: Makes the images one after the other.
        about: What to tell of it in the list of entries.

    Raises:
        OSError: The disk is full or the folder cannot be written.
    """
    path = directory() / f"{key}.npy"
    if (known := _mapped(path, shape)) is not None:
        return known
    with _locked(path) as locked:
        if (known := _mapped(path, shape)) is not None:
            return known
        if locked:  # what lies there was left by a build that died
            for stale in path.parent.glob(f"{key}.npy.*.part"):
                stale.unlink(missing_ok=True)
        _write(path, shape, rows, about)
    if (known := _mapped(path, shape)) is None:
        raise OSError(f"{path} was removed while it was made: start again")
    return known


def _write(
    path: Path,
    shape: tuple[int, ...],
    rows: Callable[[], Iterator[UInt8[np.ndarray, "..."]]],
    about: Mapping[str, Any],
) -> None:
    started = time.perf_counter()
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    with atomic(path, reserve=int(np.prod(shape)) + 128) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for row in rows():
            file.write(row.tobytes())
        # The reservation was rounded up.
        file.truncate(file.tell())
        with atomic(path.with_suffix(".json")) as notes:
            notes.write(json.dumps({**about, "shape": shape}).encode())
    seconds = time.perf_counter() - started
    logger.info("decoded %d images in %.1f s into %s", shape[0], seconds, path)


@contextmanager
def atomic(path: Path, reserve: int = 0) -> Iterator[IO[bytes]]:
    """A file to write that takes its name when it is whole, and else never was.

    Args:
        path: The name.
        reserve: Bytes to set aside before the first is written.

    Raises:
        OSError: There is no space, or the folder cannot be written; says what to do.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("xb") as file:
            _reserve(file, reserve)
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        if error.errno in _FULL:
            raise OSError(error.errno, _full(path.parent, reserve)) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise OSError(
                error.errno,
                f"the cache folder {path.parent} cannot be written ({error.strerror}): "
                "set SMALLVIT_CACHE to a folder that can",
            ) from error
        raise
    finally:
        if part.exists():
            part.unlink(missing_ok=True)


def _reserve(file: IO[bytes], size: int) -> None:
    """Sets space aside, or finds now rather than at the end that there is none."""
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


def _full(folder: Path, needed: int) -> str:
    free = shutil.disk_usage(folder).free
    return (
        f"no space for the decoded images: {needed / 1e6:,.0f} MB are needed in {folder} and "
        f"{free / 1e6:,.0f} MB are free. Set SMALLVIT_CACHE to a folder on a larger disk, choose "
        "a smaller image_size, or remove old entries with `smallvit cache --clear`"
    )


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Waits for another process that makes the same entry.

    Yields whether the lock was to be had: file systems and platforms without locks only do the
    work twice, for the renaming keeps entries whole.
    """
    lock = path.with_suffix(".lock")
    file = _lock(lock)
    try:
        yield file is not None
    finally:
        if file is not None:
            lock.unlink(missing_ok=True)
            file.close()


def _lock(path: Path) -> IO[bytes] | None:
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        file.close()
        return None
    return file


def _mapped(path: Path, shape: tuple[int, ...]) -> UInt8[np.ndarray, "..."] | None:
    """An entry, or None where it is missing or was damaged from outside."""
    try:
        pixels: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return pixels if pixels.shape == shape and pixels.dtype == np.uint8 else None


def _about(path: Path) -> Mapping[str, Any]:
    try:
        about: Mapping[str, Any] = json.loads(path.with_suffix(".json").read_bytes())
    except (OSError, ValueError):
        return {}
    return about
