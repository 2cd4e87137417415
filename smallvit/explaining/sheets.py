"""`smallvit explain` as a function: for each image a sheet of maps of where the model looks."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageDraw
from PIL.ImageFont import FreeTypeFont

from smallvit.data.images import UnreadableError, decode, read_bytes
from smallvit.data.previews import coloured, label_font
from smallvit.devices import choose_device
from smallvit.explaining.explain import Explanation, explain
from smallvit.explaining.overlays import overlay
from smallvit.explaining.probes import EVEN, evenness
from smallvit.files import images_in
from smallvit.text import shown, some

if TYPE_CHECKING:
    from smallvit.runs.folder import Run

_SHEET = "-explained.png"
_LONGEST = 220  # bytes of an image's name in that of its sheet; file systems allow 255
_CELL, _GAP, _TEXT = 192, 12, 13
_COLUMNS = 6
_INK, _PAPER, _QUIET = (30, 30, 30), (250, 250, 250), (110, 110, 110)


class Tile(NamedTuple):
    """An image with a line of text below it."""

    label: str
    pixels: UInt8[np.ndarray, "H W 3"]


@dataclass(frozen=True, kw_only=True)
class Explained:
    """The result for one file.

    Attributes:
        path: The image.
        sheet: The PNG that was written; None if the image could not be read.
        predicted: The class the model predicts.
        probability: Of that class, calibrated.
        silent: Why its attention shows no place; empty where it shows one.
        error: Why the image could not be read.
    """

    path: Path
    sheet: Path | None = None
    predicted: str = ""
    probability: float = 0.0
    silent: str = ""
    error: str = ""


def explain_files(
    run: "Run",
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: Path,
    *,
    name: str | None = None,
    device: str = "auto",
) -> Iterator[Explained]:
    """Writes a sheet for each image, one image at a time.

    Args:
        run: Whose model is explained.
        paths: Files, folders, patterns and "-", as `predict` takes them; sheets that lie in `out`
            are left out.
        out: The folder for the sheets; it is made if needed.
        name: The class of the gradient map; by default the predicted one.
        device: auto, cpu, cuda or mps.

    Raises:
        ValueError: There is no such class or device, or the model cannot be explained.
        OSError: A sheet cannot be written.
    """
    if name is not None and name not in run.classes:
        raise ValueError(f"class is {name!r}: {run.name} knows {some(run.classes, 20)}")
    target = None if name is None else run.classes.index(name)
    chosen = choose_device(device)
    model = run.model().to(chosen)
    out.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for file in images_in(paths):
        path = Path(file.path)
        if path.name.endswith(_SHEET) and path.parent.resolve() == out.resolve():
            continue  # a sheet of ours, which lies in a folder that was named
        try:
            if file.error:
                raise UnreadableError(file.error.strerror)
            pixels = run.card.prepare(decode(read_bytes(path)))
        except UnreadableError as error:
            yield Explained(path=path, error=str(error))
            continue
        batch = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].to(chosen)
        maps = explain(model, run.card.normalise(batch), target)
        probabilities = run.card.probabilities(maps.logits)[0]
        best = int(probabilities.argmax())
        predicted, probability = run.classes[best], float(probabilities[best])
        title = f"{shown(path.name)}: {shown(predicted)}, {probability:.1%}"
        sheet = out / _unused(path.stem, taken)
        draw(title, tiles(pixels, maps, run.classes)).save(sheet, "PNG")
        yield Explained(
            path=path,
            sheet=sheet,
            predicted=predicted,
            probability=probability,
            silent=maps.silent[0],
        )


def _unused(stem: str, taken: set[str]) -> str:
    """A file name that no other image of this call has, nor the image itself."""
    while len(os.fsencode(stem)) > _LONGEST:
        stem = stem[:-1]
    number, name = 1, f"{stem}{_SHEET}"
    while name in taken:
        number += 1
        name = f"{stem}-{number}{_SHEET}"
    taken.add(name)
    return name


def tiles(
    pixels: UInt8[np.ndarray, "H W C"], maps: Explanation, classes: Sequence[str]
) -> list[list[Tile]]:
    """The rows of a sheet: the image and its maps, then the heads of the last layer.

    A map that shows no place stays grey, and its label says so.

    Args:
        pixels: The image as the model sees it.
        maps: Its explanation, alone in its batch.
        classes: Names of the classes.
    """
    scale = max(1, round(_CELL / max(pixels.shape[:2])))
    # Each pixel that the model sees stays a square.
    large = coloured(pixels).repeat(scale, 0).repeat(scale, 1)
    rows = [[Tile("as the model sees it", large)]]
    grey = overlay(large, np.zeros((1, 1), np.float32))
    if maps.silent[0]:
        rows[0].append(Tile("attention shows no place", grey))
    elif maps.rollout is not None:
        rows[0].append(Tile("attention rollout", overlay(large, maps.rollout[0])))
    supports = f"supports {shown(classes[int(maps.target[0])])}"
    rows[0].append(Tile(supports, overlay(large, maps.gradient[0])))
    if maps.heads:
        silent = evenness(maps.heads[-1][0]) >= EVEN
        heads = [
            Tile(f"layer {len(maps.heads)}, head {number}: even", grey)
            if silent[number - 1]
            else Tile(f"layer {len(maps.heads)}, head {number}", overlay(large, heat))
            for number, heat in enumerate(maps.heads[-1][0], 1)
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
