"""Frozen dataclasses to plain data and back, with sentences for what does not fit.

Plain data is a tree of dicts; a path such as optim.lr names a value in it, a partial tree holds
only some of the values.
"""

import inspect
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from smallvit.text import nearest

T = TypeVar("T")

_DEEPEST = 50
"""Levels that YAML may have; a config has three or four."""

_FLOAT = re.compile(
    r"^[-+]?([0-9][0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?"
    r"|\.inf|\.Inf|\.INF)$|^\.(nan|NaN|NAN)$"
)


@cache
def _yaml() -> tuple[Any, Any]:
    """PyYAML's loader and dumper in our form, imported when a file is read or written."""
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML in which 3e-4 is a number, and no text is small but its data large or deep."""

        _depth = 0

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            """One value with all that is below it."""
            mark = self.peek_event().start_mark
            if self.check_event(yaml.AliasEvent):
                raise yaml.MarkedYAMLError(problem="no *alias is read here", problem_mark=mark)
            if self._depth == _DEEPEST:
                problem = f"it is more than {_DEEPEST} levels deep"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
            self._depth += 1
            node = super().compose_node(parent, index)
            self._depth -= 1
            return node

    class Dumper(yaml.SafeDumper):
        """YAML in which the text "3e-4" is quoted, as it must be for that loader."""

        def ignore_aliases(self, data: Any) -> bool:
            """Writes what occurs twice twice."""
            return True

    for kind in (Loader, Dumper):
        kind.yaml_implicit_resolvers = {
            letter: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:float"]
            for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }
        kind.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))

    def quoted(dumper: Any, text: str) -> yaml.ScalarNode:
        """Text whose rare line breaks are escaped; PyYAML would read them back as spaces."""
        style = '"' if set(text) & set("\x85\u2028\u2029") else None
        node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
        return node

    Dumper.add_representer(str, quoted)

    return Loader, Dumper


def read_yaml(text: str, source: str = "the text") -> Any:
    """Plain data from YAML.

    Raises:
        ValueError: It is not YAML; the message says where.
    """
    import yaml

    try:
        return yaml.load(text, _yaml()[0])
    # PyYAML raises these for scalars that are not of the type their !!tag claims, for dates that do
    # not exist, and for 20,000 brackets.
    except (
        *(yaml.YAMLError, ValueError, KeyError, IndexError),
        *(AttributeError, OverflowError, RecursionError),
    ) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{source} is not YAML that can be used: {reason}") from error


def write_yaml(data: Mapping[str, Any]) -> str:
    """YAML that `read_yaml` turns into the same data, in the order given."""
    import yaml

    return yaml.dump(dict(data), Dumper=_yaml()[1], sort_keys=False, allow_unicode=True, width=100)


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and paths as dicts, lists and text."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_plain(cls: type[T], data: Any, path: str = "") -> T:
    """A dataclass from plain data.

    Raises:
        ValueError: A key is unknown (the nearest is named), missing, or of another type.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{path or 'the config'} is {data!r}: expected keys and values")
    known = get_type_hints(cls)
    check_keys(data, known, path)
    values = {key: _convert(known[key], value, _join(path, key)) for key, value in data.items()}
    for field in fields(cls):  # type: ignore[arg-type]
        required = field.default is MISSING and field.default_factory is MISSING
        if required and field.name not in values:
            raise ValueError(f"{_join(path, field.name)} is missing")
    return cls(**values)


def check_keys(
    data: Mapping[str, Any], known: Mapping[str, Any] | Sequence[str], path: str
) -> None:
    """Refuses keys that are not known, and names the nearest that is."""
    for key in data:
        if key not in known:
            inside = _section_of(str(key), known)
            hint = f"; did you mean '{inside}.{key}'?" if inside else nearest(str(key), known)
            hint = hint or f"; known are {', '.join(known)}"
            raise ValueError(f"unknown key {_join(path, str(key))!r}{hint}")


