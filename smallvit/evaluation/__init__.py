"""What a model is worth: numbers of its answers, each with how sure it is.

`logits_of` runs a model, `measure` makes an `Evaluation` of its logits. Importing this needs numpy
alone.
"""

from smallvit.evaluation.calibration import fit_temperature, flip_average
from smallvit.evaluation.intervals import Estimate
from smallvit.evaluation.measure import logits_of, measure
from smallvit.evaluation.results import Answers, ClassResult, ConfidenceBin, Evaluation

__all__ = [
    "Answers",
    "ClassResult",
    "ConfidenceBin",
    "Estimate",
    "Evaluation",
    "fit_temperature",
    "flip_average",
    "logits_of",
    "measure",
]
