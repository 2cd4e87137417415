"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is `<step>.safetensors` and then `<step>.json`, which holds the hash of the former.
Without the second, or with another hash, it does not exist, and the one before it is used.
"""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from smallvit.files import read_json, read_tensors, tensors_to_bytes, write_bytes, write_json

logger = logging.getLogger(__name__)

_KEPT = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """State of a run after a number of steps.

    Attributes:
        step: How many steps were done.
        tensors: Weights, optimiser state, averages and best weights.
        state: Plain numbers.
    """

    step: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint and removes all but the one before it."""
    folder.mkdir(exist_ok=True)
    name = f"{checkpoint.step:09d}"
    data = tensors_to_bytes(checkpoint.tensors, {"step": str(checkpoint.step)})
    write_bytes(folder / f"{name}.safetensors", data)
    about = {"step": checkpoint.step, "hash": _hash(data), "state": checkpoint.state}
    write_json(folder / f"{name}.json", about)
    # What is of a later step, or has no description, is what a killed save left behind.
    steps = sorted(path.stem for path in folder.glob("*.json") if path.stem <= name)
    # The description goes first: what is left of a removal that was cut short is no checkpoint.
    for path in sorted(folder.iterdir()):
        if path.name.partition(".")[0] not in steps[-_KEPT:]:
            path.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there is none."""
    paths = sorted(folder.glob("*.json"), reverse=True) if folder.is_dir() else []
    for path in paths:
        try:
            about = read_json(path)
            weights = path.with_suffix(".safetensors")
            if _hash(weights.read_bytes()) != about["hash"]:
                raise ValueError("its tensors are not those that were written")
            tensors = read_tensors(weights)
            return Checkpoint(step=about["step"], tensors=tensors, state=about["state"])
        except (OSError, ValueError, KeyError) as error:
            logger.warning(
                "the checkpoint %s is damaged (%s); looking for the one before it", path, error
            )
    return None


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
