"""What lies in a run folder, read: damage is found before something stumbles over it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallvit.config_io import differences, leaf
from smallvit.data import Dataset
from smallvit.files import read_json, read_tensors
from smallvit.runs.card import Card
from smallvit.runs.changes import read_changes, upgrade
from smallvit.runs.config import RunConfig
from smallvit.runs.places import CONFIG, INFO
from smallvit.text import shown

if TYPE_CHECKING:
    from torch import nn

FORMAT = 2
"""Of the folders that are written; older ones are read, newer ones refused.

Format 2 records the config and hashes of the other files, and locks the folder while it is written.
"""

#: Where data and a teacher lie may change; fingerprint and hash tell whether they are the same.
_MOVABLE = ("data.source", "data.root", "data.download", "loss.teacher")

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


def read_info(path: Path) -> dict[str, Any]:
    """What run.json holds.

    Raises:
        ValueError: It is damaged, or was written by a newer version.
    """
    info = read_json(path)
    version = info.get("format")
    if type(version) is not int or version < 1:
        raise ValueError(f"{path} is damaged: its format is {version!r}")
    if version > FORMAT:
        raise ValueError(
            f"{path} has run format {version!r} and this smallvit reads up to {FORMAT}: it was "
            "written by a newer version; upgrade smallvit"
        )
    check_info(info, path)
    return info


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


def read_config(path: Path, info: Mapping[str, Any]) -> RunConfig:
    """The config of a run, in today's keys.

    Raises:
        ValueError: It is not there, or has something that is not known or not allowed.
    """
    try:
        changes = read_changes(path, info)
    except FileNotFoundError as error:
        raise ValueError(f"{path.parent} is damaged: it has no {path.name}") from error
    try:
        return RunConfig.from_dict(changes)
    except ValueError as error:
        raise ValueError(f"{path} cannot be used: {error}") from error


def check_config(config: RunConfig, info: Mapping[str, Any], folder: Path) -> None:
    """Refuses a config that is not the one the run began or ended with; see `Run.check_config`."""
    recorded = [info[key] for key in ("config", "settled") if key in info]
    changed: list[str] = []  # format 1 records none
    for each in recorded:
        try:
            known = RunConfig.from_dict(upgrade(each, info)).to_dict()
        except ValueError as error:
            raise ValueError(f"{folder / INFO} is damaged: its config: {error}") from error
        different = differences(known, config.to_dict())
        changed = [each for each in different if each.partition(" ")[0] not in _MOVABLE]
        if not changed:
            return
    if changed:
        raise ValueError(
            f"{folder / CONFIG} was edited after the run began: {'; '.join(changed)}; "
            "put that back, or start a new run with `smallvit train --config`"
        )


def card_of(info: Mapping[str, Any], config: RunConfig, path: Path) -> Card:
    """What goes with the weights of a run.

    Args:
        info: What run.json holds; all its keys that matter here are read here.
        config: Of the run.
        path: Of run.json, for messages.

    Raises:
        ValueError: Something is missing, or cannot be.
    """
    data = info.get("data", {})
    crossed, accuracy = info.get("cross_validation"), None
    facts = {name: info.get(name) for name in ("parameters", "steps")}
    facts["counts"] = data.get("counts", {})
    try:
        if crossed:
            facts |= {"folds": crossed["folds"], "steps_of_folds": info.get("steps_of_folds")}
            accuracy = tuple(crossed["accuracy"][name] for name in ("value", "low", "high"))
        return Card(
            **{name: data[name] for name in ("classes", "image_size", "channels", "fit")},
            mean=info["mean"],
            std=info["std"],
            temperature=info.get("temperature", 1.0),
            model=info["model"],
            config=config.to_dict(),
            versions={name: info[name] for name in ("smallvit", "torch") if name in info},
            facts=facts,
            accuracy=accuracy,
        )
    except KeyError as error:
        raise ValueError(f"{path} is damaged: it has no {error}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def model_of(info: Mapping[str, Any], path: Path) -> "nn.Module":
    """The model that run.json describes, with random weights.

    Args:
        info: What it holds.
        path: Its path, for messages.

    Raises:
        ValueError: The description is damaged.
    """
    from smallvit.models.build import make_model

    about = info.get("model", {})
    try:
        return make_model(
            about["name"],
            num_classes=about["num_classes"],
            image_size=tuple(about["image_size"]),
            in_channels=about["in_channels"],
            options=about["options"],
        )
    except KeyError as error:
        raise ValueError(f"{path} is damaged: its model has no {error}") from error
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: its model cannot be built: {error}") from error


def load_weights(model: "nn.Module", path: Path) -> None:
    """Puts the weights of a file into a model.

    Raises:
        ValueError: The file is damaged, or holds those of another model.
    """
    try:
        model.load_state_dict(read_tensors(path))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} holds the weights of another model: {reason[:300]}") from error


def check_data(dataset: Dataset, info: Mapping[str, Any]) -> None:
    """Refuses data that is not what a run was trained on, and says what is different."""
    old, new = info.get("data", {}), dataset.record()
    if old.get("fingerprint") != new["fingerprint"]:
        changes = [
            f"{name} was {old.get(name)} and is {new[name]}"
            for name in ("classes", "counts")
            if old.get(name) != new[name]
        ]
        renamed = old.get("contents") == new["contents"]
        which = "the names of some images" if renamed else "some images"
        what = "; ".join(changes) or f"{which} are not the same"
        raise ValueError(f"{new['source']} has changed since the run began: {what}")


def read_text(path: Path) -> str:
    """The text of a file that was written as UTF-8.

    Raises:
        ValueError: It is damaged.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; none where there is no file.

    Raises:
        ValueError: One is damaged.
    """
    lines = read_text(path).split("\n") if path.exists() else [""]
    whole = lines[:-1]  # a line without its end is being written
    return [log_line(line, f"line {n} of {path}") for n, line in enumerate(whole, 1)]


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
