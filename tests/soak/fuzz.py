"""Damaged run folders, checkpoints, caches and configs end well, or in a sentence."""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from smallvit.config_io import read_yaml, write_yaml
from smallvit.data import Dataset, load_data
from smallvit.runs.checkpoint import load_checkpoint
from smallvit.runs.config import RunConfig
from tests.runs.test_fuzz import FILES, GOLDEN, bytes_changed, fuzz, value_changed
from tests.soak.result import Result
from tests.training.makers import arrays, folder_of_images, tiny
from tests.training.test_resume import stopped

Attack = Callable[[int], str | None]
"""From a seed to what was wrong, if anything was."""


def soak_fuzz(count: int, folder: Path) -> Result:
    """Half of them run folders, the rest checkpoints, caches and configs."""
    result, counts = Result(), {}
    with private_cache(folder / "cache"):
        attacks = make_attacks(folder)
        for number in range(count):
            name = list(attacks)[number % len(attacks)]
            counts[name] = counts.get(name, 0) + 1
            try:
                wrong = attacks[name](1_000 + number)  # the quick tests have the first seeds
            except Exception as error:
                wrong = f"{error!r:.300}"
            result.tried += 1
            result.expect(not wrong, f"{name} {1_000 + number}: {wrong}")
    kinds: dict[str, int] = {}
    for name, number in counts.items():
        kinds[name.partition(":")[0]] = kinds.get(name.partition(":")[0], 0) + number
    result.note = ", ".join(f"{number} {name}" for name, number in kinds.items())
    return result


def make_attacks(folder: Path) -> dict[str, Attack]:
    """Every kind of damage by name; the part before the colon is what the table counts."""
    run = shutil.copytree(GOLDEN, folder / "run")
    attacks: dict[str, Attack] = {}
    for name in FILES:
        attacks[f"run folders: {name}"] = lambda seed, name=name: _damaged(run, name, seed, False)
    for name in FILES[1:]:
        attacks[f"run folders: {name}, trusted"] = lambda seed, name=name: _damaged(
            run, name, seed, True
        )
    attacks["checkpoints: any"] = _checkpoints(folder)
    attacks |= _caches(folder)
    attacks["configs: bytes"] = lambda seed: _config(seed, values=False)
    attacks["configs: values"] = lambda seed: _config(seed, values=True)
    return attacks


def _damaged(run: Path, name: str, seed: int, trusted: bool) -> str | None:
    said = fuzz(name, run, seed, trusted=trusted)
    named = FILES if name == "run.json" else (name,)
    return None if not said or any(each in said for each in named) else f"names no file: {said}"


def _checkpoints(folder: Path) -> Attack:
    """A damaged file of the newest checkpoint: the one before it is taken, or none is missed."""
    source = arrays(folder / "noise.npz")
    often = ("loop.every=2", "loop.checkpoint_seconds=0")
    place = stopped(tiny(source, *often, steps=12), folder / "stopped", 7).folder / "checkpoints"
    good = {path: path.read_bytes() for path in sorted(place.iterdir())}
    steps = sorted({int(path.stem) for path in good})

    def attack(seed: int) -> str | None:
        draw = random.Random(seed)
        path = draw.choice(list(good))
        data = bytes_changed(good[path], draw)
        path.write_bytes(data)
        try:
            found = load_checkpoint(place)
        finally:
            path.write_bytes(good[path])
        whole = [step for step in steps if step != int(path.stem) or data == good[path]]
        step = found and found[0].step
        return None if step == max(whole) else f"{path.name}: took {step} of {whole}"

    return attack


def _caches(folder: Path) -> dict[str, Attack]:
    """Damaged pixels, descriptions and surveys: what is read is what the files hold."""
    source = folder_of_images(folder / "images", 12)
    time.sleep(2.1)  # surveys of files that were just written are not kept

    def read() -> tuple[Dataset, np.ndarray]:
        dataset = load_data(source, image_size=8, val=0.25, test=0.25)
        return dataset, np.concatenate([np.array(dataset.pixels(s)) for s in dataset.splits])

    dataset, expected = read()
    root = Path(os.environ["SMALLVIT_CACHE"])
    good = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    def attack(files: list[Path], seed: int) -> str | None:
        draw = random.Random(seed)
        path = draw.choice(files)
        path.write_bytes(bytes_changed(good[path], draw))
        try:
            again, pixels = read()
        finally:
            for each, data in good.items():
                each.write_bytes(data)
        same = np.array_equal(pixels, expected) and again.fingerprint == dataset.fingerprint
        return None if same else f"{path.name}: other images"

    endings = {path.suffix if path.parent == root else "surveys" for path in good}
    assert endings >= {".npy", ".json", "surveys"}, sorted(map(str, good))
    groups = {
        kind: [p for p in good if kind == (p.suffix if p.parent == root else "surveys")]
        for kind in sorted(endings)
    }
    return {
        f"cache entries: {kind}": lambda seed, files=files: attack(files, seed)
        for kind, files in groups.items()
    }


def _config(seed: int, *, values: bool) -> str | None:
    """A config file that a person edited, or that is damaged."""
    draw = random.Random(seed)
    data = (GOLDEN / "config.yaml").read_bytes()
    if values:
        data = write_yaml(value_changed(read_yaml(data.decode()), draw)).encode(
            "utf-8", "surrogatepass"
        )
    else:
        data = bytes_changed(data, draw)
    try:
        RunConfig.from_yaml(data.decode("utf-8", "replace"))
    except ValueError as error:
        if type(error) is not ValueError or len(str(error).split()) < 4:
            return f"no sentence: {error!r:.300}"
    return None


@contextmanager
def private_cache(folder: Path) -> Iterator[None]:
    """A cache of its own."""
    before = os.environ.get("SMALLVIT_CACHE")
    os.environ["SMALLVIT_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("SMALLVIT_CACHE")
        if before is not None:
            os.environ["SMALLVIT_CACHE"] = before
