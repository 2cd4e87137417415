"""From a run to files that other programs can use."""

from smallvit.exporting.writing import Format, export
from smallvit.exporting.shipped import Shipped

__all__ = ["Format", "Shipped", "export"]
