"""Partial configs: read from files and assignments, put in today's keys, laid over each other.

Importing this needs no PyTorch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smallvit.config_io import leaf, nested, overlaid, read_yaml

BUDGET = ("schedule.epochs", "schedule.steps", "schedule.minutes")
"""How long a run trains, in three ways: the last one that was set counts."""


def layered(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """Partial trees as one; the last that has a value counts, also among the ways of `BUDGET`.

    Raises:
        ValueError: One tree gives epochs and minutes, and does not say which counts.
    """
    result: dict[str, Any] = {}
    for tree in trees:
        budget = {path for path in BUDGET if leaf(tree, path) is not None}
        if budget == {"schedule.epochs", "schedule.minutes"} and "steps" not in tree["schedule"]:
            raise ValueError("give epochs or minutes, not both")
        if budget:
            result = overlaid(result, {"schedule": {"steps": None, "minutes": None}})
            if leaf(result, "schedule.plans"):  # they belong to the steps
                result = overlaid(result, {"schedule": {"plans": []}})
        if leaf(tree, "loss.teacher") is not None:  # the hash is that of one teacher
            result = overlaid(result, {"loss": {"teacher_hash": ""}})
        result = overlaid(result, tree)
    return result


def upgrade(plain: Any, info: Mapping[str, Any] | None = None) -> Any:
    """An older config, whole or in part, in today's keys: the only place that knows older ones.

    `model.spt` and `model.lsa` are suffixes of the model's name now; where `pretrained` is null
    they had no effect, and still have none. Format 1 may leave the image size to the images.

    Args:
        plain: The config as it was written.
        info: What the run folder records beside it, if it comes from one.
    """
    if not isinstance(plain, Mapping):
        return plain
    new, size = dict(plain), leaf(info, "data.image_size")
    if size and leaf(plain, "data.image_size") is None:
        new = overlaid(new, nested("data.image_size", size))
    if isinstance(plain.get("model"), Mapping):
        new["model"] = model = dict(plain["model"])
        addons = [addon for addon in ("spt", "lsa") if model.pop(addon, False)]
        if addons and model.get("pretrained", "unknown"):
            from smallvit.models.names import parse_name

            model["name"] = str(parse_name(model.get("name") or "").plus(addons))
    return new


def read_changes(path: str | Path, info: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A config file, whole or in part, in today's keys; they are checked when it is applied.

    Args:
        path: The file.
        info: What the run folder records beside it, if it lies in one.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: {error}") from error
    data = read_yaml(text, str(path)) or {}
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds {data!r}: expected keys and values")
    changes: dict[str, Any] = upgrade(data, info)
    return changes


def changes_of(assignments: list[str]) -> dict[str, Any]:
    """Texts such as optim.lr=3e-4 as one partial tree; of two for one path the last counts."""
    trees = []
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals or not all(path.strip().split(".")):
            raise ValueError(
                f"{text!r} is not an assignment: write path=value, such as optim.lr=3e-4"
            )
        trees.append(nested(path.strip(), read_yaml(value, f"the value of {path}")))
    return overlaid(*trees)
