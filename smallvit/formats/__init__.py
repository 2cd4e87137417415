"""A trained model as files for other programs: one module per format, one row each in `FORMATS`.

From the table follow the choices and help of the commands, `Predictor.open` and `info`. A format's
module has three functions. Each raises ValueError with a sentence that says what is wrong with the
file or the model.

    write(path, card, model, check)     writes the model once `check` has passed what was made of it
    load(path, device) -> Loaded        opens what `write` wrote
    read_card(path) -> Card             the card alone, without the weights where that is possible

Importing this, and opening an .onnx file, needs no PyTorch.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from smallvit.extras import on_first_use

if TYPE_CHECKING:
    from smallvit.formats.exporting import export
    from smallvit.formats.shipped import Shipped

__all__ = ["FORMATS", "Format", "Shipped", "check_trust", "export", "format_of", "sources"]


class Format(NamedTuple):
    """A row of the table.

    Attributes:
        module: The full name of its module.
        about: What it is and what reads it, for `smallvit export --help`.
        suffix: How the names of its files end; empty for a folder.
        marker: The file by which a folder is recognised; empty for a file.
        script: Whether a Python script of the same name that uses it may be written beside it.
        extra: The extra of smallvit that brings the packages for writing it.
        packages: The modules of these packages.
        runs_code: Whether opening a file can run code that is in it.
    """

    module: str
    about: str
    suffix: str = ""
    marker: str = ""
    script: bool = False
    extra: str = ""
    packages: tuple[str, ...] = ()
    runs_code: bool = False

    @property
    def code(self) -> Any:
        """Its module, imported on first use."""
        return import_module(self.module)


FORMATS = {
    "onnx": Format(
        "smallvit.formats.onnx",
        "a graph for ONNX Runtime that takes decoded images of any size",
        suffix=".onnx",
        script=True,
        extra="onnx",
        packages=("onnxruntime", "onnx", "onnxscript"),
    ),
    "pt2": Format(
        "smallvit.formats.pt2",
        "the same graph for torch.export.load",
        suffix=".pt2",
        runs_code=True,
    ),
    "safetensors": Format(
        "smallvit.formats.safetensors", "the weights and their card", suffix=".safetensors"
    ),
    "timm": Format(
        "smallvit.formats.timm_folder", "a folder for timm.create_model", marker="config.json"
    ),
}


TRUST = "Open a .pt2 file, which can hold code that then runs."
"""The help of `--trust`."""


def sources() -> str:
    """What can be opened, for messages and help."""
    kinds = (record.suffix or f"{name} folder" for name, record in FORMATS.items())
    return f"a run folder, or an exported model ({', '.join(kinds)})"


def check_trust(path: Path, record: Format) -> None:
    """Refuses a file that could run code.

    Raises:
        ValueError: Its format can; the message says what to do.
    """
    if record.runs_code:
        raise ValueError(
            f"{path} can hold code that runs when it is opened, as every {record.suffix} file can: "
            "say --trust (trust=True) if you know where it comes from, or use the run's .onnx or "
            ".safetensors file, which hold no code"
        )


def format_of(path: Path) -> Format | None:
    """The format of an exported file or folder; None for any other folder.

    Raises:
        ValueError: It is another file, or does not exist although its name has a known suffix.
    """
    for record in FORMATS.values():
        if record.marker and (path / record.marker).is_file():
            return record
        if record.suffix and record.suffix == path.suffix.lower() and not path.is_dir():
            if path.exists():
                return record
            raise ValueError(f"{path} does not exist: expected {sources()}")
    if path.is_file():
        raise ValueError(f"{path} is not a model: expected {sources()}")
    return None


__getattr__ = on_first_use(__name__, {"exporting": ("export",), "shipped": ("Shipped",)})
