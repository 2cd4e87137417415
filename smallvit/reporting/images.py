"""Which images a page shows, and how they become text for it."""

import base64
import io
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from PIL import Image

from smallvit.data.previews import coloured
from smallvit.evaluation import Predictions

SIDE = 144
"""Longest side of an image in the page; larger ones are made smaller."""

SURE = 0.9
"""Least probability of a prediction that may contradict a label."""

_TINY = 64
_LARGEST = 128


class Suspect(NamedTuple):
    """An image whose label may be wrong.

    Attributes:
        image: Its index.
        predicted: The class that the model predicts.
        confidence: The probability of that class.
        label: The probability of the class it is labelled with.
    """

    image: int
    predicted: int
    confidence: float
    label: float


def _by_confidence(predictions: Predictions, *, right: bool) -> list[int]:
    """Indices of the right or the wrong predictions, the most confident first."""
    pairs = zip(predictions.truth, predictions.predicted, strict=True)
    chosen = [index for index, (truth, guess) in enumerate(pairs) if (truth == guess) == right]
    return sorted(chosen, key=lambda index: -predictions.confidence[index])


def confident_mistakes(predictions: Predictions, limit: int) -> list[int]:
    """Indices of the most confident wrong predictions."""
    return _by_confidence(predictions, right=False)[:limit]


def right_and_wrong(predictions: Predictions, limit: int) -> tuple[list[int], list[int]]:
    """Indices of confident right and wrong predictions, of as many classes as possible."""
    right, wrong = (_by_confidence(predictions, right=each) for each in (True, False))
    truth = predictions.truth
    return _take_turns(right, truth)[:limit], _take_turns(wrong, truth)[:limit]


def _take_turns(indices: list[int], truth: tuple[int, ...]) -> list[int]:
    """The first of each class, then the second of each, and so on."""
    seen: dict[int, int] = {}
    turns = []
    for rank, index in enumerate(indices):
        turn = seen[truth[index]] = seen.get(truth[index], -1) + 1
        turns.append((turn, rank, index))
    return [index for _, _, index in sorted(turns)]


def find_suspects(
    probabilities: Float64[np.ndarray, "N K"], labels: Int64[np.ndarray, " N"]
) -> list[Suspect]:
    """Images that the model predicts as another class as confidently as that class's own images.

    The threshold of a class is the mean probability that images labelled with it get for it, and
    at least SURE (after Northcutt et al., Confident Learning, 2021). The images must be held out:
    a model repeats the wrong labels of the images it was trained on.

    Returns:
        The strongest contradiction first.
    """
    predicted = probabilities.argmax(1)
    of_label = probabilities[np.arange(len(labels)), labels]
    count = np.bincount(labels, minlength=probabilities.shape[1])
    usual = np.bincount(labels, of_label, probabilities.shape[1]) / np.maximum(count, 1)
    threshold = np.maximum(usual, SURE)
    confidence = probabilities.max(1)
    chosen = np.flatnonzero((predicted != labels) & (confidence >= threshold[predicted]))
    suspects = [
        Suspect(i, int(predicted[i]), float(confidence[i]), float(of_label[i]))
        for i in chosen.tolist()
    ]
    return sorted(suspects, key=lambda each: each.label - each.confidence)


def data_uri(image: UInt8[np.ndarray, "H W C"]) -> str:
    """An image as text for an src attribute; tiny ones keep every pixel."""
    thumbnail = Image.fromarray(coloured(image))
    tiny = max(thumbnail.size) <= _TINY
    if not tiny:
        thumbnail.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    kind = "PNG" if tiny else "WEBP"
    thumbnail.save(file, kind, optimize=True) if tiny else thumbnail.save(file, kind, quality=75)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def enlarged(image: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "h w 3"]:
    """A whole number of times as large, so that a map over it is smooth; always in colour."""
    times = max(1, _LARGEST // max(image.shape[:2]))
    return np.asarray(coloured(image).repeat(times, 0).repeat(times, 1))
