"""Runs that were never trained but answer differently to different images, and photographs."""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from smallvit.data import fit_image
from smallvit.evaluation import logits_of
from smallvit.models.build import describe
from smallvit.runs import Run, RunConfig
from tests.models.shrunk import shrunk

CLASSES = ("ash", "=elm", "fir", "oak")


def photo(seed: int) -> Image.Image:
    """Something smooth and coloured with a little noise, of a size of its own."""
    random = np.random.default_rng(seed)
    height, width = (int(side) for side in random.integers(24, 200, 2))
    coarse = Image.fromarray(random.integers(0, 256, (4, 5, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    noise = random.integers(-8, 9, smooth.shape)
    return Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8))


def photo_bytes(seed: int, kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    photo(seed).save(file, kind)
    return file.getvalue()


def mutated(seed: int) -> bytes:
    """An image file with some of its bytes changed, cut out, doubled or cut off."""
    random = np.random.default_rng(seed)
    kinds = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
    data = bytearray(photo_bytes(seed, kinds[seed % len(kinds)]))
    for _ in range(int(random.integers(1, 12))):
        at = int(random.integers(0, min(len(data), 400 if random.random() < 0.5 else len(data))))
        way = random.integers(0, 4)
        if way == 0:
            data[at] = int(random.integers(0, 256))
        elif way == 1:
            data[at : at + int(random.integers(1, 9))] = random.bytes(int(random.integers(0, 9)))
        elif way == 2:
            data[at:at] = data[at : at + 64]
        elif len(data) > 200 and random.random() < 0.3:
            del data[max(at, 100) :]
    return bytes(data)


def save_photos(folder: Path, count: int) -> Path:
    """Class folders of JPEGs, in equal numbers."""
    for seed in range(count):
        name = CLASSES[seed % len(CLASSES)]
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{seed:04d}.jpg").write_bytes(photo_bytes(seed))
    return folder


def untrained(
    folder: Path,
    name: str = "cct_2_3x2",
    *,
    channels: int = 3,
    fit: str = "letterbox",
    data: dict | None = None,
    source: str = "/nowhere",
    sharpness: float = 1.0,
) -> Run:
    """A run of a shrunken model; without the record of a dataset its data cannot be found.

    Its attention is about even; a sharpness of 30 has it look somewhere.
    """
    torch.manual_seed(0)
    model = shrunk(name, num_classes=len(CLASSES), in_channels=channels).eval()
    torch.nn.init.normal_(model.head.weight)
    sharpen(model, sharpness)
    mean, std = (0.4, 0.5, 0.6, 0.5, 0.5)[:channels], (0.2, 0.25, 0.3, 0.2, 0.3)[:channels]
    _spread_answers(model, channels, mean, std)
    info = {
        "smallvit": "0.1.0",
        "torch": torch.__version__,
        "status": "finished",
        "steps": 7,
        "data": data
        or {
            "classes": list(CLASSES),
            "image_size": list(model.config.image_size),
            "channels": channels,
            "fit": fit,
        },
        "mean": list(mean),
        "std": list(std),
        "temperature": 1.7,
        "parameters": sum(p.numel() for p in model.parameters()),
        "model": describe(model),
    }
    run = Run.create(folder, RunConfig.from_dict({"data": {"source": source, "fit": fit}}), info)
    save_file(model.state_dict(), run.folder / "weights.safetensors")
    return run


def sharpen(model, factor: float) -> None:
    """Has attention look somewhere; a factor of 0 has it look everywhere alike."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("qkv.weight"):
                weight[: 2 * len(weight) // 3] *= factor


def _spread_answers(model, channels: int, mean: tuple, std: tuple) -> None:
    """Moves the head's bias so that no class wins everywhere."""
    size = model.config.image_size
    fitted = [fit_image(photo(seed), size)[..., np.arange(channels) % 3] for seed in range(16)]
    logits = logits_of(model, np.stack(fitted).transpose(0, 3, 1, 2), mean=mean, std=std)
    with torch.no_grad():
        model.head.bias -= torch.from_numpy(logits.mean(0))
