"""How good a model is: metrics of its predictions, each with a confidence interval.

`logits_of` runs a model, `measure` makes an `Evaluation` of its logits. Importing this needs numpy
alone.
"""

from smallvit.evaluation.calibration import ConfidenceBin, fit_temperature, flip_average
from smallvit.evaluation.intervals import Estimate
from smallvit.evaluation.measure import logits_of, measure
from smallvit.evaluation.metrics import METRICS, Metric
from smallvit.evaluation.results import (
    ClassResult,
    Evaluation,
    Predictions,
    pooled,
)

__all__ = [
    "METRICS",
    "ClassResult",
    "ConfidenceBin",
    "Estimate",
    "Evaluation",
    "Metric",
    "Predictions",
    "fit_temperature",
    "flip_average",
    "logits_of",
    "measure",
    "pooled",
]
