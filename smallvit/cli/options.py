"""The table of options that are fields of a config, and how they become parameters of a command.

A new option is a field of a config class, whose line in the docstring is its help text, and one
line in `OPTIONS`.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from smallvit.cli.app import refusal
from smallvit.cli.terminal import legible
from smallvit.config_io import field_at, nested, overlaid, read_yaml
from smallvit.data.sources import HELP
from smallvit.runs.config import RunConfig

RUN = "Run"


@dataclass(frozen=True)
class Option:
    """One option, or the argument if its name has no dashes.

    Attributes:
        name: As it is typed.
        paths: The config paths that it sets, separated by spaces.
        panel: The group of options in the help text.
        chosen: Whether recipes choose the value, so that the field's default says
            nothing.
        alone: What the option means without a value, if it may stand alone.
        metavar: How its value is called in the help text.
        help: The help text, if it is not that of the field.
        read: Turns its text into a value, where that is more than a number or a word.
    """

    name: str
    paths: str
    panel: str
    chosen: bool = False
    alone: str | None = None
    metavar: str | None = None
    help: str = ""
    read: Callable[[str], Any] | None = None

    @property
    def key(self) -> str:
        """Its name as a Python name."""
        return self.name.lstrip("-").replace("-", "_").lower()


def _read_size(text: str) -> Any:
    """A side, or height and width as in 48x64; anything else is refused where it is checked."""
    sides = re.split(r"[x×,]", text)
    if not all(side.strip().isdecimal() for side in sides):
        return text
    return int(text) if len(sides) == 1 else [int(side) for side in sides]


#: The most used first in each group.
OPTIONS = (
    Option("DATA", "data.source", "Data", help=f"{HELP[0].upper()}{HELP[1:]}."),
    Option("--image-size", "data.image_size", "Data", metavar="SIDE|HxW", read=_read_size),
    Option("--val", "data.val", "Data"),
    Option("--test", "data.test", "Data"),
    Option("--folds", "data.folds", "Data"),
    Option("--allow", "data.allow", "Data"),
    Option("--fit", "data.fit", "Data"),
    Option("--root", "data.root", "Data"),
    Option("--download", "data.download", "Data"),
    Option("--model", "model.name", "Model", chosen=True),
    Option("--pretrained", "model.pretrained", "Model"),
    Option("--recipe", "recipe", "Training", chosen=True),
    Option("--minutes", "schedule.minutes", "Training"),
    Option("--epochs", "schedule.epochs", "Training", chosen=True),
    Option("--drloc", "loss.drloc", "Training", alone="auto", metavar="[WEIGHT]", read=read_yaml),
    Option("--teacher", "loss.teacher", "Training", metavar="RUN"),
    Option("--seed", "seed data.seed", "Training"),
    Option("--device", "loop.device", RUN),
    Option("--deterministic", "loop.deterministic", RUN),
    Option("--tensorboard", "tensorboard", RUN),
    Option("--wandb", "wandb", RUN),
)

#: Those that `smallvit audit` has too.
AUDIT = (
    *(option for option in OPTIONS if option.panel == "Data" and option.name != "--folds"),
    Option("--seed", "data.seed", "Data"),
)


def with_options(
    options: Sequence[Option],
    config: type = RunConfig,
    more: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds options to a command; `requested` reads what they were set to.

    Args:
        options: Rows of the table.
        config: The config class whose fields they set.
        more: Further parameters, None by default, which the command reads from its context.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        declared = inspect.signature(function, eval_str=True).parameters.values()
        panels = dict.fromkeys(option.panel for option in options)
        named = [p for p in declared if p.kind is not p.VAR_KEYWORD]
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in named]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters += [
            inspect.Parameter(name, kind, default=None, annotation=each)
            for name, each in (more or {}).items()
        ]
        parameters += [_parameter(option, config) for option in options]
        parameters.sort(key=lambda p: [None, *panels].index(_panel(p)))
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return function

    return decorate


def requested(context: typer.Context, options: Sequence[Option] = OPTIONS) -> dict[str, Any]:
    """The options on the command line as a partial config tree."""
    tree: dict[str, Any] = {}
    for option in options:
        source = context.get_parameter_source(option.key)
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[option.key]
            if isinstance(value, list | tuple):
                value = [part.strip() for text in value for part in text.split(",")]
            elif option.read is not None:
                value = option.read(value)
            tree = overlaid(tree, *(nested(path, value) for path in option.paths.split()))
    return tree


#: Where each value of a config is, by its name alone.
_SETTINGS = {
    key: f"{section}.{key}"
    for section, values in RunConfig().to_dict().items()
    if isinstance(values, dict)
    for key in values
}
#: What others call some of them.
_ALSO = {"learning_rate": "lr", "batch": "batch_size", "lr0": "lr", "optimiser": "optimizer"}


class Command(TyperCommand):
    """A command some of whose options may stand without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts in what such an option means alone, unless a number follows it."""
        self._refuse_settings(args)
        alone = {option.name: option.alone for option in OPTIONS if option.alone is not None}
        words = []
        for word, following in zip_longest(args, args[1:], fillvalue=""):
            words.append(word)
            if word in alone and following != alone[word] and not _is_number(following):
                words.append(alone[word])
        return super().parse_args(ctx, words)

    def _refuse_settings(self, args: list[str]) -> None:
        """Says how to give a value of the config that is no option of its own."""
        known = {name for parameter in self.params for name in parameter.opts}
        for word in args:
            name, _, value = word.partition("=")
            key = name.removeprefix("--").replace("-", "_")
            path = _SETTINGS.get(_ALSO.get(key, key))
            if name.startswith("--") and name not in known and path:
                raise refusal(f"{name} is not an option: say --set {path}={value or 'VALUE'}")


def _is_number(word: str) -> bool:
    try:
        return float(word) >= 0
    except ValueError:
        return False


def _panel(parameter: inspect.Parameter) -> str | None:
    about = getattr(parameter.annotation, "__metadata__", (None,))[0]
    return getattr(about, "rich_help_panel", None)


def _parameter(option: Option, config: type) -> inspect.Parameter:
    """An option as a parameter that typer understands."""
    fields = [field_at(config, path) for path in option.paths.split()]
    help_text = legible(option.help or " ".join(field.help for field in fields))
    kind, default = _kind(fields[0].kind), fields[0].default
    if option.read is not None:
        kind = str
    if option.chosen or option.read is not None or kind == list[str]:
        default = None
    about: Any = typer.Option(
        option.name,
        help=help_text,
        metavar=option.metavar,
        rich_help_panel=option.panel,
        show_default=bool(default),
    )
    if not option.name.startswith("-"):
        default, about = None, typer.Argument(metavar=option.name, help=help_text)
    return inspect.Parameter(
        option.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind if default is not None else kind | None, about],
    )


def _kind(kind: Any) -> Any:
    """A field's type as one that typer knows: of several the first, a list for a tuple."""
    if get_origin(kind) is Union or get_origin(kind) is UnionType:
        return _kind(get_args(kind)[0])
    return list[str] if get_origin(kind) is tuple else kind
