"""Vision transformers that learn from small datasets.

Public names load on first use: importing smallvit imports nothing heavy.
"""

from typing import TYPE_CHECKING

from smallvit.extras import on_first_use

if TYPE_CHECKING:
    from smallvit.data import audit, load_data
    from smallvit.evaluation import Evaluation
    from smallvit.explaining.explain import explain
    from smallvit.formats import export
    from smallvit.inference import Predictor, predict
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

__all__ = [
    "LSA",
    "SPT",
    "DRLoc",
    "Evaluation",
    "Features",
    "Predictor",
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

__getattr__ = on_first_use(
    __name__,
    {
        "data": ("audit", "load_data"),
        "evaluation": ("Evaluation",),
        "explaining.explain": ("explain",),
        "formats": ("export",),
        "inference": ("Predictor", "predict"),
        "inference.evaluate": ("evaluate",),
        "interop.references": ("load_reference",),
        "layers": ("LSA", "SPT", "Features", "SeqPool"),
        "losses": ("DRLoc",),
        "models": ("create_model", "list_models"),
        "models.localize": ("localize",),
        "recipes.plan": ("plan",),
        "reporting.report": ("report",),
        "runs": ("Run", "RunConfig"),
        "server": ("serve",),
        "training.train": ("resume", "train"),
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
