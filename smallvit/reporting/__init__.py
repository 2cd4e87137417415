"""One self-contained HTML page of a run, or of several side by side: `report`."""

from smallvit.reporting.report import report

__all__ = ["report"]