def _section_of(key: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """The section that has such a key, of values or types; empty where none has."""
    for name, inside in known.items() if isinstance(known, Mapping) else ():
        if is_dataclass(inside):
            inside = [field.name for field in fields(inside)]
        if isinstance(inside, Mapping | list) and key in inside:
            return name
    return ""


def overlaid(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """Trees, whole or partial, as one; where several have a value the last counts."""
    result: dict[str, Any] = {}
    for tree in trees:
        for key, value in tree.items():
            old = result.get(key)
            if isinstance(value, Mapping):  # copied, so that a change of the result stays there
                value = overlaid(old, value) if isinstance(old, Mapping) else overlaid(value)
            result[key] = value
    return result


def nested(path: str, value: Any) -> dict[str, Any]:
    """A partial tree with one value."""
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


def leaf(tree: Any, path: str) -> Any:
    """The value at a path; None where a partial tree has none."""
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def flattened(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The values of a tree by their paths."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = _join(path, str(key))
        flat |= flattened(value, name) if isinstance(value, Mapping) else {name: value}
    return flat


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """What changed between two plain values, one phrase per change."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = list(dict.fromkeys([*old, *new]))
        return [
            phrase
            for key in keys
            for phrase in differences(old.get(key), new.get(key), _join(path, key))
        ]
    return [] if old == new else [f"{path} was {old!r} and is {new!r}"]


class Field(NamedTuple):
    """What a dataclass says about one of its fields.

    Attributes:
        kind: Its type.
        default: Its default; None if there is none.
        help: Its line in the class's docstring.
    """

    kind: Any
    default: Any
    help: str


def field_at(cls: type, path: str) -> Field:
    """The field that a path names in a tree of dataclasses."""
    section, _, rest = path.partition(".")
    kind = get_type_hints(cls)[section]
    if rest:
        return field_at(kind, rest)
    item = next(item for item in fields(cls) if item.name == section)
    default = None if item.default is MISSING else item.default
    return Field(kind, default, _documented(cls)[section])


def _documented(cls: type) -> dict[str, str]:
    """The lines below `Attributes:` in the docstrings of a class and its bases, by name."""
    documented = {}
    for base in reversed(cls.__mro__):
        _, _, section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        for name, text in re.findall(r"(?m)^ {4}(\w+): (.*(?:\n {8}.*)*)", section):
            documented[name] = " ".join(text.split())
    return documented


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _convert(kind: Any, value: Any, path: str) -> Any:
    """A value of plain data as the type a field has."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind) and isinstance(kind, type):
        return value if isinstance(value, kind) else from_plain(kind, value, path)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        reasons = []
        for each in inner:
            if each is not type(None):
                try:
                    return _convert(each, value, path)
                except ValueError as error:
                    reasons.append(str(error).removeprefix(f"{path} is {value!r}: "))
        raise ValueError(f"{path} is {value!r}: {' or '.join(reasons)}")
    if origin is Literal:
        if value not in inner:
            verb = "are" if len(inner) > 1 else "is"
            raise ValueError(f"{path} is {value!r}: allowed {verb} {', '.join(map(str, inner))}")
        return value
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(f"{path} is {value!r}: expected a list")
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(value) != len(kinds):
            raise ValueError(f"{path} is {value!r}: expected a list of {len(kinds)}")
        pairs = enumerate(zip(kinds, value, strict=True))
        return tuple(_convert(each, item, f"{path}[{i}]") for i, (each, item) in pairs)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"{path} is {value!r}: expected keys and values")
        return dict(value)
    return _convert_scalar(kind, value, path)


def _convert_scalar(kind: Any, value: Any, path: str) -> Any:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    is_bool = isinstance(value, bool)
    if kind is float and isinstance(value, int | float) and not is_bool:
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{path} has more than 300 digits: expected a number") from None
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, kind) and not (is_bool and kind is not bool):
        return value
    if kind is type(None) and value is None:
        return None
    raise ValueError(f"{path} is {value!r}: expected {names.get(kind, kind.__name__)}")
