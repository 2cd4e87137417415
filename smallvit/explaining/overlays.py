"""Heat maps over images."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from smallvit.arguments import Share, checked, described
from smallvit.data.previews import coloured

# Viridis, from dark violet over green to yellow in even steps of lightness: it reads the same to a
# colour-blind eye and in grey.
_VIRIDIS = [
    *((68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141)),
    *((39, 173, 129), (92, 200, 99), (170, 220, 50), (253, 231, 37)),
]
_COLOURS = np.array(_VIRIDIS, np.float64)

_DIM = 0.8  # of the image below, so that the brightest colour is visible on white too


def colours(heat: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "h w 3"]:
    """The colour of each value from 0 to 1, on a scale of 0 to 255."""
    positions = np.linspace(0, 1, len(_COLOURS))
    return np.stack([np.interp(heat, positions, _COLOURS[:, c]) for c in range(3)], -1)


@checked
def overlay(
    image: UInt8[np.ndarray, "H W C"], heat: Float[np.ndarray, "h w"], strength: Share = 0.75
) -> UInt8[np.ndarray, "H W 3"]:
    """Lays a map over an image.

    The image below turns grey, so that colour means heat and nothing else, and is visible where
    there is little heat.

    Args:
        image: Grey or coloured; of more channels the first three are shown.
        heat: From 0 to 1, on any grid; it is enlarged bilinearly.
        strength: From 0, the image alone, to 1, the map alone.
    """
    shaped = image.ndim == 3 and heat.ndim == 2 and image.size and heat.size
    if not shaped or not np.isfinite(heat).all():
        raise ValueError(
            f"image is {described(image)} and heat {described(heat)}: expected are rows, columns "
            "and channels, and rows and columns of finite numbers"
        )
    height, width = image.shape[:2]
    small = Image.fromarray(heat.astype(np.float32))
    large = np.asarray(small.resize((width, height), Image.Resampling.BILINEAR))
    three = coloured(image)
    if strength == 0:
        return three
    heat = large.clip(0, 1)
    grey = _DIM * three.mean(2, keepdims=True)
    cover = strength * np.sqrt(heat)[..., None] if strength < 1 else 1.0
    mixed = (1 - cover) * grey + cover * colours(heat)
    return np.asarray(mixed.round(), np.uint8)
