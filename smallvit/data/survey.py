"""A first pass over all images: digest, size, channels and a thumbnail of each.

Splits, audit and cache need nothing else. A survey of files is one pass in threads, and is kept in
the cache folder for as long as no file changes.
"""

import hashlib
import logging
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Bool, Int64, UInt8
from PIL import __version__ as pillow

from smallvit.data import cache
from smallvit.data.images import THUMB, Glance, UnreadableError, glance, read_bytes
from smallvit.data.parallel import spread
from smallvit.text import counted

logger = logging.getLogger(__name__)

DIGEST = 16
_TOGETHER = 2**23  # pixels that are surveyed at a time
_VERSION = 2
_DAMAGE = (
    *(OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error),
    *(RuntimeError, MemoryError),  # encrypted or unknown methods, nesting, and sizes beyond reason
)
_SETTLED_NS = 2_000_000_000  # two changes of a file within less may give it one time stamp


@dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """What is known of each image.

    Attributes:
        digests: Hash of the file's bytes, or of the pixels where there is no file.
        sizes: Height and width, upright; zeros where unreadable.
        channels: 1, 3 or more; 0 where unreadable.
        animated: Whether there are further frames or pages.
        contrast: Largest minus smallest grey value of a small copy.
        thumbs: Small grey copies.
        errors: Why an image cannot be read, by its index.
    """

    digests: UInt8[np.ndarray, "N digest"]
    sizes: Int64[np.ndarray, "N 2"]
    channels: Int64[np.ndarray, " N"]
    animated: Bool[np.ndarray, " N"]
    contrast: Int64[np.ndarray, " N"]
    thumbs: UInt8[np.ndarray, "N T T"]
    errors: Mapping[int, str]

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def readable(self) -> Bool[np.ndarray, " N"]:
        """Which images can be read."""
        mask = np.ones(len(self), bool)
        mask[list(self.errors)] = False
        return mask

    def select(self, indices: Int64[np.ndarray, " n"]) -> "Survey":
        """The rows of some images, in the order of `indices`."""
        return type(self)(
            **{name: getattr(self, name)[indices] for name in _COLUMNS},
            errors={
                new: self.errors[old]
                for new, old in enumerate(indices.tolist())
                if old in self.errors
            },
        )


def joined(surveys: Sequence[Survey]) -> Survey:
    """Several surveys as one."""
    starts = np.cumsum([0, *(len(survey) for survey in surveys)]).tolist()
    return Survey(
        **{name: np.concatenate([getattr(s, name) for s in surveys]) for name in _COLUMNS},
        errors={
            start + index: reason
            for start, survey in zip(starts, surveys, strict=False)
            for index, reason in survey.errors.items()
        },
    )


_COLUMNS = ("digests", "sizes", "channels", "animated", "contrast", "thumbs")


def digest(data: bytes | memoryview) -> bytes:
    """The hash by which images are distinguished."""
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def survey_files(
    paths: Sequence[Path], *, progress: bool = False, clock: Callable[[], int] = time.time_ns
) -> Survey:
    """Surveys files, or loads their survey from the cache.

    Args:
        progress: Whether to show a bar.
        clock: The time in nanoseconds, with which the files' time stamps are compared.
    """
    key, latest = _stamp(paths)
    settled = clock() - latest > _SETTLED_NS
    stored = cache.directory() / "surveys" / f"{key}.npz"
    if (known := _load(stored, len(paths))) is not None:
        return known
    started = time.perf_counter()
    rows = list(spread(_survey_file, paths, description="reading images", progress=progress))
    seconds = time.perf_counter() - started
    logger.info("read %s in %.1f s", counted(len(paths), "image"), seconds)
    blank = Glance((0, 0), 0, False, 0, np.zeros((THUMB, THUMB), np.uint8))
    seen = [blank if isinstance(look, str) else look for _, look in rows]
    survey = Survey(
        digests=np.frombuffer(b"".join(d for d, _ in rows), np.uint8).reshape(-1, DIGEST),
        sizes=np.array([look.size for look in seen], np.int64).reshape(-1, 2),
        channels=np.array([look.channels for look in seen], np.int64),
        animated=np.array([look.animated for look in seen], bool),
        contrast=np.array([look.contrast for look in seen], np.int64),
        thumbs=np.array([look.thumb for look in seen], np.uint8).reshape(-1, THUMB, THUMB),
        errors={i: look for i, (_, look) in enumerate(rows) if isinstance(look, str)},
    )
    if settled:
        _save(survey, stored)
    return survey


def survey_array(images: UInt8[np.ndarray, "N H W C"]) -> Survey:
    """Surveys decoded images."""
    import torch
    import torch.nn.functional as F

    count, height, width, channels = images.shape
    thumbs = np.empty((count, THUMB, THUMB), np.uint8)
    contrast = np.empty(count, np.int64)
    many = max(1, _TOGETHER // (height * width))
    for start in range(0, count, many):
        part = torch.from_numpy(images[start : start + many].mean(3, dtype=np.float32))
        contrast[start : start + many] = (part.amax((1, 2)) - part.amin((1, 2))).ceil().numpy()
        small = F.interpolate(part[:, None], (THUMB, THUMB), mode="bilinear", antialias=True)
        thumbs[start : start + many] = small[:, 0].round().clamp(0, 255).numpy()
    flat = np.ascontiguousarray(images).reshape(count, -1)
    return Survey(
        digests=np.frombuffer(b"".join(digest(row.data) for row in flat), np.uint8).reshape(
            -1, DIGEST
        ),
        sizes=np.tile(np.array([[height, width]], np.int64), (count, 1)),
        channels=np.full(count, channels, np.int64),
        animated=np.zeros(count, bool),
        contrast=contrast,
        thumbs=thumbs,
        errors={},
    )


def _survey_file(path: Path) -> tuple[bytes, Glance | str]:
    """The digest of a file, and what a glance tells or why it cannot be read."""
    data = b""
    try:
        data = read_bytes(path)
        return digest(data), glance(data)
    except UnreadableError as error:
        return digest(data), str(error)


def _stamp(paths: Sequence[Path]) -> tuple[str, int]:
    """A key that changes with any file, and when the last of them changed."""
    key = hashlib.blake2b(f"survey {_VERSION} {pillow}".encode(), digest_size=DIGEST)
    latest = 0
    for path in paths:
        try:
            stat = path.stat()
            stamp = stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
        except OSError:
            stamp = -1, 0, 0
        latest = max(latest, *stamp[1:])
        key.update(os.fsencode(path.absolute()) + f"\0{stamp}\0".encode())
    return key.hexdigest(), latest


def _load(path: Path, count: int) -> Survey | None:
    try:
        # Opened here: NumPy leaves a file open that is no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            columns = {name: stored[name] for name in _COLUMNS}
            texts = zip(stored["error_index"].tolist(), stored["error_text"].tolist(), strict=True)
            survey = Survey(**columns, errors=dict(texts))
    except _DAMAGE:
        return None
    return survey if len(survey) == count else None


def _save(survey: Survey, path: Path) -> None:
    """Keeps a survey; if it cannot be written, it is made again next time."""
    try:
        with cache.open_entry(path) as file:
            np.savez(
                file,
                allow_pickle=False,
                error_index=np.array(list(survey.errors), np.int64),
                error_text=np.array(list(survey.errors.values()), np.str_),
                **{name: getattr(survey, name) for name in _COLUMNS},
            )
    except OSError as error:
        logger.info("this survey is not kept: %s", error)
