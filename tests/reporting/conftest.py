"""Small trained runs, one of each per session, and a reader of pages."""

import csv
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smallvit.runs import Run, RunConfig
from smallvit.runs.changes import changes_of
from smallvit.training import train

NASTY = (
    "<script>alert(1)</script>",
    "</style></title><img src=x onerror=alert(1)>",
    "\"'onmouseover='alert(1)' {{ 7 * 7 }} &amp;",
    "שלום \u202etxt.exe",
    "🦊 " + "very long " * 20,
)


class Page(HTMLParser):
    """What a page holds: tags with attributes in order, and text by the tag it stands in."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: dict[str, list[str]] = {}
        self.rows: list[tuple[dict[str, str], list[str], list[float]]] = []
        self._open: list[str] = []
        self._read: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        if tag == "tr":
            self.rows.append((given, [], []))
        if tag == "data" and "tr" in self._open:
            self.rows[-1][2].append(float(given["value"]))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        tag = self._open[-1] if self._open else ""
        self.text.setdefault(tag, []).append(data)
        if tag not in ("style", "script"):
            self._read.append(data)
        if "tr" in self._open:
            self.rows[-1][1].append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def metrics(self) -> dict[str, list[float]]:
        """Value, low and high of each metric."""
        rows = ((attributes.get("data-metric"), values) for attributes, _, values in self.rows)
        return {name: values for name, values in rows if name}

    @property
    def words(self) -> str:
        """All text a person reads."""
        return re.sub(r"[ \n]+", " ", " ".join(self._read))


def draw(number: int, label: int, side: int = 16) -> np.ndarray:
    """An image of coarse noise, brighter from class to class."""
    random = np.random.default_rng(number)
    coarse = random.integers(0, 90, (8, 8, 3)) + 50 * (label % 4)
    return coarse.repeat(side // 8, 0).repeat(side // 8, 1).astype(np.uint8)


def write_npz(path: Path, classes: tuple[str, ...], counts: dict[str, int]) -> Path:
    """An array of images, so many of each class in each split.

    Every third test image looks like another class, so that any model makes mistakes.
    """
    rows = [
        (label, split)
        for split, count in counts.items()
        for label in range(len(classes))
        for _ in range(count)
    ]
    images = np.stack(
        [
            draw(number, label + (split == "test" and number % 3 == 0))
            for number, (label, split) in enumerate(rows)
        ]
    )
    labels, splits = (np.array(column) for column in zip(*rows, strict=True))
    np.savez(path, images=images, labels=labels, split=splits, classes=np.array(classes))
    return path


def write_csv(folder: Path, names: tuple[str, ...], each: int) -> Path:
    """A table of files whose names and labels try everything."""
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "split"])
        for label, name in enumerate(names):
            for number in range(3 * each):
                # A slash makes a folder of what is before it.
                place = Path(f"{label}") / f"{name[:60]}{number}.png"
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(draw(1000 * label + number, label, 80)).save(folder / place)
                table.writerow([place, name, ("train", "val", "test")[number % 3]])
    return folder / "table.csv"


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALLVIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def trained(source: Path, out: Path, *changes: str) -> Run:
    settings = [
        f"data.source={source}",
        "model.options={dim: 32, num_heads: 2}",
        "schedule.steps=6",
        "loop.batch_size=16",
        "loop.every=2",
        "loop.device=cpu",
        *changes,
    ]
    config = RunConfig().changed(changes_of(settings))
    return train(config, out=out, command="smallvit train it", shown=False)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three classes of small arrays, a model with learned temperatures."""
    folder = tmp_path_factory.mktemp("plain")
    source = write_npz(folder / "d.npz", ("ash", "elm", "fir"), {"train": 12, "val": 6, "test": 10})
    return trained(source, folder / "run", "model.name=cct_2_3x2+lsa")


@pytest.fixture(scope="session")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Files and classes with names that break pages."""
    folder = tmp_path_factory.mktemp("nasty")
    return trained(write_csv(folder, NASTY, 4), folder / "run", "data.image_size=16")


@pytest.fixture
def read() -> Callable[[Path], Page]:
    return lambda path: Page(path.read_text(encoding="utf-8"))
