"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is `<step>.safetensors` and then `<step>.json`, which holds the hash of the former.
Without the second, or with another hash, it does not count, and the one before it is used.
"""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from smallvit.files import read_json, read_tensors, tensors_to_bytes, write_bytes, write_json

logger = logging.getLogger(__name__)

_KEPT = 2
_BEST = "best."

#: Names of tensors as first written, and as they are now: runs that stopped then still go on.
_RENAMED = {"learner.": "objective.", "average.": "ema.model."}


class Score(NamedTuple):
    """How good a validation was.

    Attributes:
        value: What decides; higher is better.
        loss: Decides between equal values; lower is better.
    """

    value: float
    loss: float

    def beats(self, other: "Score | None") -> bool:
        """Whether this one is better; anything is better than none."""
        return other is None or (self.value, -self.loss) > (other.value, -other.loss)


@dataclass(kw_only=True)
class Progress:
    """How far a run is.

    Attributes:
        step: Steps done.
        steps: Steps to do.
        plans: From which step on how many steps were planned, if the time changed that; the last
            are `steps`.
        best_step: The step with the best validation.
        best: Its score.
        best_weights: The model's weights after it.
        waited: Validations since then.
        sums: Sums of the steps since the last line of the log.
        log_size: Bytes of the log.
        accumulation: Passes per step, more than planned after memory ran out.
        scaler: State of the loss scaling that fp16 needs.
        ended: Why it is over: "finished", "patience", "time"; or "".
    """

    step: int = 0
    steps: int
    best_step: int = 0
    best: Score | None = None
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    waited: int = 0
    sums: list[float] = field(default_factory=list)
    log_size: int = 0
    accumulation: int = 1
    scaler: dict[str, Any] = field(default_factory=dict)
    ended: str = ""
    plans: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plans = [(start, steps) for start, steps in self.plans] or [(0, self.steps)]

    def replan(self, steps: int) -> None:
        """Plans another number of steps from here on."""
        self.steps = steps
        self.plans.append((self.step, steps))


def save_checkpoint(folder: Path, progress: Progress, tensors: Mapping[str, Tensor]) -> None:
    """Writes a checkpoint and removes all but the one before it."""
    folder.mkdir(exist_ok=True)
    name = f"{progress.step:09d}"
    best = {_BEST + key: value for key, value in progress.best_weights.items()}
    data = tensors_to_bytes({**tensors, **best}, {"step": str(progress.step)})
    write_bytes(folder / f"{name}.safetensors", data)
    plain = [each.name for each in fields(progress) if each.name != "best_weights"]
    state = {key: getattr(progress, key) for key in plain}
    about = {"step": progress.step, "hash": _hash(data), "state": state}
    write_json(folder / f"{name}.json", about)
    # A killed save leaves files of a later step, or tensors without a description.
    steps = sorted(path.stem for path in folder.glob("*.json") if path.stem <= name)
    # The description is removed first: what an interrupted removal leaves does not count.
    for path in sorted(folder.iterdir()):
        if path.name.partition(".")[0] not in steps[-_KEPT:]:
            path.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> tuple[Progress, dict[str, Tensor]] | None:
    """The newest checkpoint that is complete; None if there is none."""
    paths = sorted(folder.glob("*.json"), reverse=True) if folder.is_dir() else []
    for path in paths:
        try:
            about = read_json(path)
            weights = path.with_suffix(".safetensors")
            if _hash(weights.read_bytes()) != about["hash"]:
                raise ValueError("its tensors are not those that were written")
            tensors = read_tensors(weights)
            progress = Progress(**about["state"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning(
                "the checkpoint %s is damaged (%s); looking for the one before it", path, error
            )
            continue
        for old, new in _RENAMED.items():
            tensors |= {new + key: value for key, value in below(tensors, old).items()}
        progress.best = Score(*progress.best) if progress.best else None
        progress.best_weights = below(tensors, _BEST)
        return progress, tensors
    return None


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
