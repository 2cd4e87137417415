"""The run folder: what is left of a training, and all that later steps need."""

import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from smallvit.data import Dataset
from smallvit.data.fit import Fit
from smallvit.files import read_json, read_tensors, write_bytes, write_json
from smallvit.runs.config import RunConfig, read_changes
from smallvit.runs.dataset import open_data
from smallvit.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
"""Of the folders that are written; older ones are read, newer ones refused."""

CONFIG, INFO, LOG = "config.yaml", "run.json", "log.jsonl"
WEIGHTS, LAST, EVALUATION, CHECKPOINTS = (
    "weights.safetensors",
    "last.safetensors",
    "evaluation.json",
    "checkpoints",
)


@dataclass(frozen=True)
class Run:
    """A run on disk. `Run.open` reads one.

    Attributes:
        folder: Where it lies.
        config: The resolved config.
        info: What else was recorded: versions, command, data, the model's shape, how it ended.
    """

    folder: Path
    config: RunConfig
    info: dict[str, Any]

    @classmethod
    def open(cls, folder: "str | os.PathLike[str] | Run") -> "Run":
        """Reads a run folder.

        Raises:
            ValueError: It is none, is damaged, or was written by a newer version.
        """
        if isinstance(folder, Run):
            return folder
        path = Path(folder)
        if not (path / INFO).is_file():
            raise ValueError(f"{path} is no run folder: it has no {INFO}{_near(path)}")
        info = read_json(path / INFO)
        version = info.get("format")
        if type(version) is not int or not 1 <= version <= FORMAT:
            raise ValueError(
                f"{path} has run format {version!r} and this smallvit reads up to {FORMAT}: it was "
                "written by a newer version; upgrade smallvit"
            )
        try:
            config = RunConfig.from_dict(read_changes(path / CONFIG, info))
        except FileNotFoundError as error:
            raise ValueError(f"{path} is damaged: it has no {CONFIG}") from error
        return cls(path, config, info)

    @classmethod
    def create(cls, folder: Path, config: RunConfig, info: "Mapping[str, Any]") -> "Run":
        """Makes a new run folder; one that exists and is not empty is never touched.

        Raises:
            ValueError: There is something already.
            OSError: It cannot be written.
        """
        refuse_taken(folder)
        run = cls(folder, config, {"format": FORMAT, **info})
        # Made elsewhere and moved: a process that dies here leaves no half of a run in its place.
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-run-", dir=folder.parent) as beside:
            made = Path(beside) / "run"
            made.mkdir()
            write_bytes(made / CONFIG, config.to_yaml().encode())
            write_json(made / INFO, run.info)
            if folder.exists():
                folder.rmdir()
            os.replace(made, folder)
        return run

    def note(self, **values: Any) -> "Run":
        """Adds to what is recorded; returns the run as it is now."""
        new = Run(self.folder, self.config, {**self.info, **values})
        write_json(self.folder / INFO, new.info)
        return new

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits."""
        return tuple(self.info["data"]["classes"])

    @property
    def image_size(self) -> Size:
        """Height and width of the images the model takes."""
        height, width = self.info["data"]["image_size"]
        return height, width

    @property
    def channels(self) -> int:
        """Of the images the model takes."""
        return int(self.info["data"]["channels"])

    @property
    def fit(self) -> Fit:
        """How images of other shapes come to that size."""
        fit: Fit = self.info["data"]["fit"]
        return fit

    @property
    def mean(self) -> tuple[float, ...]:
        """What is subtracted from each channel, on a scale of 0 to 1."""
        return tuple(self.info["mean"])

    @property
    def std(self) -> tuple[float, ...]:
        """What each channel is divided by, on the same scale."""
        return tuple(self.info["std"])

    @property
    def temperature(self) -> float:
        """What logits are divided by to give probabilities that can be trusted."""
        return float(self.info.get("temperature", 1.0))

    @property
    def finished(self) -> bool:
        """Whether the training came to its end."""
        return self.info.get("status") == "finished"

    def model(self, which: Literal["best", "last"] = "best") -> nn.Module:
        """The trained model, in eval mode on the CPU.

        Args:
            which: The weights chosen on validation, or those after the last step.
        """
        from smallvit.models.build import make_model

        about = self.info["model"]
        model = make_model(
            about["name"],
            num_classes=about["num_classes"],
            image_size=tuple(about["image_size"]),
            in_channels=about["in_channels"],
            options=about["options"],
        )
        model.load_state_dict(read_tensors(self.folder / (WEIGHTS if which == "best" else LAST)))
        return model.eval()

    def dataset(self) -> Dataset:
        """The data as the run saw it.

        Raises:
            ValueError: It is not there any more, or has changed.
        """
        dataset = open_data(self.config.data)
        self.check_data(dataset)
        return dataset

    def check_data(self, dataset: Dataset) -> None:
        """Refuses data that is not what the run was trained on, and says what is different."""
        old, new = self.info["data"], dataset.record()
        if old["fingerprint"] != new["fingerprint"]:
            told = [
                f"{name} was {old[name]} and is {new[name]}"
                for name in ("classes", "counts")
                if old[name] != new[name]
            ]
            what = "; ".join(told) or "some images are not the same"
            raise ValueError(f"{old['source']} has changed since the run began: {what}")

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        path = self.folder / LOG
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    @cached_property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name


def refuse_taken(folder: Path) -> None:
    """Refuses a place where something lies already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"{folder} exists and nothing in it is overwritten: choose another --out, or go on "
            "with --resume if it is an unfinished run"
        )


def new_folder(source: str, model: str, root: Path = Path("runs")) -> Path:
    """The first of runs/<data>-<model>-<n> that is not taken."""
    words = [re.sub(r"[^\w.]+", "-", text).strip("-.") or "data" for text in (source, model)]
    stem = "-".join([words[0].removesuffix(".npz").removesuffix(".csv"), words[1]])
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


def _near(path: Path) -> str:
    """Runs that lie where one was looked for."""
    place = path if path.is_dir() else path.parent
    runs = sorted(item.parent.name for item in place.glob(f"*/{INFO}"))
    if not runs:
        return ""
    return f"; in {place} there are {', '.join(runs[:5])}{' and more' if len(runs) > 5 else ''}"
