"""The run folder: what a training leaves, and all that later steps need."""

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
from smallvit.evaluation import Evaluation
from smallvit.files import read_json, read_tensors, write_bytes, write_json
from smallvit.runs.card import Card
from smallvit.runs.config import RunConfig, read_changes
from smallvit.runs.dataset import open_data
from smallvit.sizes import Size
from smallvit.text import some

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
        folder: Its folder.
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
            ValueError: It is not a run folder, is damaged, or was written by a newer version.
        """
        if isinstance(folder, Run):
            return folder
        path = Path(folder)
        if not (path / INFO).is_file():
            raise ValueError(f"{path} is not a run folder: it has no {INFO}{_near(path)}")
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
            ValueError: The folder exists and is not empty.
            OSError: It cannot be written.
        """
        refuse_taken(folder)
        run = cls(folder, config, {"format": FORMAT, **info})
        # Written elsewhere and moved: a process that dies here leaves no half of a run.
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-run-", dir=folder.parent) as beside:
            new = Path(beside) / "run"
            new.mkdir()
            write_bytes(new / CONFIG, config.to_yaml().encode())
            write_json(new / INFO, run.info)
            if folder.exists():
                folder.rmdir()
            os.replace(new, folder)
        return run

    def note(self, **values: Any) -> "Run":
        """Adds to what is recorded; returns the run as it is now."""
        new = Run(self.folder, self.config, {**self.info, **values})
        write_json(self.folder / INFO, new.info)
        return new

    def settle(self, config: RunConfig) -> "Run":
        """Records the config that was really trained, once all steps are taken."""
        if config != self.config:
            write_bytes(self.folder / CONFIG, config.to_yaml().encode())
        return Run(self.folder, config, self.info)

    @cached_property
    def card(self) -> Card:
        """What goes with the weights; the keys of run.json are read here."""
        info, data = self.info, self.info["data"]
        return Card(
            classes=data["classes"],
            image_size=data["image_size"],
            channels=data["channels"],
            fit=data["fit"],
            mean=info["mean"],
            std=info["std"],
            temperature=info.get("temperature", 1.0),
            model=info["model"],
            config=self.config.to_dict(),
            versions={name: info[name] for name in ("smallvit", "torch") if name in info},
            facts={
                "parameters": info.get("parameters"),
                "steps": info.get("steps"),
                "counts": data.get("counts", {}),
            },
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits."""
        return self.card.classes

    @property
    def image_size(self) -> Size:
        """Height and width of the images the model takes."""
        return self.card.image_size

    @property
    def finished(self) -> bool:
        """Whether the training is finished."""
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
        """The data that the run was trained on.

        Raises:
            ValueError: It is gone, or has changed.
        """
        dataset = open_data(self.config.data)
        self.check_data(dataset)
        return dataset

    def check_data(self, dataset: Dataset) -> None:
        """Refuses data that is not what the run was trained on, and says what is different."""
        old, new = self.info["data"], dataset.record()
        if old["fingerprint"] != new["fingerprint"]:
            changes = [
                f"{name} was {old[name]} and is {new[name]}"
                for name in ("classes", "counts")
                if old[name] != new[name]
            ]
            what = "; ".join(changes) or "some images are not the same"
            raise ValueError(f"{old['source']} has changed since the run began: {what}")

    def evaluation(self) -> Evaluation | None:
        """How good the model is on the test split; None if that was not measured.

        Raises:
            ValueError: The file is damaged, or was written by a newer version.
        """
        path = self.folder / EVALUATION
        if not path.is_file():
            return None
        return Evaluation.from_json(path.read_text(encoding="utf-8"), str(path))

    def save_evaluation(self, evaluation: Evaluation) -> None:
        """Writes what `evaluation` reads."""
        write_bytes(self.folder / EVALUATION, evaluation.to_json().encode())

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
    """Refuses a folder that exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"{folder} exists and nothing in it is overwritten: choose another --out, or go on "
            "with --resume if it is an unfinished run"
        )


def new_folder(source: str, model: str, root: Path = Path("runs")) -> Path:
    """The first of runs/<data>-<model>-<n> that does not exist."""
    words = [re.sub(r"[^\w.]+", "-", text).strip("-.") or "data" for text in (source, model)]
    stem = "-".join([words[0].removesuffix(".npz").removesuffix(".csv"), words[1]])
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


def _near(path: Path) -> str:
    """Names the runs in or beside a folder that is not one."""
    folder = path if path.is_dir() else path.parent
    runs = sorted(item.parent.name for item in folder.glob(f"*/{INFO}"))
    return f"; in {folder} there are {some(runs, 5)}" if runs else ""
