"""From a run to files that other programs can use."""

from smallvit.formats.shipped import Shipped
from smallvit.formats.writing import Format, export

__all__ = ["Format", "Shipped", "export"]
