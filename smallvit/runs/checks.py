"""What the files of a run folder may hold: damage is found before something stumbles over it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smallvit.config_io import leaf
from smallvit.text import shown

#: What is recorded under these keys, where it is.
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("smallvit", "torch", "python", "device", "command", "created"), str),
    **dict.fromkeys(("status", "ended"), str),
    **dict.fromkeys(("processes", "threads", "parameters", "step", "steps"), int),
    **dict.fromkeys(("best_step", "accumulation", "seen_before", "steps_of_folds"), int),
    **dict.fromkeys(("hashes", "config", "settled", "model", "data", "cross_validation"), dict),
    **dict.fromkeys(("mean", "std", "notes", "plans", "earlier"), list),
    **dict.fromkeys(("data.classes", "data.image_size", "data.dropped"), list),
    **dict.fromkeys(("data.counts", "data.made", "model.options"), dict),
    "cross_validation.folds": int,
    "cross_validation.accuracy": dict,
    **dict.fromkeys(("data.source", "data.fit", "data.fingerprint", "model.name"), str),
    "data.path": str,
    **dict.fromkeys(("data.channels", "data.seed", "model.num_classes"), int),
    "model.in_channels": int,
    "model.image_size": list,
    "temperature": (int, float),
}


def check_info(info: Mapping[str, Any], path: Path) -> None:
    """Refuses what run.json never holds, so that nothing later stumbles over it.

    Raises:
        ValueError: A value is of another type than is written.
    """
    for key, kind in _KINDS.items():
        if (value := leaf(info, key)) is None:
            continue
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits or (kind is int and value < 0):
            raise ValueError(f"{path} is damaged: {key} is {shown(repr(value))[:80]}")
    texts = [*(leaf(info, "data.classes") or []), *(info.get("notes") or [])]
    counts = [*(leaf(info, "data.counts") or {}).values()]
    if not all(isinstance(each, dict) for each in info.get("earlier") or []):
        raise ValueError(f"{path} is damaged: earlier holds something else than keys and values")
    if not all(isinstance(each, str) for each in texts):
        raise ValueError(f"{path} is damaged: data.classes or notes hold something else than text")
    if not all(type(each) is int for each in counts):
        raise ValueError(f"{path} is damaged: data.counts holds something else than numbers")


def log_line(line: str, source: str) -> dict[str, Any]:
    """One line of the log.

    Raises:
        ValueError: It is damaged.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is damaged: {error}") from error
    wanted = {"kind": str, "step": int}
    if not isinstance(values, dict) or not all(
        type(values.get(key)) is kind for key, kind in wanted.items()
    ):
        raise ValueError(f"{source} is damaged: it has no kind and step")
    wrong = [k for k, v in values.items() if k != "kind" and type(v) not in (int, float)]
    if wrong:
        raise ValueError(f"{source} is damaged: {wrong[0]} is not a number")
    return values
