"""`plan`: from data and requested values to a complete config."""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from smallvit.arguments import checked
from smallvit.config_io import leaf, nested, overlaid
from smallvit.data import Audit, Dataset, audit
from smallvit.devices import DeviceName, choose_device
from smallvit.models.names import check_name
from smallvit.pages import html_table
from smallvit.recipes.facts import Choice, Facts
from smallvit.recipes.recipes import ADDITIONS, RECIPES
from smallvit.recipes.speed import INFERENCE, cost, measure_speed, rate_of
from smallvit.runs.changes import BUDGET, layered
from smallvit.runs.config import RunConfig
from smallvit.runs.dataset import open_data
from smallvit.runs.folder import Run
from smallvit.text import counted, nearest
from smallvit.transfer.inputs import inputs_of, learned_without_labels

logger = logging.getLogger(__name__)

_LEAST = 10  # steps below which nothing is learned
_PIXELS = 16  # along a side, below which images show little
_TESTED = 1_000  # images that a test should have at the very least
_START = 1.0  # seconds between decoding and the first step, at the very least


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A config, the data it is for, and why it is as it is.

    Attributes:
        config: What `train` takes.
        dataset: The data, loaded and sized.
        audit: Its audit.
        reasons: Why values were chosen, by their config paths; nothing about values that were
            requested.
    """

    config: RunConfig
    dataset: Dataset
    audit: Audit
    reasons: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Plan({self._about})"

    def _repr_html_(self) -> str:
        """For notebooks: what was chosen and why, and what the audit found."""
        found = [f"{each.level}: {each.message}" for each in self.audit.findings]
        return html_table(self._about, self.reasons.items(), found)

    @property
    def _about(self) -> str:
        config, data = self.config, self.dataset
        schedule = config.schedule
        budget = f"{schedule.epochs:g} epochs"
        if schedule.steps is not None:
            budget = f"{schedule.steps:,} steps"
        elif schedule.minutes is not None:
            budget = f"{schedule.minutes:g} minutes"
        model = config.model.name or config.model.pretrained
        return (
            f"{model} on {Path(data.source).name}: {len(data.split('train')):,} images of "
            f"{len(data.classes):,} classes at {data.image_size[0]}×{data.image_size[1]}, {budget}"
        )


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
    speed: float | None = None,
    started: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Plan:
    """Looks at the data and decides everything that is not requested.

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
        speed: Of the device, as `measure_speed` returns it; None measures it where time matters.
        started: When the time of `minutes` began, on the clock; None means now.
        clock: Seconds; only their differences count.

    Raises:
        ValueError: Something is unknown or does not fit.
    """
    started = clock() if started is None else started
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
    return _choose(name, requested, progress, speed, started, clock)


def _choose(
    name: str,
    requested: dict[str, Any],
    progress: bool,
    speed: float | None,
    started: float,
    clock: Callable[[], float],
) -> Plan:
    """What a recipe chooses for the data, and in its place what is requested."""
    recipe = RECIPES[name]
    additions = [each for path, each in ADDITIONS.items() if leaf(requested, path) is not None]
    before = overlaid(recipe.data, *(addition.data for addition in additions))
    requested = layered({"recipe": name, "data": before}, requested)
    dataset = open_data(RunConfig().changed(requested).data, progress=progress)
    result = audit(dataset)
    timed = recipe.timed and all(addition.timed for addition in additions)
    facts = _facts(dataset, result, requested, timed=timed, speed=speed)

    def chosen(facts: Facts) -> Choice:
        choice = recipe.choose(facts)
        for addition in additions:
            choice = addition.adjust(choice, facts)
        return choice.overruled(requested)

    choice = chosen(facts)
    if facts.speed is not None or facts.minutes is not None:
        # What is in the cache at the size that is chosen is there at once.
        chosen_size = choice.config.data.image_size
        fit = choice.config.data.fit
        sized = dataset if chosen_size is None else dataset.sized(chosen_size, fit)
        decoding = sized.decoding(clock)
        # The first training of a cross-validation has it all in its share of the time.
        facts = replace(facts, preparing=clock() - started + decoding)
        choice = chosen(facts)
    config, reasons = choice.config, dict(choice.reasons)
    if config.schedule.minutes is not None and config.schedule.steps is None:
        reasons["schedule.minutes"] = _in_minutes(choice, facts)
    if not config.model.pretrained:
        check_name(config.model.name)
    if config.data.image_size is not None:
        dataset = dataset.sized(config.data.image_size, config.data.fit)
        if min(dataset.image_size) < _PIXELS:
            size = "×".join(map(str, dataset.image_size))
            logger.warning("images of %s pixels show little: %d or more are usual", size, _PIXELS)
    if config.data.mean and config.data.std:
        dataset = dataset.normalised(config.data.mean, config.data.std)
    return Plan(config=config, dataset=dataset, audit=result, reasons=reasons)


def _facts(
    dataset: Dataset,
    result: Audit,
    requested: Mapping[str, Any],
    *,
    timed: bool,
    speed: float | None,
) -> Facts:
    """The facts for a recipe; one that plans with time gets the device's speed."""
    config = RunConfig().changed(requested)
    device = choose_device(leaf(requested, "loop.device") or "auto").type
    batch, trainings = leaf(requested, "loop.batch_size"), config.data.trainings
    epochs, steps, minutes = (leaf(requested, path) for path in BUDGET)
    if steps is not None:
        epochs = minutes = None
    if minutes is not None:  # the time is that of all trainings
        epochs, minutes = None, minutes / trainings
    if timed and speed is None and epochs is None and steps is None:
        speed = measure_speed(device)
    pretrained, model = leaf(requested, "model.pretrained"), leaf(requested, "model.name")
    start = learned_without_labels(pretrained) if pretrained else None
    beside = 0.0
    if teacher := leaf(requested, "loss.teacher"):
        run = Run.open(teacher)
        # Its pass forward comes to a step, which is counted as three of them.
        beside = cost(run.info["model"]["name"], max(run.image_size)) / 3
    return Facts.of(
        dataset,
        result,
        device,
        model=model or start,
        unlabelled_start=start is not None,
        inputs=inputs_of(pretrained, model) if pretrained else None,
        batch=None if batch is None else config.loop.batch_size,
        epochs=epochs,
        steps=steps,
        minutes=minutes,
        trainings=trainings,
        speed=speed if timed else None,
        beside=beside,
    )


