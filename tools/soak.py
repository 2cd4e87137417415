"""The long test: kills, damaged files, mutated images and many clients. Not part of CI.

    python tools/soak.py              # everything, under an hour on two cores
    python tools/soak.py --share 0.02 # a small part of each

It prints one row per attack for docs/reliability.md, and ends with 1 if anything broke.
"""

import argparse
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from smallvit.data import UnreadableError, cache  # noqa: E402
from smallvit.data.images import decode  # noqa: E402
from smallvit.runs.folder import Run  # noqa: E402
from smallvit.training import resume, train  # noqa: E402
from tests.runs.test_fuzz import FILES, GOLDEN, fuzz  # noqa: E402
from tests.server.live import process  # noqa: E402
from tests.training.makers import arrays, assert_same_run, tiny  # noqa: E402
from tests.training.test_resume import everything, start  # noqa: E402

Result = tuple[int, int, str]


def soak_kills(count: int, folder: Path) -> Result:
    """Kills at random moments of training and fine-tuning, until each run is finished."""
    source, draw = arrays(folder / "noise.npz"), random.Random(0)
    first = train(tiny(source, steps=2), out=folder / "pre", shown=False)
    kinds = {"plain": [], "tuned": [f"model.pretrained={first.folder}", "model.frozen=1"]}
    whole = {
        kind: train(everything(source, *more), out=folder / f"whole-{kind}", shown=False)
        for kind, more in kinds.items()
    }
    killed = broken = number = 0
    while killed < count:
        kind = draw.choice(list(kinds))
        out = folder / f"{number}" / "run"
        number += 1
        for _ in range(4):
            where = draw.choice(["step", "fsync", "replace", "moved", "half"])
            moment = f"{where}:{draw.randint(1, 30)}"
            code, _ = start(everything(source, *kinds[kind]), out, moment)
            broken += code not in (0, -signal.SIGKILL)
            killed += code == -signal.SIGKILL
            if code == 0:
                break
        run = Run.open(out) if (out / "run.json").exists() else None
        try:
            if run is not None:
                done = run if run.finished else resume(out, shown=False)
                assert_same_run(done, whole[kind])
        except (AssertionError, ValueError):
            broken += 1
        shutil.rmtree(out.parent)
    return killed, broken, f"{number} runs, weights, log and evaluation to the same bits"


def soak_folders(count: int, folder: Path) -> Result:
    """Damaged files of run folders, with their recorded hash and without."""
    copied = shutil.copytree(GOLDEN, folder / "run")
    broken = 0
    for number in range(count):
        name = FILES[number % len(FILES)]
        try:
            # The quick test has the first seeds.
            trusted = bool(number % 2) and name != "run.json"
            fuzz(name, copied, 1000 + number, trusted=trusted)
        except Exception as error:
            broken += 1
            sys.stdout.write(f"{name} {1000 + number}: {error!r}\n")
    return count, broken, "run.json, evaluation.json, config.yaml, log.jsonl, weights"


def soak_caches(count: int, folder: Path) -> Result:
    """Damaged entries of the cache: the pixels are always the right ones."""
    os.environ["SMALLVIT_CACHE"] = str(folder / "cache")
    draw, key = random.Random(0), "0a" * 16
    rows = np.random.default_rng(0).integers(0, 256, (50, 3, 8, 8), np.uint8)
    broken = 0
    for _ in range(count):
        cache.stored(key, rows.shape, lambda: iter(rows), {})
        path = folder / "cache" / f"{key}.{draw.choice(['npy', 'npy', 'json'])}"
        data = bytearray(path.read_bytes())
        first, length = draw.randrange(len(data)), draw.randrange(1, 500)
        data[first : first + length] = draw.choice([b"", draw.randbytes(length), bytes(length)])
        path.write_bytes(data)
        broken += not (cache.stored(key, rows.shape, lambda: iter(rows), {}) == rows).all()
    return count, broken, "cut, zeroed and overwritten"


