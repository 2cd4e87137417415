"""One writer at a time: a file that says who writes a folder."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from smallvit.files import without_links

_LONGEST = 500
"""Bytes of a lock's file."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock while entered; the lock of a process that died is taken over.

    Args:
        path: The file of the lock; it is removed in the end.

    Raises:
        ValueError: Another process holds it.
        OSError: It cannot be written.
    """
    with _taken(path) as file:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        about = {"pid": os.getpid(), "host": socket.gethostname(), "start": now}
        file.truncate(0)
        file.write(json.dumps(about).encode())
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _taken(path: Path) -> IO[bytes]:
    """The lock's file, held by this process alone."""
    while True:
        file = open(path, "a+b", opener=without_links)  # noqa: SIM115 (the caller closes it)
        try:
            if not _flock(file) and _alive(path):
                raise BlockingIOError
            # One that was removed before it was ours keeps nobody out.
            if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        except BlockingIOError as error:
            file.close()
            about = _read(path)
            pid, host, start = (about.get(key) for key in ("pid", "host", "start"))
            who = f" ({pid} on {host} since {start}; see {path})" if about else ""
            raise ValueError(
                f"{path.parent} is in use by another process{who}: wait until it ends"
            ) from error
        file.close()


def _flock(file: IO[bytes]) -> bool:
    """Whether the system locked it; some platforms and file systems cannot."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError):
        return False
    return True


def _alive(path: Path) -> bool:
    """Without the system's locks: whether the process that wrote this one may still be there."""
    about = _read(path)
    if not about:
        return False
    if about.get("host") != socket.gethostname() or os.name == "nt":
        return True
    try:
        os.kill(int(about["pid"]), 0)
    except (ProcessLookupError, KeyError, TypeError, ValueError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True


def held(path: Path) -> bool:
    """Whether a process that may still be there holds a lock; nothing is touched to find out."""
    if not path.is_file() or path.is_symlink() or path.stat().st_size > _LONGEST:
        return False
    return _alive(path)


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        about = json.loads(path.read_bytes())
        if isinstance(about, dict):
            return about
    return {}
