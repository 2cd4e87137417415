"""Which images are worth a look: pure functions of what was answered."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from smallvit.evaluation.results import Answers

SURE = 0.9
"""Least probability of an answer that may contradict a label."""


class Suspect(NamedTuple):
    """An image whose label may be wrong.

    Attributes:
        place: Of the image.
        answer: The class that the model takes it for.
        confidence: The probability of that class.
        label: The probability of the class it is labelled with.
    """

    place: int
    answer: int
    confidence: float
    label: float


def confident_mistakes(answers: Answers, limit: int) -> list[int]:
    """Places of the wrong answers that the model was surest of."""
    wrong = [
        place
        for place, (truth, answer) in enumerate(zip(answers.truth, answers.predicted, strict=True))
        if truth != answer
    ]
    return sorted(wrong, key=lambda place: -answers.confidence[place])[:limit]


def right_and_wrong(answers: Answers, each: int) -> tuple[list[int], list[int]]:
    """Sure answers that are right and that are wrong, of as many classes as possible."""
    order = sorted(range(len(answers.truth)), key=lambda place: -answers.confidence[place])
    right = [place for place in order if answers.truth[place] == answers.predicted[place]]
    wrong = [place for place in order if answers.truth[place] != answers.predicted[place]]
    return _spread(right, answers.truth, each), _spread(wrong, answers.truth, each)


def _spread(places: list[int], truth: tuple[int, ...], limit: int) -> list[int]:
    """The first of each class, then the second of each, and so on."""
    seen: dict[int, int] = {}
    turns = []
    for rank, place in enumerate(places):
        turn = seen[truth[place]] = seen.get(truth[place], -1) + 1
        turns.append((turn, rank, place))
    return [place for _, _, place in sorted(turns)[:limit]]


def find_suspects(
    probabilities: Float64[np.ndarray, "N K"], labels: Int64[np.ndarray, " N"]
) -> list[Suspect]:
    """Images that the model takes for another class as surely as it takes that class's own.

    The bar of a class is the mean probability that images labelled with it get for it, and at
    least SURE (after Northcutt et al., Confident Learning, 2021). The images must be held out:
    of those it was trained on, a model repeats wrong labels.

    Returns:
        The strongest contradiction first.
    """
    answers = probabilities.argmax(1)
    own = probabilities[np.arange(len(labels)), labels]
    count = np.bincount(labels, minlength=probabilities.shape[1])
    usual = np.bincount(labels, own, probabilities.shape[1]) / np.maximum(count, 1)
    bar = np.maximum(usual, SURE)
    sure = probabilities.max(1)
    places = np.flatnonzero((answers != labels) & (sure >= bar[answers]))
    found = [
        Suspect(int(i), int(answers[i]), float(sure[i]), float(own[i])) for i in places.tolist()
    ]
    return sorted(found, key=lambda each: each.label - each.confidence)
