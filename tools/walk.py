"""Counts the walk of an image from a folder through `train` to weights.

    python tools/walk.py                                    # this checkout
    PYTHONPATH=OTHER_CHECKOUT python tools/walk.py          # another version of the package

It makes a folder of small images, trains a cct_2_3x2 on it for two steps with
`smallvit.train(smallvit.plan(FOLDER).config)`, on the CPU in one thread, and watches every call
with `sys.setprofile`. It does so twice and counts the second time, when everything is imported.

The walk is the list of distinct functions of our package, each a pair of file and qualified name,
in the order in which they are first called. Methods, properties and lambdas are functions;
comprehensions and generated code are not. Counted are

- functions: the length of the walk;
- calls between files: those functions on it that are first called from another file (of ours; what
  lies between, such as torch's `Module.__call__`, is skipped);
- files and rooms: how many different ones are on it. A room is the first part of a path below
  smallvit/;
- changes of file and of room: how often two neighbours on the walk differ in it.
"""

import argparse
import os
import sys
import tempfile
import threading
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
if hasattr(os, "sched_setaffinity"):  # one thread decodes, so that the order is always the same
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])

import numpy as np
from PIL import Image

import smallvit

PACKAGE = Path(smallvit.__file__).parent


class Walk:
    """Distinct functions of our package in the order in which they are first called."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, str], bool] = {}  # whether another file called it first
        self._known: set[CodeType] = set()

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """Takes what `sys.setprofile` reports."""
        code = frame.f_code
        if event != "call" or code in self._known:
            return
        self._known.add(code)
        generated = code.co_name.startswith("<") and code.co_name != "<lambda>"
        if not generated and (file := _file(frame)):
            caller = frame.f_back
            while caller is not None and not _file(caller):
                caller = caller.f_back
            self.steps[file, code.co_qualname] = caller is None or _file(caller) != file

    def counts(self) -> dict[str, int]:
        """The numbers that the head of this file explains."""
        files = [file for file, _ in self.steps]
        rooms = [file.partition("/")[0].removesuffix(".py") for file in files]
        return {
            "functions": len(files),
            "calls between files": sum(self.steps.values()),
            "files": len(set(files)),
            "rooms": len(set(rooms)),
            "changes of file": sum(a != b for a, b in pairwise(files)),
            "changes of room": sum(a != b for a, b in pairwise(rooms)),
        }


def _file(frame: FrameType) -> str:
    """The file of a frame below smallvit/, or nothing where it is not ours."""
    path = Path(frame.f_code.co_filename)
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else ""


def make_images(folder: Path) -> None:
    """Two classes of twenty small images each, of smooth colours."""
    random = np.random.default_rng(0)
    for number in range(40):
        coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8))
        path = folder / ("ash", "elm")[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse.resize((36, 30), Image.Resampling.BICUBIC).save(path)


def train(folder: Path, out: Path) -> None:
    """Two steps through the public functions."""
    changes = {
        "model": {"name": "cct_2_3x2"},
        "schedule": {"steps": 2},
        "loop": {"batch_size": 8, "compiled": False, "device": "cpu"},
    }
    plan = smallvit.plan(str(folder), changes=changes)
    smallvit.train(plan.config, out=out)
    if not (out / "weights.safetensors").is_file():
        raise SystemExit("there are no weights at the end of the walk")


def main() -> None:
    """Trains once and prints the counts and the walk."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--counts", action="store_true", help="print the numbers only")
    options = parser.parse_args()
    walk = Walk()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "images"
        make_images(folder)
        for name, watch in (("first", None), ("second", walk.watch)):
            os.environ["SMALLVIT_CACHE"] = str(Path(temporary) / name / "cache")
            threading.setprofile(watch)
            sys.setprofile(watch)
            train(folder, Path(temporary) / name / "run")
        sys.setprofile(None)
    print(", ".join(f"{count} {name}" for name, count in walk.counts().items()))
    if not options.counts:
        print(*(f"{file}:{function}" for file, function in walk.steps), sep="\n")


if __name__ == "__main__":
    main()
