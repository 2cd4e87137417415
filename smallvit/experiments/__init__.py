"""Many runs, one answer: `compare`, `ablate`, `curve` and `reproduce`, all through one engine.

A function such as `compare_set` says what is to be trained, `begin` writes that down, `conduct`
trains what is missing, `conclude` says what was found.
"""

from smallvit.experiments.ablate import ablate_set
from smallvit.experiments.compare import compare_set
from smallvit.experiments.conclusions import conclude
from smallvit.experiments.curve import curve_set
from smallvit.experiments.engine import Member, Outcome, RunSet, begin, conduct, read_outcomes
from smallvit.experiments.reproduce import reproduce_set

__all__ = [
    "Member",
    "Outcome",
    "RunSet",
    "ablate_set",
    "begin",
    "compare_set",
    "conclude",
    "conduct",
    "curve_set",
    "read_outcomes",
    "reproduce_set",
]
