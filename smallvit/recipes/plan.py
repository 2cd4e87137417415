"""`plan`: from data and wishes to a whole config."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from smallvit.config_io import merge
from smallvit.data import Audit, Dataset, audit
from smallvit.devices import DeviceName, choose_device
from smallvit.models.names import check_name
from smallvit.recipes.recipes import RECIPES, Facts, drloc_weight, fine_tuned
from smallvit.runs.config import DataConfig, ModelConfig, RunConfig
from smallvit.runs.dataset import open_data


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A config, the data it is for, and why it is as it is.

    Attributes:
        config: What `train` takes.
        dataset: The data, loaded.
        found: Its audit.
        reasons: A line each.
    """

    config: RunConfig
    dataset: Dataset
    found: Audit
    reasons: tuple[str, ...]


def plan(
    data: str,
    *,
    recipe: str = "auto",
    model: str | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    pretrained: str | None = None,
    drloc: float | bool = False,
    seed: int = 0,
    options: DataConfig | None = None,
    device: DeviceName = "auto",
    changes: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Plan:
    """Looks at the data and decides everything that is not said.

    Args:
        data: Folder, table, .npz file or name.
        recipe: auto, spt-lsa, compact or drloc.
        model: A name instead of the recipe's; "auto" leaves it to the recipe.
        epochs: Passes over the training images instead of the recipe's.
        minutes: A budget of time instead.
        pretrained: A run folder, a checkpoint or a name of timm to start from.
        drloc: λ of dense relative localization, or True for the model's usual one.
        seed: Of weights, order and augmentation.
        options: How the data is read; its source is `data`.
        device: Where it will be trained.
        changes: Parts of a config, which go before everything else.
        progress: Whether to show a bar while reading.

    Raises:
        ValueError: Something is unknown or does not fit.
    """
    if recipe not in RECIPES:
        near = difflib.get_close_matches(recipe, RECIPES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no recipe {recipe!r}, but {', '.join(RECIPES)}{hint}")
    if epochs is not None and minutes is not None:
        raise ValueError("give epochs or minutes, not both")
    changes = dict(changes or {})
    wanted = replace(options or DataConfig(), source=data)
    if recipe in ("spt-lsa", "compact") and wanted.val is None and not pretrained:
        wanted = replace(wanted, val=0.0)  # the papers train on all images
    wanted = _data_config(wanted, changes)
    dataset = open_data(wanted, progress=progress)
    found = audit(dataset)
    facts = Facts.of(dataset, found, choose_device(device).type)
    config, reasons = RECIPES[recipe](facts)
    if pretrained:
        config, reasons = fine_tuned(config, facts, pretrained, model)
    elif model and model != "auto":
        config = replace(config, model=ModelConfig(name=model))
        reasons = [line for line in reasons if not line.startswith("model ")]
    if recipe == "drloc" or drloc:
        weight = drloc_weight(config.model.name) if isinstance(drloc, bool) else float(drloc)
        config = replace(config, loss=replace(config.loss, drloc=weight))
    schedule = config.schedule
    if epochs is not None:
        schedule = replace(schedule, epochs=epochs, steps=None)
    if minutes is not None:
        schedule = replace(schedule, minutes=minutes, steps=None)
        reasons.append(f"as many steps as fit into {minutes:g} minutes")
    config = replace(
        config,
        recipe=recipe,
        seed=seed,
        data=wanted,
        schedule=schedule,
        loop=replace(config.loop, device=device),
    )
    config = RunConfig.from_dict(merge(config.to_dict(), changes))
    _check_model(config)
    return Plan(config=config, dataset=dataset, found=found, reasons=tuple(reasons))


def _data_config(options: DataConfig, changes: dict[str, Any]) -> DataConfig:
    """The data's part of the changes, before the data is read."""
    part = changes.get("data")
    if not isinstance(part, Mapping):
        return options
    whole = merge(RunConfig(data=options).to_dict(), {"data": part})
    return RunConfig.from_dict(whole).data


def _check_model(config: RunConfig) -> None:
    """Refuses a name that is unknown before anything is decoded."""
    if not config.model.pretrained:
        check_name(config.model.name)
