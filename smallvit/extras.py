"""Optional packages: imported where they are needed, or missed with a sentence that helps."""

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
            f"{purpose} needs {package}: pip install 'smallvit[{extra}]'", name=package
        ) from error
