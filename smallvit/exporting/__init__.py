"""From a run to files that other programs can use."""

from smallvit.exporting.shipped import Shipped
from smallvit.exporting.writing import Format, export

__all__ = ["Format", "Shipped", "export"]
