"""The export formats: one row each, from which commands, help and `Predictor.open` follow.

A format is a row of `FORMATS` and a module with the functions of `FormatModule`.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from torch import nn

    from smallvit.formats.loaded import Loaded
    from smallvit.formats.shipped import Check
    from smallvit.runs.card import Card


class FormatModule(Protocol):
    """What a format's module defines."""

    def write(self, path: Path, card: "Card", model: "nn.Module", check: "Check") -> None:
        """Writes the model, after `check` has passed on what was made of it.

        Raises:
            ValueError: The check refuses it, or the format cannot hold such a model.
        """

    def load(self, path: Path, device: str) -> "Loaded":
        """Opens what `write` wrote.

        Raises:
            ValueError: It is damaged, has no card, or there is no such device.
        """

    def read_card(self, path: Path) -> "Card":
        """The card alone, without the weights where that is possible.

        Raises:
            ValueError: It is damaged, or has no card.
        """


@dataclass(frozen=True, kw_only=True)
class Format:
    """A row of the table.

    Attributes:
        module: The full name of its module.
        about: What it is and what reads it, for `smallvit export --help`.
        suffix: How the names of its files end; empty for a folder.
        marker: The file by which a folder is recognised; empty for a file.
        script: Whether a Python script of the same name that uses it may be written beside it.
        extra: The extra of smallvit that brings the packages for writing it.
        packages: The modules of these packages.
    """

    module: str
    about: str
    suffix: str = ""
    marker: str = ""
    script: bool = False
    extra: str = ""
    packages: tuple[str, ...] = ()

    @property
    def code(self) -> FormatModule:
        """Its module, imported on first use."""
        return cast("FormatModule", import_module(self.module))


FORMATS = {
    "onnx": Format(
        module="smallvit.formats.onnx",
        about="a graph for ONNX Runtime that takes decoded images of any size",
        suffix=".onnx",
        script=True,
        extra="onnx",
        packages=("onnxruntime", "onnx", "onnxscript"),
    ),
    "pt2": Format(
        module="smallvit.formats.pt2",
        about="the same graph for torch.export.load",
        suffix=".pt2",
    ),
    "safetensors": Format(
        module="smallvit.formats.safetensors",
        about="the weights and their description",
        suffix=".safetensors",
    ),
    "timm": Format(
        module="smallvit.formats.timm_folder",
        about="a folder for timm.create_model",
        marker="config.json",
    ),
}


def sources() -> str:
    """What can be opened, for messages and help: "a run folder, or an exported model (…)"."""
    kinds = (record.suffix or f"{name} folder" for name, record in FORMATS.items())
    return f"a run folder, or an exported model ({', '.join(kinds)})"


def format_of(path: Path) -> Format | None:
    """The format of an exported file or folder; None for any other folder.

    Raises:
        ValueError: It is a file of no known format, or does not exist although its name has the
            suffix of one.
    """
    for record in FORMATS.values():
        if record.marker and (path / record.marker).is_file():
            return record
        if record.suffix == path.suffix.lower() != "" and not path.is_dir():
            if not path.exists():
                raise ValueError(f"{path} does not exist: expected {sources()}")
            return record
    if path.is_file():
        raise ValueError(f"{path} is neither: expected {sources()}")
    return None
