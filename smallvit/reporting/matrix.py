"""The confusion matrix as it is drawn, classes that are confused next to each other."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int

from smallvit.evaluation.results import Evaluation, largest_confusions
from smallvit.text import shown

COMPLETE = 40
"""Most classes of which all are drawn."""

REDUCED = 24
"""Most classes that are drawn where there are more."""

LEVELS = 9


class Cell(NamedTuple):
    """One pair of classes.

    Attributes:
        images: How many.
        level: How dark it is, by the share of the true class; 0 where there are none.
        description: The same in words.
        right: Whether it is on the diagonal.
    """

    images: int
    level: int
    description: str
    right: bool


class Row(NamedTuple):
    """A true class: its name, images, cells, and predictions whose columns are not drawn."""

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
        complete: Whether all classes are drawn.
    """

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    complete: bool


def draw_matrix(evaluation: Evaluation) -> Matrix:
    """All classes, or the most confused of many, confused classes next to each other."""
    counts = np.array(evaluation.confusion)
    complete = len(evaluation.classes) <= COMPLETE
    chosen = list(range(len(evaluation.classes))) if complete else _most_confused(evaluation)
    order = [chosen[index] for index in order_classes(counts[np.ix_(chosen, chosen)])]
    names = [shown(evaluation.classes[index]) for index in order]
    rows = []
    for truth, name in zip(order, names, strict=True):
        support = evaluation.per_class[truth].support
        cells = []
        for predicted, other in zip(order, names, strict=True):
            count = int(counts[truth, predicted])
            description = f"{count:,} of {support:,} {name} predicted as {other}"
            # The square root separates one image from none and few from many.
            level = math.ceil(LEVELS * math.sqrt(count / support)) if count else 0
            cells.append(Cell(count, level, description, truth == predicted))
        rows.append(Row(name, support, tuple(cells), support - sum(cell.images for cell in cells)))
    return Matrix(tuple(names), tuple(rows), complete)


def _most_confused(evaluation: Evaluation) -> list[int]:
    """Classes of the largest confusions, as many as can be drawn."""
    number = {name: index for index, name in enumerate(evaluation.classes)}
    chosen: dict[int, None] = {}
    for pair in largest_confusions(evaluation, len(evaluation.classes) ** 2):
        both = {number[pair.truth]: None, number[pair.predicted]: None}
        if len(chosen | both) > REDUCED:
            break
        chosen |= both
    return sorted(chosen) or list(range(REDUCED))


def order_classes(confusion: Int[np.ndarray, "K K"]) -> list[int]:
    """An order of the classes in which those that are confused are next to each other.

    Classes are joined pairwise, the most confused first (average linkage on the share of images
    that go either way). Each group is a row; two rows are joined at the ends that are confused
    most. Where nothing is confused the order stays as it is.
    """
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    likeness = np.asarray(shares + shares.T)
    np.fill_diagonal(likeness, 0)
    rows = [[index] for index in range(len(confusion))]
    between = likeness.copy()
    np.fill_diagonal(between, -1)
    while len(rows) > 1:
        first, second = sorted(divmod(int(between.argmax()), len(rows)))
        if between[first, second] <= 0:
            break
        left, right = len(rows[first]), len(rows[second])
        mixed = (left * between[first] + right * between[second]) / (left + right)
        rows[first] = _joined(rows[first], rows[second], likeness)
        between[first], between[:, first] = mixed, mixed
        between[first, first] = -1
        between = np.delete(np.delete(between, second, 0), second, 1)
        del rows[second]
    return [index for row in rows for index in row]


def _joined(left: list[int], right: list[int], likeness: Float64[np.ndarray, "K K"]) -> list[int]:
    """Two rows as one, reversed where needed so that the ends that meet are most alike."""
    ways = [(a, b) for a in (left, left[::-1]) for b in (right, right[::-1])]
    best = max(ways, key=lambda way: likeness[way[0][-1], way[1][0]])
    return best[0] + best[1]
