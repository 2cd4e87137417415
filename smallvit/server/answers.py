"""An image file to the answer that is sent: everything that runs in the model's thread."""

import base64
import io
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from smallvit.data.fit import place
from smallvit.data.images import (
    Decoded,
    NoImageError,
    TooManyPixelsError,
    UnreadableError,
    as_array,
    decode,
)
from smallvit.inference import Predictor
from smallvit.server.limits import RefusedError

if TYPE_CHECKING:
    from torch import nn

_LARGEST, _SMALLEST = 512, 256
"""Longest side of a map, at most and at least."""


def answer(
    predictor: Predictor, data: bytes, *, top: int, explained: bool, pixels: int
) -> dict[str, Any]:
    """What the model says of an image file, as plain data.

    Args:
        predictor: The model.
        data: The bytes of the file.
        top: How many classes to name.
        explained: Whether to add where the model looked.
        pixels: The most that are decoded.

    Raises:
        RefusedError: It is no image, damaged, or too large.
    """
    started = time.perf_counter()
    try:
        image = decode(data, pixels)
        seen = predictor.card.prepare(image)
    except NoImageError as error:
        raise RefusedError(415, f"This is no image that can be read: {error}.") from error
    except TooManyPixelsError as error:
        raise RefusedError(413, f"The image is too large: {error}.") from error
    except UnreadableError as error:
        raise RefusedError(422, f"The image cannot be read: {error}.") from error
    except MemoryError:
        raise RefusedError(413, "There is not enough memory for an image so large.") from None
    shares = predictor.card.probabilities(predictor.logits_of_prepared(seen[None]))[0]
    order = np.argsort(-shares, kind="stable")[:top]
    found: dict[str, Any] = {
        "model": predictor.card.model.get("name"),
        "classes": [{"name": predictor.classes[k], "probability": float(shares[k])} for k in order],
        "map": None,
    }
    if explained and predictor.model is not None:
        found["map"] = _map(predictor, predictor.model, image, seen)
    found["milliseconds"] = round(1e3 * (time.perf_counter() - started), 1)
    return found


def _map(
    predictor: Predictor,
    model: "nn.Module",
    image: Decoded,
    seen: UInt8[np.ndarray, "h w C"],
) -> dict[str, str] | None:
    """Where the model looked, or what spoke for its answer where there is no attention."""
    import torch

    from smallvit.explaining.explain import explain, look, scaled
    from smallvit.explaining.overlays import overlay

    device = next(model.parameters()).device
    batch = torch.from_numpy(seen.copy()).permute(2, 0, 1)[None].to(device)
    images = predictor.card.normalise(batch)
    try:
        shares = look(model, images).shares
        kind = "gradient" if shares is None else "attention"
        heat = explain(model, images).gradient[0] if shares is None else scaled(shares.places)[0]
    except ValueError:  # a model of a shape that cannot be explained still predicts
        return None
    shown, part = _shown(predictor, image, heat)
    file = io.BytesIO()
    Image.fromarray(overlay(shown, part)).save(file, "PNG")
    uri = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"kind": kind, "image": uri}


def _shown(
    predictor: Predictor, image: Decoded, heat: Float[np.ndarray, "h w"]
) -> tuple[UInt8[np.ndarray, "H W 3"], Float[np.ndarray, "_h _w"]]:
    """The part of an image that the model sees, large enough to look at, and the heat on it."""
    from smallvit.data.previews import coloured

    whole = Image.fromarray(coloured(as_array(image)))
    card = predictor.card
    box, inner, offset = place(whole.height, whole.width, card.image_size, card.fit)
    top, left, height, width = box
    seen = whole.crop((left, top, left + width, top + height))
    seen.thumbnail((_LARGEST, _LARGEST))
    # Each pixel of a tiny image stays a square.
    times = -(-_SMALLEST // max(seen.size))
    large = np.asarray(seen).repeat(times, 0).repeat(times, 1)
    # The bars of a letterbox are on the model's canvas and not in the image.
    size = card.image_size[1], card.image_size[0]
    canvas = np.asarray(
        Image.fromarray(heat.astype(np.float32)).resize(size, Image.Resampling.BILINEAR)
    )
    rows, columns = slice(offset[0], offset[0] + inner[0]), slice(offset[1], offset[1] + inner[1])
    return large, canvas[rows, columns]
