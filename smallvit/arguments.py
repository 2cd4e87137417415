"""What callers hand over, held against the signature: one sentence for all that does not fit.

`checked` is for the doors of the package, functions and constructors that people call, not for
what runs in every step. It knows plain values, paths, lists of them, arrays and classes; what a
value must be beyond its kind and range is the function's own business.
"""

import builtins
import collections.abc
import functools
import inspect
import math
import numbers
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

P = ParamSpec("P")
R = TypeVar("R")


class Between(NamedTuple):
    """The range of a number: both ends are in it, but for the one that is left out."""

    least: float
    most: float
    left_out: float | None = None

    def words(self, value: float) -> str:
        """What is allowed, for a value that is not."""
        if self.most not in (_MANY, _LARGEST):
            least = f"above {self.least:,}" if self.left_out == self.least else f"{self.least:,}"
            below = "up to below" if self.left_out == self.most else "to"
            return f"{least} {below} {self.most:,}"
        if value > self.most:
            return f"at most {self.most:,.10g}"
        return (
            f"{self.least:,} or more" if self.left_out is None else f"a number above {self.least:,}"
        )


_MANY, _LARGEST = 10**9, sys.float_info.max
"""The ends of ranges whose end is not worth mentioning: of whole numbers, and of others."""

Positive = Annotated[int, Between(1, _MANY)]
Natural = Annotated[int, Between(0, _MANY)]
Amount = Annotated[float, Between(0, _LARGEST)]
Width = Annotated[int, Between(1, 65_536)]
"""Of layers: more would not fit any memory."""

Port = Annotated[int, Between(0, 65_535)]
Share = Annotated[float, Between(0, 1)]
Rate = Annotated[float, Between(0, 1, left_out=1)]
AboveZero = Annotated[float, Between(0, _LARGEST, left_out=0)]
Seed = Annotated[int, Between(-(2**63), 2**63 - 1)]

_OF_ARRAYS = "array_type"
"""Where one of jaxtyping's hints has the class of arrays that it is about."""

_LISTS = (collections.abc.Sequence, collections.abc.Iterable, list)
_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    os.PathLike: "a path",
    collections.abc.Mapping: "keys and values",
    dict: "keys and values",
}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which now refuses arguments that its signature does not allow.

    It raises TypeError for what is of another kind, and ValueError for what is out of range or NaN.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # which says what is missing or unknown
        for name, hint in _hints(function).items():
            if name in given:
                check(name, given[name], hint)
        return function(*args, **kwargs)

    return call


def check_fields(instance: Any) -> None:
    """Refuses a dataclass whose fields are not what they are declared to be; see `checked`."""
    for name, hint in _hints(instance.__class__).items():
        check(name, getattr(instance, name), hint)


def check(name: str, value: Any, hint: Any) -> None:
    """Refuses a value that a hint does not allow; see `checked`."""
    verb = "" if name.endswith(" holds") else " is"
    if not _matches(hint, value):
        kind = ValueError if isinstance(value, float) and math.isnan(value) else TypeError
        raise kind(f"{name}{verb} {described(value)}: expected is {_expected(hint)}")
    for part in _parts(hint):
        origin, inner = get_origin(part), get_args(part)
        if origin is os.PathLike and isinstance(value, str) and (not value or "\0" in value):
            raise ValueError(f"{name}{verb} {value!r}: expected is the name of a file or folder")
        if origin in (*_LISTS, tuple) and _is_list(value):
            each = inner if origin is tuple and ... not in inner else inner[:1] * len(value)
            for item, kind in zip(value, each, strict=False):
                check(f"{name.removesuffix(' holds')} holds", item, kind)
        if origin is Annotated and _is_number(value):
            allowed: Between = inner[1]
            if not allowed.least <= value <= allowed.most or value == allowed.left_out:
                words = allowed.words(value)
                raise ValueError(f"{name}{verb} {described(value)}: allowed is {words}")
        if origin is Literal and value not in inner and isinstance(value, str):
            raise ValueError(f"{name}{verb} {value!r}: allowed are {_listed(part)}")


def described(value: Any) -> str:
    """A value as a sentence can hold it."""
    if value is None or isinstance(value, bool | str | bytes | numbers.Real):
        text = repr(value)
        if isinstance(value, int) and 10**15 < abs(value) < 10**300:
            text = f"{value:.6g}"
        return text if len(text) <= 60 else f"{text[:57]}..."
    kind = type(value).__name__
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"a {kind} of {getattr(value, 'dtype', 'unknown')} with the shape {tuple(shape)}"
    return f"{'an' if kind[:1] in 'aeiouAEIOU' else 'a'} {kind}"


@functools.cache
def _hints(of: Any) -> dict[str, Any]:
    """The hints of a function or dataclass by name, resolved when they are first needed."""
    module = inspect.getmodule(of)
    names = _Names(vars(module) if module else {})
    known = {}
    for name, hint in inspect.get_annotations(of).items():
        try:
            known[name] = eval(hint, {}, names) if isinstance(hint, str) else hint
        except Exception:  # a hint that only a type checker understands
            continue
    known.pop("return", None)
    return known


class _Names(dict[str, Any]):
    """Names in a hint; a class that is imported for type checkers alone is known by its name."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or _NamedType(name, (_Named,), {})


class _NamedType(type):
    """Lets `nn.Module` stand for a class too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or name == _OF_ARRAYS:
            raise AttributeError(name)
        return type(cls)(name, (_Named,), {})


class _Named(metaclass=_NamedType):
    """Stands for a class that is not imported."""


def _parts(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the hint alone."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    """Lists, tuples and arrays, but no text and no mapping."""
    listed = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return listed and not isinstance(value, str | bytes | Mapping)


def _matches(hint: Any, value: Any) -> bool:
    """Whether a value is of the kind that a hint names; of unknown hints everything is."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_matches(part, value) for part in get_args(hint))
    if origin is Annotated:
        return _matches(get_args(hint)[0], value)
    if origin is Literal:
        return any(type(value) is type(choice) for choice in get_args(hint))
    if origin in (collections.abc.Sequence, list):
        return _is_list(value)
    if origin is collections.abc.Iterable:
        return isinstance(value, collections.abc.Iterable) and not isinstance(value, str | bytes)
    if hint is None:
        return value is None
    kind = hint if origin is tuple else origin or hint
    kind = getattr(kind, _OF_ARRAYS, kind)
    if kind is bool:
        return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")
    if kind is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if kind is float:
        return _is_number(value) and value == value
    if isinstance(kind, _NamedType):
        return any(base.__name__ == kind.__name__ for base in type(value).__mro__)
    if not isinstance(kind, type) or kind is tuple or kind.__module__ == "typing":
        return True
    return isinstance(value, kind)


def _expected(hint: Any) -> str:
    """What a hint allows, in words."""
    words = dict.fromkeys(_word(part) for part in _parts(hint) if part not in (None, type(None)))
    return " or ".join(words)


def _word(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Annotated:
        return _word(get_args(hint)[0])
    if origin is Literal:
        return f"one of {_listed(hint)}"
    if origin in _LISTS:
        return f"a list, each {_expected(get_args(hint)[0])}"
    kind = getattr(origin or hint, _OF_ARRAYS, origin or hint)
    return _WORDS.get(kind) or f"a {getattr(kind, '__name__', kind)}"


def _listed(hint: Any) -> str:
    return ", ".join(map(str, get_args(hint)))
