"""A trained model as files for other programs: each format in one module, all in one table.

Names load on first use: the table, and opening an .onnx file, need no PyTorch.
"""

from typing import TYPE_CHECKING, Any

from smallvit.formats.table import FORMATS, Format, format_of, sources

if TYPE_CHECKING:
    from smallvit.formats.exporting import export
    from smallvit.formats.shipped import Shipped

__all__ = ["FORMATS", "Format", "Shipped", "export", "format_of", "sources"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    homes = {"export": "exporting", "Shipped": "shipped"}
    if name not in homes:
        raise AttributeError(f"module 'smallvit.formats' has no attribute {name!r}")
    return getattr(import_module(f"smallvit.formats.{homes[name]}"), name)
