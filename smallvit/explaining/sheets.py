"""`smallvit explain` as a function: for each image a sheet of what the model looks at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageDraw
from PIL.ImageFont import FreeTypeFont
from torch import nn

from smallvit.data.images import SUFFIXES, UnreadableError, decode, read_bytes
from smallvit.data.previews import coloured, label_font
from smallvit.devices import choose_device
from smallvit.explaining.explain import Explanation, explain
from smallvit.explaining.overlays import overlay
from smallvit.text import shown

if TYPE_CHECKING:
    from smallvit.runs.folder import Run

_CELL, _GAP, _TEXT = 192, 12, 13
_COLUMNS = 6
_INK, _PAPER, _QUIET = (30, 30, 30), (250, 250, 250), (110, 110, 110)


class Tile(NamedTuple):
    """An image with a line of text below it."""

    label: str
    pixels: UInt8[np.ndarray, "H W 3"]


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What became of one file.

    Attributes:
        path: The image.
        sheet: The PNG that was written; None if the image could not be read.
        answer: The class the model predicts.
        probability: How sure it is, calibrated.
        error: Why the image could not be read.
    """

    path: Path
    sheet: Path | None = None
    answer: str = ""
    probability: float = 0.0
    error: str = ""


def explain_files(
    run: "Run",
    paths: Sequence[Path],
    out: Path,
    *,
    name: str | None = None,
    device: str = "auto",
) -> Iterator[Explained]:
    """Writes a sheet for each image, one image at a time.

    Args:
        run: Whose model is asked.
        paths: Images, and folders of images.
        out: The folder for the sheets; it is made if needed.
        name: The class that the gradient map speaks for; by default the predicted one.
        device: auto, cpu, cuda or mps.

    Raises:
        ValueError: There is no such class or device, or the model cannot be explained.
        OSError: A sheet cannot be written.
    """
    if name is not None and name not in run.classes:
        known = ", ".join(map(shown, run.classes[:20]))
        known += " and more" if len(run.classes) > 20 else ""
        raise ValueError(f"class is {name!r}: {run.name} knows {known}")
    target = None if name is None else run.classes.index(name)
    place = choose_device(device)
    model = run.model().to(place)
    out.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for path in _files(paths):
        try:
            pixels = run.card.prepare(decode(read_bytes(path)))
        except UnreadableError as error:
            yield Explained(path=path, error=str(error))
            continue
        found = _ask(model, pixels, run, target, place)
        chances = run.card.probabilities(found.logits)[0]
        best = int(chances.argmax())
        answer, chance = run.classes[best], float(chances[best])
        title = f"{shown(path.name)}: {shown(answer)}, {chance:.1%}"
        sheet = out / _free(path.stem, taken)
        draw(title, tiles(pixels, found, run.classes)).save(sheet, "PNG")
        yield Explained(path=path, sheet=sheet, answer=answer, probability=chance)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            inside = (item for item in path.iterdir() if item.suffix.lower() in SUFFIXES)
            yield from sorted(inside)
        else:
            yield path


def _free(stem: str, taken: set[str]) -> str:
    """A file name no other image of this call has, nor the image itself."""
    number, name = 1, f"{stem}-explained.png"
    while name in taken:
        number += 1
        name = f"{stem}-{number}-explained.png"
    taken.add(name)
    return name


def _ask(
    model: nn.Module,
    pixels: UInt8[np.ndarray, "H W C"],
    run: "Run",
    target: int | None,
    place: torch.device,
) -> Explanation:
    batch = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].to(place)
    return explain(model, run.card.normalise(batch), target)


def tiles(
    pixels: UInt8[np.ndarray, "H W C"], found: Explanation, classes: Sequence[str]
) -> list[list[Tile]]:
    """The rows of a sheet: the image and its maps, then the heads of the last layer.

    Args:
        pixels: The image as the model sees it.
        found: Its explanation, alone in its batch.
        classes: Names of the classes.
    """
    scale = max(1, round(_CELL / max(pixels.shape[:2])))
    # Each pixel of the model's stays a square.
    large = coloured(pixels).repeat(scale, 0).repeat(scale, 1)
    rows = [[Tile("as the model sees it", large)]]
    if found.rollout is not None:
        rows[0].append(Tile("attention rollout", overlay(large, found.rollout[0])))
    speaks = f"speaks for {shown(classes[int(found.target[0])])}"
    rows[0].append(Tile(speaks, overlay(large, found.gradient[0])))
    if found.heads:
        heads = [
            Tile(f"layer {len(found.heads)}, head {number}", overlay(large, heat))
            for number, heat in enumerate(found.heads[-1][0], 1)
        ]
        rows += [heads[i : i + _COLUMNS] for i in range(0, len(heads), _COLUMNS)]
    return rows


def _cut(text: str, font: FreeTypeFont, width: int) -> str:
    """As much of a text as fits."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def draw(title: str, rows: list[list[Tile]]) -> Image.Image:
    """Tiles in rows below a title, with the scale of the colours."""
    font, small = label_font(_TEXT + 2), label_font(_TEXT - 1)
    height, width = rows[0][0].pixels.shape[:2]
    columns = max(3, *(len(row) for row in rows))
    across, down = width + _GAP, height + _TEXT + 2 * _GAP
    head = _TEXT + 3 * _GAP
    size = (columns * across + _GAP, head + len(rows) * down + _TEXT + 2 * _GAP)
    sheet = Image.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_GAP, _GAP), _cut(title, font, size[0] - 2 * _GAP), _INK, font)
    for r, row in enumerate(rows):
        for c, tile in enumerate(row):
            left, top = _GAP + c * across, head + r * down
            sheet.paste(Image.fromarray(tile.pixels), (left, top))
            pen.text((left, top + height + 4), _cut(tile.label, small, width), _INK, small)
    grey = np.full((_TEXT, _CELL, 1), 128, np.uint8)
    bar = overlay(grey, np.linspace(0, 1, _CELL, dtype=np.float32)[None])
    top = size[1] - _TEXT - _GAP
    pen.text((_GAP, top - 1), "nothing", _QUIET, small)
    left = _GAP + int(small.getlength("nothing ")) + 4
    sheet.paste(Image.fromarray(bar), (left, top))
    pen.text((left + _CELL + 6, top - 1), "most of this map", _QUIET, small)
    return sheet
