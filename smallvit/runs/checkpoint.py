"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is `<step>.safetensors` and then `<step>.json`, which holds the hash of the former and
of itself. Without the second, or with another hash, it does not count, and the one before it is
used. Files of any other name, links and folders are never touched.
"""

import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from smallvit.files import (
    hash_bytes,
    read_json,
    read_tensors,
    tensors_to_bytes,
    write_bytes,
    write_json,
)
from smallvit.runs.places import refuse_link

logger = logging.getLogger(__name__)

_KEPT = 2
_BEST = "best."
_OWN = re.compile(r"(\d{9})\.(json|safetensors)(\.part)?")
_EXPLODED = 1e12

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
        spent: Seconds of the steps since the last line of the log, in processes that were stopped.
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
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.plans = [(start, steps) for start, steps in self.plans] or [(0, self.steps)]

    def replan(self, steps: int) -> None:
        """Plans another number of steps from here on."""
        self.steps = steps
        self.plans.append((self.step, steps))


class ExplodedError(ValueError):
    """Weights that are not finite, or so large that no training comes back from them."""


def save_checkpoint(folder: Path, progress: Progress, tensors: Mapping[str, Tensor]) -> None:
    """Writes a checkpoint and removes all but the one before it.

    Raises:
        ValueError: The folder is a link.
        ExplodedError: The weights are not worth keeping; the checkpoints that exist stay.
        OSError: It cannot be written.
    """
    refuse_link(folder)
    best = {_BEST + key: value for key, value in progress.best_weights.items()}
    _refuse_exploded({**tensors, **best})
    folder.mkdir(exist_ok=True)
    name = f"{progress.step:09d}"
    data = tensors_to_bytes({**tensors, **best}, {"step": str(progress.step)})
    write_bytes(folder / f"{name}.safetensors", data)
    plain = [each.name for each in fields(progress) if each.name != "best_weights"]
    state = {key: getattr(progress, key) for key in plain}
    about = {"step": progress.step, "hash": hash_bytes(data), "state": state}
    write_json(folder / f"{name}.json", {**about, "own_hash": _own_hash(about)})
    # A killed save leaves files of a later step, or tensors without a description.
    described = [step for step, path in _own(folder) if path.suffix == ".json" and step <= name]
    # The description is removed first: what an interrupted removal leaves does not count.
    for step, path in _own(folder):
        if step not in described[-_KEPT:]:
            path.unlink(missing_ok=True)


def remove_checkpoints(folder: Path) -> None:
    """Removes all checkpoints, and their folder if nothing else is in it."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for _, path in _own(folder):
        path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def load_checkpoint(folder: Path) -> tuple[Progress, dict[str, Tensor]] | None:
    """The newest checkpoint that is complete; None if there is none."""
    refuse_link(folder)
    paths = [path for _, path in _own(folder) if path.suffix == ".json"]
    for path in reversed(paths):
        try:
            about = read_json(path)
            if about.pop("own_hash", None) not in (None, _own_hash(about)):  # format 1 has none
                raise ValueError("its description is not the one that was written")
            weights = path.with_suffix(".safetensors")
            if hash_bytes(weights.read_bytes()) != about["hash"]:
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


def _own(folder: Path) -> list[tuple[str, Path]]:
    """Step and path of every file that belongs to a checkpoint, in order of names."""
    if not folder.is_dir():
        return []
    files = [(_OWN.fullmatch(path.name), path) for path in sorted(folder.iterdir())]
    return [(m[1], path) for m, path in files if m and path.is_file() and not path.is_symlink()]


def _refuse_exploded(tensors: Mapping[str, Tensor]) -> None:
    floats = {name: x for name, x in tensors.items() if x.is_floating_point() and x.numel()}
    for name, tensor in floats.items():
        largest = float(tensor.detach().abs().max())
        # An optimiser's second moments are squares, and may be large.
        if not largest < (math.inf if name.startswith("optimiser.") else _EXPLODED):
            raise ExplodedError(f"{name} holds values up to {largest:.1g}")


def _own_hash(about: Mapping[str, Any]) -> str:
    return hash_bytes(json.dumps(about, sort_keys=True).encode())
