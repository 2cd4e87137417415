"""Models as experiments name them: `vit_9_p4+spt+lsa+drloc`, `resnet18`, `pretrained:SOURCE`.

DRLoc is an option of the run, so that it may follow any name. A pretrained start is a run folder or
a name of timm's, or with a name before it, as in `cct_7_3x1+pretrained:cct.pth`, a checkpoint.
"""

from collections.abc import Iterable
from typing import Any

from smallvit.config_io import overlaid
from smallvit.files import at_home
from smallvit.models.names import check_name
from smallvit.text import shown, some

PRETRAINED, DRLOC = "pretrained:", "+drloc"


def listed(models: Iterable[str]) -> list[str]:
    """Names that may be joined by commas, one by one.

    Raises:
        ValueError: One is listed twice, or there is none.
    """
    names = [name.strip() for text in models for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("which models? Name some with --models, separated by commas")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{some(twice)} is listed twice: name every model once")
    return names


def changes_for(spec: str) -> dict[str, Any]:
    """The partial config of a model's name.

    Raises:
        ValueError: There is no such model, or a pretrained start is not there.
    """
    name = spec.removesuffix(DRLOC)
    loss: dict[str, Any] = {"loss": {"drloc": "auto"}} if name != spec else {}
    if PRETRAINED in name:
        model, _, source = name.partition(PRETRAINED)
        # What looks like a path must be there; anything else is a name that timm may know.
        if source.startswith((".", "/", "~")) and not at_home(source).exists():
            raise ValueError(f"{shown(spec)}: there is no file or run folder {shown(source)}")
        start: dict[str, Any] = {"model": {"pretrained": source}}
        if model := model.removesuffix("+"):
            start["model"]["name"] = str(check_name(model))
        return overlaid(loss, start)
    if name != "auto":
        check_name(name)
    return overlaid(loss, {"model": {"name": name}})
