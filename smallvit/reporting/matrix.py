"""The confusion matrix as it is drawn."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smallvit.evaluation.confusions import largest_confusions, order_classes
from smallvit.evaluation.results import Evaluation
from smallvit.text import shown

WHOLE = 40
"""Most classes of which all are drawn."""

REDUCED = 24
"""Most classes that are drawn where there are more."""

LEVELS = 9


class Cell(NamedTuple):
    """One pair of classes.

    Attributes:
        images: How many.
        level: How dark it is, by the share of the true class; 0 where there are none.
        told: The same in words.
        right: Whether it is on the diagonal.
    """

    images: int
    level: int
    told: str
    right: bool


class Row(NamedTuple):
    """A true class: its name, images, cells, and answers that are not drawn."""

    name: str
    support: int
    cells: tuple[Cell, ...]
    elsewhere: int


@dataclass(frozen=True)
class Matrix:
    """What is drawn.

    Attributes:
        names: Of the columns.
        rows: In the same order.
        whole: Whether all classes are there.
    """

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    whole: bool


def draw_matrix(found: Evaluation) -> Matrix:
    """All classes, or the most confused of many, in an order that shows confusions together."""
    counts = np.array(found.confusion)
    whole = len(found.classes) <= WHOLE
    chosen = list(range(len(found.classes))) if whole else _most_confused(found)
    places = [chosen[place] for place in order_classes(counts[np.ix_(chosen, chosen)])]
    names = [shown(found.classes[place]) for place in places]
    rows = []
    for truth, name in zip(places, names, strict=True):
        support = found.per_class[truth].support
        cells = []
        for answer, other in zip(places, names, strict=True):
            count = int(counts[truth, answer])
            told = f"{count:,} of {support:,} {name} taken for {other}"
            cells.append(Cell(count, _level(count, support), told, truth == answer))
        rows.append(Row(name, support, tuple(cells), support - sum(cell.images for cell in cells)))
    return Matrix(tuple(names), tuple(rows), whole)


def _most_confused(found: Evaluation) -> list[int]:
    """Classes of the largest confusions, as many as can be drawn."""
    number = {name: place for place, name in enumerate(found.classes)}
    chosen: dict[int, None] = {}
    for pair in largest_confusions(found, len(found.classes) ** 2):
        both = {number[pair.truth]: None, number[pair.answer]: None}
        if len(chosen | both) > REDUCED:
            break
        chosen |= both
    return sorted(chosen) or list(range(REDUCED))


def _level(count: int, support: int) -> int:
    # The root tells one image from none and few from many.
    return math.ceil(LEVELS * math.sqrt(count / support)) if count else 0
