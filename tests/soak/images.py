"""Mutated images: decoded to what fits a model, or refused with a reason."""

import io
import logging
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from smallvit.data import UnreadableError, fit_image, read_image, to_channels
from tests.soak.result import Result, is_flat, memory_of

_MODES = {
    "png": ("RGB", "L", "P", "RGBA", "LA", "1", "I;16"),
    "jpeg": ("RGB", "L", "CMYK"),
    "gif": ("P", "L"),
    "bmp": ("RGB", "L", "1"),
    "tiff": ("RGB", "L", "RGBA", "CMYK", "I;16", "F"),
    "webp": ("RGB", "RGBA"),
    "ppm": ("RGB", "L"),
}


def image_seeds() -> list[bytes]:
    """One small image in each format and mode."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    seeds = []
    for kind, modes in _MODES.items():
        for mode in modes:
            if mode in ("I;16", "F"):
                image = Image.fromarray(
                    pixels[..., 0].astype(np.uint16 if mode[0] == "I" else "f4")
                )
            else:
                image = Image.fromarray(pixels).convert(mode)
            file = io.BytesIO()
            image.save(file, kind)
            seeds.append(file.getvalue())
    return seeds


def mutated_image(draw: random.Random, seeds: list[bytes]) -> bytes:
    """Bytes replaced, runs of them zeroed or doubled, headers more often, and ends cut off."""
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.choice([1, 1, 2, 5])):
        place = draw.randrange(min(len(data), 80) if draw.random() < 0.3 else len(data))
        way = draw.randrange(4)
        if way < 2:
            data[place] = draw.randrange(256)
        elif way == 2:
            data[place : place + 4] = draw.choice([bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff"])
        else:
            data[place:place] = data[place : place + draw.randrange(1, 64)]
    return bytes(data[: draw.randrange(1, len(data))] if draw.random() < 0.2 else data)


def soak_images(count: int, folder: Path, seed: int = 0) -> Result:
    """Each through the door that predictions take."""
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # as `smallvit serve` does
    draw, seeds, result, refused = random.Random(seed), image_seeds(), Result(), 0
    for data in seeds:
        with suppress(UnreadableError):  # formats that are refused are mutated too
            read_image(data)
    megabytes = [memory_of()]
    for number in range(count):
        try:
            image = read_image(mutated_image(draw, seeds))
            channels = 1 if image.shape[2] == 1 else 3
            fitted = fit_image(to_channels(image, channels), (16, 16))
            result.expect(fitted.shape == (16, 16, channels), f"{number}: {fitted.shape}")
        except UnreadableError as error:
            refused += 1
            result.expect(str(error).strip(), f"{number}: refused without a reason")
        except BaseException as error:
            result.broken.append(f"{number}: {error!r:.300}")
        result.tried += 1
        if number == count // 2:
            megabytes.append(memory_of())
    megabytes.append(memory_of())
    result.expect(is_flat(megabytes), f"memory {megabytes}")
    shown = " → ".join(f"{each:.0f}" for each in megabytes)
    result.note = f"{len(seeds)} formats and modes, {refused:,} refused, memory {shown} MB"
    return result
