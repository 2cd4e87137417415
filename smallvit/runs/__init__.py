"""What a run is: its config, its folder, its checkpoints."""

from typing import TYPE_CHECKING

from smallvit.extras import on_first_use

if TYPE_CHECKING:
    from smallvit.runs.config import RunConfig
    from smallvit.runs.folder import Run

__all__ = ["Run", "RunConfig"]

# Configs are read for `--help`, which must not wait for torch.
__getattr__ = on_first_use(__name__, {"config": ("RunConfig",), "folder": ("Run",)})
