"""What a run is: its config, its folder, its card, its checkpoints."""

from typing import TYPE_CHECKING

from smallvit.extras import on_first_use

if TYPE_CHECKING:
    from smallvit.runs.card import Card
    from smallvit.runs.config import RunConfig
    from smallvit.runs.folder import Run

__all__ = ["Card", "Run", "RunConfig"]

# Configs are read for `--help`, and cards of .onnx files: neither must wait for torch.
__getattr__ = on_first_use(
    __name__, {"card": ("Card",), "config": ("RunConfig",), "folder": ("Run",)}
)
