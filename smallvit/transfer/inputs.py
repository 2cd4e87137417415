"""What trained weights expect of their images: size and normalisation."""

from os import PathLike
from typing import NamedTuple

from smallvit.config_io import leaf
from smallvit.files import at_home
from smallvit.models.names import Name, find_variant, parse_name
from smallvit.runs.folder import Run
from smallvit.runs.places import INFO, is_run
from smallvit.sizes import Size, as_size


class Inputs(NamedTuple):
    """The images that weights were trained on.

    Attributes:
        image_size: Their height and width.
        mean: What was subtracted from each channel, on a scale of 0 to 1; empty if that is unknown.
        std: What each channel was divided by; empty if that is unknown.
    """

    image_size: Size
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def inputs_of(source: str | PathLike[str], name: str | None = None) -> Inputs | None:
    """What the weights say of themselves, without reading or fetching them.

    A run folder has its size and normalisation, a name of timm what timm lists for its weights, an
    authors' checkpoint the size of its paper.

    Args:
        source: What `start_from` takes.
        name: The model that a checkpoint file holds.

    Returns:
        None where nothing is known; whether the weights exist is for `start_from` to say.
    """
    path, goal = at_home(source), parse_name(name or "")
    if run := run_of(source):
        info = run.info
        size = leaf(info, "data.image_size")
        mean, std = (tuple(info.get(key, ())) for key in ("mean", "std"))
        return Inputs(as_size(tuple(size)), mean, std) if size else None
    if path.is_file():
        if goal.ours:
            return Inputs(as_size(find_variant(goal.base).image_size))
        return _of_timm(goal)
    return _of_timm(parse_name(str(source)))


def learned_without_labels(source: str | PathLike[str]) -> str | None:
    """The model of weights that `smallvit pretrain` made; None if they are others."""
    run = run_of(source)
    if run is None or not run.config.data.unlabelled:
        return None
    name: str | None = leaf(run.info, "model.name")
    return name


def run_of(source: str | PathLike[str]) -> Run | None:
    """The run that a source is, or a file of weights in one."""
    path = at_home(source)
    known = is_run(path) or (path.is_file() and (path.parent / INFO).is_file())
    if not known or str(source).startswith("timm/"):
        return None
    return Run.open(path if path.is_dir() else path.parent)


def _of_timm(name: Name) -> Inputs | None:
    """What timm lists for a model, with or without a tag of its weights."""
    plain = name.base.removeprefix("timm/")
    if not plain or name.ours:
        return None
    from timm.models import get_pretrained_cfg

    try:
        listed = get_pretrained_cfg(plain)
    except RuntimeError:  # no such tag
        return None
    if listed is None:
        return None
    _, height, width = listed.input_size
    return Inputs((height, width), tuple(listed.mean), tuple(listed.std))
