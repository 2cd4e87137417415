"""`export`: a run as a file for other programs, checked before it is written."""

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

import smallvit
from smallvit.arguments import checked
from smallvit.data import load_data
from smallvit.data.images import as_array
from smallvit.extras import require
from smallvit.formats import FORMATS, Format
from smallvit.formats.shipped import Outputs, Shipped, outputs_of
from smallvit.runs.folder import Run
from smallvit.training.objective import unlabelled

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Of logits, where they are larger than 1 as a share of the largest; and of probabilities."""

_COUNT = 6
_SIZES = ((28, 28), (75, 50), (31, 97), (160, 224), (300, 200), (1, 40))


@checked
def export(
    run: str | os.PathLike[str] | Run,
    out: str | os.PathLike[str] | None = None,
    *,
    format: str = "onnx",
    force: bool = False,
) -> Path:
    """Writes a run's model for other programs.

    The graphs of onnx and pt2 take decoded images: bytes, (batch, height, width, 3), a batch of
    any one size. They resize, normalise and calibrate, and return logits and probabilities. Beside
    an .onnx file a script of the same name shows how to use it.

    Args:
        run: The run folder.
        out: The file, or for timm the folder; model.FORMAT or timm in the run folder if left out.
        format: onnx; pt2, for `torch.export.load`; safetensors, the weights alone; or timm, a
            folder for `timm.create_model("local-dir:…", pretrained=True)`.
        force: Whether something that exists already is replaced.

    Returns:
        What was written.

    Raises:
        ValueError: It is not a run, the file exists, the format cannot hold the model, or the
            export disagrees with the model.
        ImportError: The format needs a package that is not installed.
    """
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}: allowed are {', '.join(FORMATS)}")
    record = FORMATS[format]
    for package in record.packages:
        require(package, record.extra, f"exporting to {format}")
    run = Run.open(run)
    default = run.folder / (f"model{record.suffix}" if record.suffix else format)
    path = Path(out) if out is not None else default
    _check_free(path, record, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    versions = {"smallvit": smallvit.__version__, "torch": torch.__version__}
    card = replace(run.card.measured(run.evaluation()), versions=versions)
    run.warn_of_rest()
    if reason := unlabelled(run.config, run.folder):
        logger.warning("%s", reason)
    model = run.model()
    shipped = Shipped(model, card).eval()

    def checked(outputs: Outputs) -> None:
        worst = check(outputs, shipped, run, str(path))
        logger.info("%s agrees with the model to %.1g", path, worst)

    record.code.write(path, card, model, checked)
    return path


def _check_free(path: Path, record: Format, force: bool) -> None:
    """Refuses a name that the format cannot have, or that is taken."""
    if record.suffix and path.suffix.lower() != record.suffix:
        raise ValueError(f"{path} must end with {record.suffix} for this format")
    for each in [path, path.with_suffix(".py")] if record.script else [path]:
        if each.exists() and not force:
            raise ValueError(
                f"{each} exists and is not overwritten: choose another name, or --force"
            )
    if path.exists() and path.is_dir() == bool(record.suffix):
        kind = "a folder" if path.is_dir() else "a file"
        raise ValueError(f"{path} is {kind}: choose another name")


def check(outputs: Outputs, shipped: Shipped, run: Run, what: str) -> float:
    """Compares an export with the module it was made from, on real images of the run.

    Returns:
        The largest difference.

    Raises:
        ValueError: An output differs by more than the tolerance; `what` was not written.
    """
    worst = 0.0
    for images in samples(run, shipped.input_channels):
        pairs = zip(outputs_of(shipped)(images), outputs(images), strict=True)
        for name, (expected, actual) in zip(("logits", "probabilities"), pairs, strict=True):
            scale = max(1.0, float(np.abs(expected).max()))
            usable = expected.shape == actual.shape and np.isfinite(actual).all()
            apart = float(np.abs(expected - actual).max()) / scale if usable else float("inf")
            worst = max(worst, apart)
            if not apart <= TOLERANCE:
                shape = "×".join(map(str, images.shape))
                raise ValueError(
                    f"{what} was not written: on images of {shape} its {name} differ from the "
                    f"model's by {apart:.2g}, and {TOLERANCE:g} is allowed. This is a fault of the "
                    "exporter, not of your data; another --format may work"
                )
    return worst


def samples(run: Run, channels: int) -> Iterator[UInt8[np.ndarray, "B H W C"]]:
    """Batches of images of different sizes: some of the run's data, or else bundled ones."""
    try:
        images = _from_run(run, channels)
    except (ValueError, OSError):  # moved, changed or not readable: other images do as well
        images = _bundled(channels)
    for image in images:
        yield image[None]
    first = images[0]
    yield np.stack([first, first[::-1], first[:, ::-1]])


def _from_run(run: Run, channels: int) -> list[UInt8[np.ndarray, "H W C"]]:
    items = list(run.dataset().splits.values())[-1]
    numbers = np.linspace(0, len(items) - 1, min(_COUNT, len(items))).astype(int)
    decoded = (as_array(items.read(number, run.card.channels)) for number in numbers)
    return [_in_channels(image, channels) for image in decoded]


def _bundled(channels: int) -> list[UInt8[np.ndarray, "H W C"]]:
    pixels = load_data("fashion-mini").pixels("test")
    resized = (
        Image.fromarray(np.array(image[0])).resize(size, Image.Resampling.BICUBIC)
        for image, size in zip(pixels, _SIZES, strict=False)
    )
    return [_in_channels(as_array(image), channels) for image in resized]


def _in_channels(image: UInt8[np.ndarray, "H W c"], channels: int) -> UInt8[np.ndarray, "H W C"]:
    """As many channels as needed; copies of grey are shaded, so that none can be mixed up."""
    if image.shape[2] == channels:
        return np.array(image)
    shades = np.linspace(1, 0.5, channels)
    return (image[..., :1] * shades).astype(np.uint8)
