"""`plan`: from data and wishes to a whole config."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from smallvit.arguments import checked
from smallvit.config_io import leaf, nested, overlaid
from smallvit.data import Audit, Dataset, audit
from smallvit.devices import DeviceName, choose_device
from smallvit.models.names import check_name
from smallvit.recipes.recipes import ADDITIONS, RECIPES, Facts
from smallvit.runs.config import RunConfig, layered
from smallvit.runs.dataset import open_data
from smallvit.text import counted, nearest


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A config, the data it is for, and why it is as it is.

    Attributes:
        config: What `train` takes.
        dataset: The data, loaded and sized.
        audit: Its audit.
        reasons: Why values were chosen, by their config paths; nothing about values that were
            given.
    """

    config: RunConfig
    dataset: Dataset
    audit: Audit
    reasons: Mapping[str, str]


@checked
def plan(
    data: str | os.PathLike[str] | None = None,
    *,
    recipe: str | None = None,
    model: str | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    pretrained: str | None = None,
    drloc: float | Literal["auto"] | None = None,
    seed: int | None = None,
    device: DeviceName | None = None,
    changes: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Plan:
    """Looks at the data and decides everything that is not given.

    Args:
        data: Folder, table, .npz file or name.
        recipe: auto, spt-lsa, compact or drloc.
        model: A name instead of the recipe's; "auto" leaves it to the recipe.
        epochs: Passes over the training images instead of the recipe's.
        minutes: A budget of time instead.
        pretrained: A run folder, a checkpoint or a name of timm to start from.
        drloc: λ of dense relative localization, or "auto" for the model's usual one.
        seed: Of weights, order, augmentation and splits.
        device: Where it will be trained.
        changes: A partial config, such as {"data": {"image_size": 96}}; it goes before the
            arguments above.
        progress: Whether to show a bar while reading.

    Raises:
        ValueError: Something is unknown or does not fit.
    """
    arguments = {
        "data.source": None if data is None else os.fspath(data),
        "recipe": recipe,
        "model.name": model,
        "schedule.epochs": epochs,
        "schedule.minutes": minutes,
        "model.pretrained": pretrained,
        "loss.drloc": drloc,
        "seed": seed,
        "data.seed": seed,
        "loop.device": device,
    }
    trees = [nested(path, value) for path, value in arguments.items() if value is not None]
    requested = layered(overlaid(*trees), changes or {})
    if leaf(requested, "model.name") == "auto":
        del requested["model"]["name"]
    name = leaf(requested, "recipe") or "auto"
    if name not in RECIPES:
        known = ", ".join(RECIPES)
        raise ValueError(f"there is no recipe {name!r}, but {known}{nearest(name, RECIPES)}")
    if not RunConfig().changed(requested).data.source:
        raise ValueError("what shall be trained on? Give DATA, or data.source in a config file")
    return _choose(name, requested, progress)


def _choose(name: str, requested: dict[str, Any], progress: bool) -> Plan:
    """What a recipe chooses for the data, and in its place what is requested."""
    recipe = RECIPES[name]
    additions = [each for path, each in ADDITIONS.items() if leaf(requested, path) is not None]
    before = overlaid(recipe.data, *(addition.data for addition in additions))
    requested = layered({"recipe": name, "data": before}, requested)
    dataset = open_data(RunConfig().changed(requested).data, progress=progress)
    result = audit(dataset)
    facts = Facts.of(dataset, result, choose_device(leaf(requested, "loop.device") or "auto").type)
    choice = recipe.choose(facts)
    for addition in additions:
        choice = addition.adjust(choice, facts)
    choice = choice.overruled(requested)
    config, reasons = choice.config, dict(choice.reasons)
    if config.schedule.minutes is not None and config.schedule.steps is None:
        minutes = counted(config.schedule.minutes, "minute")
        reasons["schedule.minutes"] = f"as many steps as fit into {minutes}"
    if not config.model.pretrained:
        check_name(config.model.name)
    if config.data.image_size is not None:
        dataset = dataset.sized(config.data.image_size)
    return Plan(config=config, dataset=dataset, audit=result, reasons=reasons)
