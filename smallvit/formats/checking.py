"""Whether an exported file says what the model says, on real images."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from PIL import Image

from smallvit.data import load_data
from smallvit.data.images import as_array
from smallvit.formats.shipped import Shipped
from smallvit.runs.folder import Run

TOLERANCE = 1e-4
"""Of logits, where they are larger than 1 as a share of the largest; and of probabilities."""

_COUNT = 6
_SIDES = ((28, 28), (75, 50), (31, 97), (160, 224), (300, 200), (1, 40))

Answer = Callable[
    [UInt8[np.ndarray, "B H W C"]], tuple[Float32[np.ndarray, "B K"], Float32[np.ndarray, "B K"]]
]
"""An exported graph as a function: images to logits and probabilities."""


def check(answer: Answer, shipped: Shipped, run: Run, what: str) -> float:
    """Refuses an export that disagrees with the model.

    Args:
        answer: The exported graph.
        shipped: The module it was made from.
        run: Whose images are tried.
        what: What is refused, for the message.

    Returns:
        The largest difference.

    Raises:
        ValueError: Some answer differs.
    """
    worst = 0.0
    for images in samples(run, shipped.given):
        with torch.no_grad():
            expected = [part.numpy() for part in shipped(torch.from_numpy(images))]
        found = answer(images)
        for name, ours, theirs in zip(("logits", "probabilities"), expected, found, strict=True):
            scale = max(1.0, float(np.abs(ours).max()))
            same = ours.shape == theirs.shape and np.isfinite(theirs).all()
            apart = float(np.abs(ours - theirs).max()) / scale if same else float("inf")
            worst = max(worst, apart)
            if not apart <= TOLERANCE:
                shape = "×".join(map(str, images.shape))
                raise ValueError(
                    f"{what} was not written: on images of {shape} its {name} differ from the "
                    f"model's by {apart:.2g}, and {TOLERANCE:g} is allowed. This is a fault of the "
                    "exporter, not of your data; another --format may do"
                )
    return worst


def samples(run: Run, channels: int) -> Iterator[UInt8[np.ndarray, "B H W C"]]:
    """Batches of images of different sizes: some of the run's own, or else bundled ones."""
    try:
        images = _own(run, channels)
    except (ValueError, OSError):  # moved, changed or not to be read: other images do as well
        images = _bundled(channels)
    for image in images:
        yield image[None]
    first = images[0]
    yield np.stack([first, first[::-1], first[:, ::-1]])


def _own(run: Run, channels: int) -> list[UInt8[np.ndarray, "H W C"]]:
    dataset = run.dataset()
    items = list(dataset.splits.values())[-1]
    places = np.linspace(0, len(items) - 1, min(_COUNT, len(items))).astype(int)
    return [_in_channels(as_array(items.read(k, run.channels)), channels) for k in places]


def _bundled(channels: int) -> list[UInt8[np.ndarray, "H W C"]]:
    pixels = load_data("fashion-mini").pixels("test")
    resized = (
        Image.fromarray(np.array(image[0])).resize(size, Image.Resampling.BICUBIC)
        for image, size in zip(pixels, _SIDES, strict=False)
    )
    return [_in_channels(as_array(image), channels) for image in resized]


def _in_channels(image: UInt8[np.ndarray, "H W c"], channels: int) -> UInt8[np.ndarray, "H W C"]:
    """As many channels as asked for; copies of grey are shaded, so that none can be mixed up."""
    if image.shape[2] == channels:
        return np.array(image)
    shades = np.linspace(1, 0.5, channels)
    return (image[..., :1] * shades).astype(np.uint8)
