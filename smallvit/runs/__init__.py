"""What a run is: its config, its folder, its checkpoints."""

from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run

__all__ = ["Run", "RunConfig"]