def _in_minutes(choice: Choice, facts: Facts) -> str:
    """What fits into the time.

    Raises:
        ValueError: Nothing does.
    """
    config, trainings = choice.config, choice.config.data.trainings
    minutes, size = config.schedule.minutes or 0.0, config.data.image_size
    sentence = f"as many steps as fit into {counted(minutes, 'minute')}"
    if folds := config.data.folds:
        sentence += f", shared by {folds} folds and the model on all images"
    side = max(size) if isinstance(size, tuple) else size
    price = cost(config.model.name, side) if facts.speed and side else 0.0
    price = price and price + facts.beside
    rate, least = 0.0, _START
    tested = min(facts.tested, _TESTED)  # a test is cut short where time is over
    if facts.speed and price:
        rate = rate_of(facts.speed, price, side or 0, config.loop.batch_size, facts.device)
        least += (_LEAST * config.loop.batch_size + tested / INFERENCE) / rate
    if least + facts.preparing > 60 * (facts.minutes or minutes):
        why, advice = [], "choose fewer pixels with --image-size"
        if facts.preparing > least or not rate:
            often = f"once for each of {trainings} trainings" if trainings > 1 else "once"
            taken = _in_words(facts.preparing * trainings)
            why, advice = (
                [f"the images take {taken} to read and decode, {often}"],
                "save them smaller",
            )
        if rate:
            taken = _in_words((least if why else least + facts.preparing) * trainings)
            why.append(
                f"{config.model.name} trains on about {rate:.2g} images per second, so {_LEAST} "
                f"steps and a test of {tested:,} images take {taken}"
            )
        raise ValueError(
            f"{counted(minutes, 'minute')} {'is' if minutes == 1 else 'are'} not enough here: "
            f"{', and '.join(why)}; allow more time, or {advice}"
        )
    return f"{sentence}; about {rate:,.0f} images per second are expected" if rate else sentence


def _in_words(seconds: float) -> str:
    if seconds < 100:
        return f"about {counted(math.ceil(seconds), 'second')}"
    return f"about {seconds / 60:.1f} minutes"