def mutated_image(draw: random.Random, seeds: list[bytes]) -> bytes:
    """Some bytes of an image replaced, and now and then its end cut off."""
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.randrange(1, 20)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data[: draw.randrange(1, len(data))] if draw.random() < 0.3 else data)


def image_seeds() -> list[bytes]:
    """One small image in each format."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8))
    seeds = []
    for kind in ("png", "jpeg", "gif", "bmp", "tiff", "webp"):
        file = io.BytesIO()
        image.save(file, kind)
        seeds.append(file.getvalue())
    return seeds


def soak_images(count: int, folder: Path) -> Result:
    """Mutated images: decoded, or refused with a reason."""
    draw, seeds, broken = random.Random(0), image_seeds(), 0
    for _ in range(count):
        try:
            decode(mutated_image(draw, seeds))
        except UnreadableError:
            pass
        except Exception as error:
            broken += 1
            sys.stdout.write(f"image: {error!r}\n")
    return count, broken, "png, jpeg, gif, bmp, tiff, webp"


def soak_requests(count: int, folder: Path) -> Result:
    """Requests of 32 clients, one in eight a slow sender; none is answered by a 5xx but 503."""
    seeds, answers = image_seeds(), []
    plain = {"content-type": "image/any"}

    def slowly(data: bytes):
        for first in range(0, len(data), 400):
            time.sleep(0.02)
            yield data[first : first + 400]

    def client(number: int, address: str) -> None:
        draw = random.Random(number)
        with httpx.Client(timeout=60) as connection:
            for _ in range(max(1, count // 32)):
                data = mutated_image(draw, seeds) if draw.random() < 0.5 else draw.choice(seeds)
                body = slowly(data) if number % 8 == 0 else data
                try:
                    answer = connection.post(f"{address}/predict", content=body, headers=plain)
                    answers.append(answer.status_code)
                except httpx.HTTPError as error:
                    answers.append(type(error).__name__)

    with process(GOLDEN) as (running, log):
        # Its log would fill the pipe.
        threading.Thread(target=lambda: running.stderr.read(), daemon=True).start()
        before = memory_of(running.pid)
        threads = [threading.Thread(target=client, args=(n, log[-1])) for n in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = memory_of(running.pid)
    bad = [code for code in answers if not isinstance(code, int) or (code >= 500 and code != 503)]
    bad += [] if 200 in answers else ["no image was predicted"]
    kinds = {code: answers.count(code) for code in sorted(set(answers), key=str)}
    return len(answers), len(bad), f"{kinds}, memory {before} to {after} MB"


def memory_of(pid: int) -> int:
    """Megabytes that a process holds."""
    words = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True)
    return int(words.stdout) // 1000


ATTACKS: dict[str, tuple[Callable[[int, Path], Result], int]] = {
    "kill and resume": (soak_kills, 100),
    "damaged run folders": (soak_folders, 2000),
    "damaged cache entries": (soak_caches, 500),
    "mutated images": (soak_images, 5000),
    "requests of 32 clients": (soak_requests, 10_000),
}


def main() -> int:
    """Runs all attacks, or one; returns 1 if anything broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the full counts")
    parser.add_argument("--only", choices=list(ATTACKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    worst = 0
    sys.stdout.write("| attack | tried | broke | seconds | note |\n|---|--:|--:|--:|---|\n")
    for name, (attack, count) in ATTACKS.items():
        if options.only in (None, name):
            started = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                os.environ["SMALLVIT_CACHE"] = f"{folder}/cache"
                tried, broke, note = attack(max(1, round(count * options.share)), Path(folder))
            seconds = time.monotonic() - started
            sys.stdout.write(f"| {name} | {tried:,} | {broke} | {seconds:.0f} | {note} |\n")
            sys.stdout.flush()
            worst = max(worst, broke)
    return int(worst > 0)


if __name__ == "__main__":
    raise SystemExit(main())
