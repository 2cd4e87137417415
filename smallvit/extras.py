"""Imports that wait: of optional packages, and of what is heavy."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def require(module: str, extra: str, purpose: str = "this") -> Any:
    """Imports an optional package.

    Args:
        module: The module to import, such as "pyarrow.parquet".
        extra: The extra of smallvit that brings it.
        purpose: What needs it, as the beginning of the sentence: "reading Parquet".

    Raises:
        ImportError: It is not installed; the message holds the command that installs it.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ImportError(
            f"{purpose} needs {package}: pip install '.[{extra}]' in a checkout of smallvit",
            name=package,
        ) from error


def on_first_use(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A package's `__getattr__`, which imports a name from its module when it is first used.

    Args:
        package: The package's name.
        homes: The names that each of its modules holds.
    """

    def load(name: str) -> Any:
        for home, names in homes.items():
            if name in names:
                return getattr(import_module(f"{package}.{home}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
