"""Run folders as places: names of their files, which folders are free, and who writes one.

Importing this needs no PyTorch.
"""

import json
import os
import re
import shlex
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from smallvit.files import without_links
from smallvit.text import some

CONFIG, INFO, LOG, LOCK = "config.yaml", "run.json", "log.jsonl", "lock"
WEIGHTS, LAST, EVALUATION, CHECKPOINTS = (
    "weights.safetensors",
    "last.safetensors",
    "evaluation.json",
    "checkpoints",
)

FINAL = "model"
"""The run of a cross-validation that is trained on all images; `Run.open` finds it there."""

NEW = ".new-run-"
"""How the folders of runs that are being made are called; a process that is killed leaves one."""

_LONGEST = 500
"""Bytes of a lock's file."""


class TakenError(ValueError):
    """A folder exists and is not empty."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} exists and nothing in it is overwritten: choose another --out, or go on "
            "with --resume if it is an unfinished run"
        )


def is_run(folder: Path) -> bool:
    """Whether `Run.open` finds a run there: its folder, or that of a cross-validation."""
    return any((path / INFO).is_file() for path in (folder, folder / FINAL))


def runs_near(path: Path) -> str:
    """Names the runs in or beside a folder that is not one."""
    folder = path if path.is_dir() else path.parent
    runs = sorted(item.name for item in folder.glob("*") if is_run(item))
    return f"; in {folder} there are {some(runs, 5)}" if runs else ""


def refuse_taken(folder: Path) -> None:
    """Refuses a folder that exists and is not empty; what a killed process left does not count."""
    if folder.is_dir() and all(path.name.startswith(NEW) for path in folder.iterdir()):
        return
    if folder.exists():
        raise TakenError(folder)


def new_folder(source: str, model: str, root: Path = Path("runs")) -> Path:
    """The first of runs/<data>-<model>-<n> that does not exist."""
    words = [re.sub(r"[^\w.]+", "-", text).strip("-.") or "data" for text in (source, model)]
    stem = "-".join([words[0].removesuffix(".npz").removesuffix(".csv"), words[1]])
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


def resume_command(folder: Path) -> str:
    """What to type to go on with a run."""
    return f"smallvit train --resume --out {shlex.quote(str(folder))}"


def check_writable(folder: Path, need: int = 0) -> None:
    """Refuses a folder that cannot be written to, before any work is done.

    Args:
        need: Bytes that will be written.

    Raises:
        ValueError: The folder is not empty.
        OSError: It cannot be written, or the disk is full.
    """
    refuse_taken(folder)
    existing = folder.resolve()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise OSError(f"{existing} cannot be written to: choose another folder with --out")
    if (free := shutil.disk_usage(existing).free) < need:
        raise OSError(
            f"{existing} has {free / 1e6:,.0f} MB free and this run needs {need / 1e6:,.0f}: make "
            "room, or choose another folder with --out"
        )


def refuse_link(path: Path) -> None:
    """Refuses a link: what is written inside a run folder must stay there."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link, and nothing inside a run folder may be one: remove it")


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
            try:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except (ImportError, OSError):  # some platforms and file systems cannot
                if _alive(path):
                    raise BlockingIOError from None
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
