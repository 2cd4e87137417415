"""An image file to its predictions: everything that runs in the model's thread."""

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


def predict_file(
    predictor: Predictor, data: bytes, *, top: int, explain: bool, pixels: int
) -> dict[str, Any]:
    """The predictions for an image file, as the JSON that is sent.

    Args:
        predictor: The model.
        data: The bytes of the file.
        top: How many classes to name.
        explain: Whether to add a map of where the model looked.
        pixels: Images of more pixels are not decoded.

    Raises:
        RefusedError: It is not an image, damaged, or too large.
    """
    started = time.perf_counter()
    try:
        image = decode(data, pixels)
        prepared = predictor.card.prepare(image)
    except NoImageError as error:
        raise RefusedError(415, f"This is not an image that can be read: {error}.") from error
    except TooManyPixelsError as error:
        raise RefusedError(413, f"The image is too large: {error}.") from error
    except UnreadableError as error:
        raise RefusedError(422, f"The image cannot be read: {error}.") from error
    except MemoryError:
        raise RefusedError(413, "There is not enough memory for an image so large.") from None
    logits = predictor.logits_of_prepared(prepared[None])
    probabilities = predictor.card.probabilities(logits)[0]
    order = np.argsort(-probabilities, kind="stable")[:top]
    map_ = None
    if explain and predictor.model is not None:
        map_ = _map(predictor, predictor.model, image, prepared)
    return {
        "model": predictor.card.model.get("name"),
        "classes": [
            {"name": predictor.classes[k], "probability": float(probabilities[k])} for k in order
        ],
        "map": map_,
        "milliseconds": round(1e3 * (time.perf_counter() - started), 1),
    }


def _map(
    predictor: Predictor,
    model: "nn.Module",
    image: Decoded,
    prepared: UInt8[np.ndarray, "h w C"],
) -> dict[str, str] | None:
    """Where the model looked or, where attention shows no place, what supports its prediction."""
    import torch

    from smallvit.explaining.explain import explain, look, scaled
    from smallvit.explaining.overlays import overlay
    from smallvit.explaining.probes import why_silent

    device = next(model.parameters()).device
    batch = torch.from_numpy(prepared.copy()).permute(2, 0, 1)[None].to(device)
    images = predictor.card.normalise(batch)
    try:
        shares = look(model, images).shares
        maps = None if shares is None else scaled(shares.places)
        note = "" if maps is None else why_silent(model, predictor.card.image_size, maps)[0]
        kind = "gradient" if maps is None or note else "attention"
        heat = explain(model, images).gradient[0] if maps is None or note else maps[0]
    except ValueError:  # a model of a shape that cannot be explained still predicts
        return None
    file = io.BytesIO()
    Image.fromarray(overlay(*_visible_part(predictor, image, heat))).save(file, "PNG")
    uri = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"kind": kind, "image": uri, "note": note}


def _visible_part(
    predictor: Predictor, image: Decoded, heat: Float[np.ndarray, "h w"]
) -> tuple[UInt8[np.ndarray, "_H _W 3"], Float[np.ndarray, "_h _w"]]:
    """The part of an image that the model sees, large enough to look at, and the heat on it."""
    from smallvit.data.previews import coloured

    original, card = Image.fromarray(coloured(as_array(image))), predictor.card
    placed = place(original.height, original.width, card.image_size, card.fit)
    top, left, height, width = placed.seen(card.image_size)
    part = original.crop((left, top, left + width, top + height))
    part.thumbnail((_LARGEST, _LARGEST))
    # Each pixel of a tiny image stays a square.
    times = -(-_SMALLEST // max(part.size))
    enlarged = np.asarray(part).repeat(times, 0).repeat(times, 1)
    # The bars of a letterbox are on the model's canvas and not in the image.
    size = card.image_size[1], card.image_size[0]
    canvas = np.asarray(
        Image.fromarray(heat.astype(np.float32)).resize(size, Image.Resampling.BILINEAR)
    )
    first = [max(offset, 0) for offset in placed.offset]
    rows, columns = map(slice, first, map(sum, zip(first, placed.inner, strict=True)))
    return enlarged, canvas[rows, columns]
