"""What a model is worth: numbers of its answers, each with how sure it is.

`logits_of` asks a model, `measure` makes an `Evaluation` of what it says, and `evaluate` does both
for a run. Importing this needs numpy alone.
"""

from smallvit.evaluation.calibration import fit_temperature
from smallvit.evaluation.evaluate import choose_device, evaluate, logits_of, measure
from smallvit.evaluation.intervals import Estimate
from smallvit.evaluation.results import Answers, ClassResult, ConfidenceBin, Evaluation

__all__ = [
    "Answers",
    "ClassResult",
    "ConfidenceBin",
    "Estimate",
    "Evaluation",
    "choose_device",
    "evaluate",
    "fit_temperature",
    "logits_of",
    "measure",
]
