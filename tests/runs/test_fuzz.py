"""Damaged run folders, seeded: every end is a success or a sentence that names the file."""

import json
import random
import shutil
from pathlib import Path

import pytest

from smallvit.files import hash_bytes
from smallvit.runs.folder import Run

GOLDEN = Path(__file__).parent.parent / "golden" / "runs" / "format_2"
FILES = ("run.json", "evaluation.json", "config.yaml", "log.jsonl", "weights.safetensors")
VALUES = (None, True, -1, 0, 1e308, "", "x", [], {}, [None], [[1]], {"a": 1}, "\ud800", 2**70)


def bytes_changed(data: bytes, draw: random.Random) -> bytes:
    """Cut, flipped, doubled, overwritten, or something else altogether."""
    place = draw.randrange(len(data))
    kind = draw.randrange(6)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]
    if kind == 2:
        return data[:place] + data
    if kind == 3:
        return data[:place] + bytes(draw.randrange(1, 50)) + data[place + 50 :]
    if kind == 4:
        return draw.randbytes(draw.randrange(200))
    return draw.choice([b"[" * 30_000, b"null", b"{}", b"[]", b"\xff\xfe", b"1"])


def value_changed(plain, draw: random.Random):
    """A value somewhere in the tree replaced, or a key removed."""
    plain = json.loads(json.dumps(plain))
    branch = plain
    while True:
        keys = list(branch) if isinstance(branch, dict) else range(len(branch))
        key = draw.choice(list(keys))
        below = branch[key]
        if isinstance(below, dict | list) and below and draw.random() < 0.6:
            branch = below
            continue
        if draw.random() < 0.3:
            del branch[key]
        else:
            branch[key] = draw.choice(VALUES)
        return plain


def read_all(run_folder: Path) -> None:
    """All that reads a run folder, without its data."""
    run = Run.open(run_folder)
    run.card.to_json()
    run.model()
    run.evaluation()
    run.log()


def mutated(name: str, draw: random.Random) -> bytes:
    data = (GOLDEN / name).read_bytes()
    if draw.random() < 0.5 or name.endswith("safetensors"):
        return bytes_changed(data, draw)
    if name == "log.jsonl":
        lines = [json.loads(line) for line in data.decode().splitlines()]
        lines = value_changed(lines, draw)
        return "".join(json.dumps(line) + "\n" for line in lines).encode()
    if name == "config.yaml":
        from smallvit.config_io import read_yaml, write_yaml

        changed = value_changed(read_yaml(data.decode()), draw)
        return write_yaml(changed).encode("utf-8", "surrogatepass")
    return json.dumps(value_changed(json.loads(data), draw)).encode()


def fuzz(name: str, folder: Path, seed: int, *, trusted: bool) -> str:
    """What comes of one damaged file: "" or a sentence; anything else is raised.

    Args:
        trusted: Whether its hash is recorded as if it had been written so.
    """
    draw = random.Random(f"{name} {seed}")
    data = mutated(name, draw)
    (folder / name).write_bytes(data)
    if trusted:
        info = json.loads((folder / "run.json").read_text())
        info["hashes"][name] = hash_bytes(data)
        info.pop("config")
        (folder / "run.json").write_text(json.dumps(info))
    try:
        read_all(folder)
    except ValueError as error:
        if type(error) is not ValueError:  # a decoder's own, that names no file
            raise
        return str(error)
    finally:
        for each in (name, "run.json"):
            shutil.copy(GOLDEN / each, folder / each)
    return ""


@pytest.mark.parametrize(
    ("name", "trusted"),
    [("run.json", False), *((name, trusted) for name in FILES[1:] for trusted in (False, True))],
)
def test_every_end_is_a_sentence(tmp_path, name, trusted):
    folder = shutil.copytree(GOLDEN, tmp_path / "run")
    count = 60 if name == "run.json" else 30
    ends = [fuzz(name, folder, seed, trusted=trusted) for seed in range(count)]
    said = [end for end in ends if end]
    assert len(said) > count // 4
    # A hash or a config in run.json that is not that of the other file: either may be damaged.
    named = FILES if name == "run.json" else (name,)
    assert [end for end in said if not any(each in end for each in named)] == []
    if not trusted and name not in ("run.json", "config.yaml"):
        unchanged = [seed for seed, end in enumerate(ends) if not end]
        data = (GOLDEN / name).read_bytes()
        same = [s for s in unchanged if mutated(name, random.Random(f"{name} {s}")) == data]
        assert unchanged == same  # every other change was found
