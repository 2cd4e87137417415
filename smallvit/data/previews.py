"""A sheet of images as the model sees them."""

import os
from collections.abc import Callable
from importlib.resources import files
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from PIL import Image, ImageDraw
from PIL.ImageFont import FreeTypeFont, truetype
from torch import Tensor

from smallvit.arguments import Positive, Seed, checked
from smallvit.data.dataset import Dataset
from smallvit.data.fit import fit_image
from smallvit.data.images import UnreadableError
from smallvit.data.loader import random_keys
from smallvit.text import shown

Augment = Callable[[UInt8[Tensor, "B C H W"], Int64[Tensor, " B"]], UInt8[Tensor, "B C H W"]]

_CELL = 96
_GAP = 8
_TEXT = 15
_INK, _PAPER, _QUIET = (30, 30, 30), (250, 250, 250), (120, 120, 120)


@checked
def preview(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    split: str = "train",
    augment: Augment | None = None,
    classes: Positive = 12,
    columns: Positive = 8,
    seed: Seed = 0,
) -> None:
    """Writes a PNG with a row of images for each class, fitted and augmented as in training.

    Args:
        dataset: From `load_data`.
        path: The file to write.
        split: Where images are taken from.
        augment: Called with images and their positions in the batch. With it every second column
            shows the augmented form of the image to its left.
        classes: How many classes to show at most.
        columns: How many cells a row has.
        seed: Seed of the choice of images.
    """
    present = [k for k in range(len(dataset.classes)) if (dataset.labels(split) == k).any()]
    rows = [
        (dataset.classes[k], _row(dataset, split, k, augment, columns, seed))
        for k in present[:classes]
    ]
    height, width = dataset.image_size
    scale = max(1, round(_CELL / max(height, width)))
    cell = height * scale, width * scale
    font = label_font(_TEXT - 2)
    label = max((int(font.getlength(_short(name))) for name, _ in rows), default=0) + 2 * _GAP
    head = 2 * _TEXT + 2 * _GAP
    sheet = Image.new(
        "RGB",
        (
            label + _left(columns, cell[1], augment is not None),
            head + len(rows) * (cell[0] + _GAP) + _GAP,
        ),
        _PAPER,
    )
    draw = ImageDraw.Draw(sheet)
    draw.text((_GAP, _GAP), _caption(dataset, split, augment is not None), _INK, font)
    if len(present) > classes:
        more = f"{classes} of {len(present)} classes"
        draw.text((_GAP, _GAP + _TEXT), more, _QUIET, font)
    for r, (name, images) in enumerate(rows):
        top = head + r * (cell[0] + _GAP)
        draw.text((_GAP, top + cell[0] / 2), _short(name), _INK, font, anchor="lm")
        for c, image in enumerate(images):
            # Nearest, so that the pixels are those of the model's input.
            large = Image.fromarray(image).resize(cell[::-1], Image.Resampling.NEAREST)
            sheet.paste(large, (label + _left(c, cell[1], augment is not None), top))
    sheet.save(Path(path), "PNG")


def _left(column: int, width: int, paired: bool) -> int:
    """Where a column begins; an image and its augmented form are close together."""
    return column * (width + _GAP) - (column % 2) * (_GAP - 2) * paired


def _row(
    dataset: Dataset, split: str, label: int, augment: Augment | None, columns: int, seed: int
) -> list[UInt8[np.ndarray, "H W 3"]]:
    """Some images of a class, each followed by its augmented form if there is one."""
    samples = dataset.split(split)
    members = np.flatnonzero(samples.labels == label)
    members = members[np.argsort(random_keys(seed, label, len(members)))]
    wanted = columns if augment is None else columns // 2
    plain: list[UInt8[np.ndarray, "H W C"]] = []
    for index in members.tolist():
        if len(plain) == wanted:
            break
        try:
            image = samples.read(index, dataset.channels)
        except UnreadableError:
            continue
        plain.append(fit_image(image, dataset.image_size, dataset.fit))
    if augment is None or not plain:
        return [coloured(image) for image in plain]
    batch = torch.from_numpy(np.stack(plain)).permute(0, 3, 1, 2).contiguous()
    # Each row is another part of one batch, so that rows are augmented differently.
    positions = torch.arange(len(batch)) + label * wanted
    changed = augment(batch, positions).permute(0, 2, 3, 1).numpy()
    return [coloured(p) for pair in zip(plain, changed, strict=True) for p in pair]


def coloured(image: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "H W 3"]:
    """The first three channels, or the first alone where there are fewer."""
    three = image[..., :3] if image.shape[2] >= 3 else np.repeat(image[..., :1], 3, axis=2)
    return np.ascontiguousarray(three)


def _caption(dataset: Dataset, split: str, augmented: bool) -> str:
    height, width = dataset.image_size
    source = shown(Path(dataset.source).name)
    text = f"{source} · {split} · {height}×{width} · {dataset.fit}"
    if dataset.channels not in (1, 3):
        text += f" · {dataset.channels} channels, the first shown"
    return text + (" · each image and its augmented form" if augmented else "")


def _short(name: str, limit: int = 22) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"


def label_font(size: int) -> FreeTypeFont:
    """DejaVu Sans, which has the letters of many alphabets; `data/bundled` holds it."""
    font = files("smallvit.data") / "bundled" / "DejaVuSans.ttf"
    return truetype(BytesIO(font.read_bytes()), size)
