"""Vision transformers that learn from small datasets.

Public names load on first use: importing smallvit imports nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smallvit.data import audit, load_data
    from smallvit.evaluation import Evaluation
    from smallvit.explaining.explain import explain
    from smallvit.formats import export
    from smallvit.inference import predict
    from smallvit.inference.evaluate import evaluate
    from smallvit.interop.references import load_reference
    from smallvit.layers import LSA, SPT, Features, SeqPool
    from smallvit.losses import DRLoc
    from smallvit.models import create_model, list_models
    from smallvit.models.localize import localize
    from smallvit.recipes.plan import plan
    from smallvit.reporting.report import report
    from smallvit.runs import Run, RunConfig
    from smallvit.server import serve
    from smallvit.training.train import resume, train

__version__ = "0.1.0"

_HOMES = {
    "DRLoc": "smallvit.losses",
    "Evaluation": "smallvit.evaluation",
    "Features": "smallvit.layers",
    "LSA": "smallvit.layers",
    "Run": "smallvit.runs",
    "RunConfig": "smallvit.runs",
    "SPT": "smallvit.layers",
    "SeqPool": "smallvit.layers",
    "audit": "smallvit.data",
    "create_model": "smallvit.models",
    "evaluate": "smallvit.inference.evaluate",
    "explain": "smallvit.explaining",
    "export": "smallvit.formats",
    "list_models": "smallvit.models",
    "load_data": "smallvit.data",
    "load_reference": "smallvit.interop.references",
    "localize": "smallvit.models.localize",
    "plan": "smallvit.recipes",
    "predict": "smallvit.inference",
    "report": "smallvit.reporting",
    "resume": "smallvit.training",
    "serve": "smallvit.server",
    "train": "smallvit.training",
}

__all__ = [
    "LSA",
    "SPT",
    "DRLoc",
    "Evaluation",
    "Features",
    "Run",
    "RunConfig",
    "SeqPool",
    "audit",
    "create_model",
    "evaluate",
    "explain",
    "export",
    "list_models",
    "load_data",
    "load_reference",
    "localize",
    "plan",
    "predict",
    "report",
    "resume",
    "serve",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'smallvit' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
