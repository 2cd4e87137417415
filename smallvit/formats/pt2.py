"""pt2: a graph with its preprocessing, for `torch.export.load`.

Opening such a file can run code that somebody put into it: sizes and conditions on them are source
code that torch evaluates, and weights, constants and sample inputs may be pickles or compiled
libraries. What `write` writes holds none of these but the formulas of sizes. `load` is for files
that are trusted; `smallvit.formats.check_trust` refuses the others.
"""

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import nn

from smallvit.devices import choose_device
from smallvit.files import write_bytes
from smallvit.formats.loaded import Loaded, coloured
from smallvit.formats.shipped import Check, Shipped, outputs_of, traced
from smallvit.runs.card import KEY, Card

_CARD = f"{KEY}.json"
"""The card's file inside the archive."""

_CARD_BYTES = 50_000_000
"""What a card may have at most: a small archive can unpack to any size."""


def write(path: Path, card: Card, model: nn.Module, check: Check) -> None:
    """Writes the graph, the card beside it in the archive."""
    memory = io.BytesIO()
    program = traced(Shipped(model, card))
    program.example_inputs = None  # they would be a pickle
    torch.export.save(program, memory, extra_files={_CARD: card.to_json()})
    check(outputs_of(torch.export.load(io.BytesIO(memory.getvalue())).module()))
    write_bytes(path, memory.getvalue())


def load(path: Path, device: str) -> Loaded:
    """Opens the graph in PyTorch, which can run code: for trusted files only."""
    card, chosen = read_card(path), choose_device(device)
    written, here = card.versions.get("torch", "0"), torch.__version__
    if _release(written) > _release(here):
        raise ValueError(
            f"{path} was exported with torch {written} and this is torch {here}: a .pt2 file is "
            "read by the same or a newer version; upgrade torch, or export the run again with "
            "this one"
        )
    try:
        program = torch.export.load(path)
    except Exception as error:  # pylint: disable=broad-exception-caught
        # Whatever a damaged archive meets first is raised: zip, JSON, schema…
        raise _damaged(path, error) from error
    if chosen.type != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, chosen)
    module = program.module()

    def forward(pixels: UInt8[np.ndarray, "B h w C"]) -> Float32[np.ndarray, "B K"]:
        images = torch.from_numpy(np.array(coloured(pixels))).to(chosen)
        with torch.no_grad():
            logits: Float32[np.ndarray, "B K"] = module(images)[0].cpu().numpy()
        return logits

    return card, forward, None


def read_card(path: Path) -> Card:
    """The card in the archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [item for item in archive.infolist() if item.filename.endswith(f"/{_CARD}")]
            if names and names[0].file_size > _CARD_BYTES:
                raise ValueError(f"its {_CARD} has {names[0].file_size:,} bytes")
            text = archive.read(names[0]).decode() if names else None
    # The last is raised for members that are encrypted or compressed in another way.
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, RuntimeError) as error:
        raise _damaged(path, error) from error
    return Card.from_json(text, str(path))


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is damaged or not a .pt2 file: {error}")


def _release(version: str) -> tuple[int, ...]:
    """Major and minor number."""
    return tuple(int(part) for part in version.split(".")[:2])
