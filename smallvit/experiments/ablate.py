"""`ablate`: what each part of the papers adds to a model, one at a time and together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from smallvit.arguments import checked
from smallvit.config_io import leaf, nested, overlaid
from smallvit.experiments import compare
from smallvit.experiments.sets import Outcome, RunSet
from smallvit.models.names import Name, check_name
from smallvit.recipes import Plan, plan
from smallvit.reporting.sheet import Sheet
from smallvit.text import counted, shown, some

PLAIN = "plain"

#: What each row sets: the add-ons of the name, options of the model, and which of
#: `compare.LOSSES`. Directions and shift are SPT's, so that they vary it.
PARTS: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    PLAIN: ((), {}, ""),
    "temperature": ((), {"temperature": True}, ""),
    "mask": ((), {"masked": True}, ""),
    "LSA": (("lsa",), {}, ""),
    "SPT": (("spt",), {}, ""),
    "SPT, cardinal directions": (("spt",), {"directions": "cardinal"}, ""),
    "SPT, all directions": (("spt",), {"directions": "all"}, ""),
    "SPT, shift of a quarter": (("spt",), {"shift": 0.25}, ""),
    "SPT, shift of a whole patch": (("spt",), {"shift": 1.0}, ""),
    "DRLoc": ((), {}, "+drloc"),
    "DRLoc, as released": ((), {}, "+drloc-released"),
    "SPT and LSA": (("spt", "lsa"), {}, ""),
    "SPT, LSA and DRLoc": (("spt", "lsa"), {}, "+drloc"),
}


@checked
def ablate_set(
    settings: Mapping[str, Any], *, seeds: compare.Seeds = 3, command: str = ""
) -> tuple[RunSet, dict[str, str]]:
    """The runs of an ablation, and the parts that this model cannot have, each with the reason.

    Args:
        settings: A partial config that all share; its model's add-ons are left out.
        seeds: Trainings of each.
        command: For the record: what was typed.

    Raises:
        ValueError: The name is not known, has no such parts, cannot be built for this data, or the
            data cannot be read.
    """
    if leaf(settings, "model.pretrained") is not None:
        raise ValueError("an ablation trains from scratch: leave --pretrained out")
    planned = plan(changes=settings)
    base = Name(check_name(planned.config.model.name).base)
    shared = compare.with_budget(settings, planned)
    if not (base.ours or base.timm):
        raise ValueError(f"SPT and LSA are for transformers, and {base} is a CNN")
    members, impossible, plain = [], {}, None
    for row, (addons, options, loss) in PARTS.items():
        changes = overlaid(shared, nested("model.name", str(base.plus(addons))))
        if options:
            changes = overlaid(changes, {"model": {"options": options}})
        changes = overlaid(changes, compare.LOSSES.get(loss, compare.WITHOUT))
        config, reason = _built(changes, planned)
        if row == PLAIN:
            if reason:
                raise ValueError(reason)
            plain = config
        if options and base.timm:
            reason = f"{some(options)} vary our own models, and {base} is timm's"
        elif options and not addons and config is not None and config == plain:
            reason = (
                f"{base} has it built in; --set model.options.{next(iter(options))}=false takes "
                "it out of all other rows"
            )
        if reason:
            impossible[row] = reason
        else:
            members += compare.members_of(row, changes, seeds)
    facts = {
        "data": planned.dataset.source,
        "model": str(base),
        **compare.facts_of_budget(settings, shared),
        "impossible": impossible,
    }
    made = RunSet(kind="ablate", members=tuple(members), facts=facts, command=command)
    return made, impossible


def _built(changes: Mapping[str, Any], planned: Plan) -> tuple[Any, str]:
    """The config of a model, if it is ours, and why it cannot be built; empty if it can."""
    import torch

    from smallvit.models.build import make_model

    config, data = planned.config.changed({"model": changes["model"]}), planned.dataset
    try:
        with torch.device("meta"):
            model = make_model(
                config.model.name,
                num_classes=len(data.classes),
                image_size=data.image_size,
                in_channels=data.channels,
                options=config.model.options,
            )
    except (ValueError, TypeError) as error:
        return None, str(error)
    return getattr(model, "config", None), ""


def conclude(runs: RunSet, outcomes: Sequence[Outcome]) -> tuple[Sheet, dict[str, Any]]:
    """What an ablation found: for people, and as plain data."""
    sheet, plain = compare.conclude(runs, outcomes, title="Parts", versus="− plain")
    model, data = str(runs.facts.get("model")), shown(str(runs.facts.get("data", "data")))
    impossible = runs.facts.get("impossible", {})
    missing = [f"{row} was left out: {reason}." for row, reason in impossible.items()]
    sheet = replace(
        sheet,
        title=f"{counted(len(runs.rows), 'row')} of an ablation of {model} on {data}",
        notes=(*sheet.notes, *missing),
    )
    return sheet, {**plain, "model": model, "impossible": dict(impossible)}
