"""The run folder: what a training leaves, and all that later steps need."""

import errno
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from torch import nn

from smallvit.arguments import checked
from smallvit.data import Dataset, Samples
from smallvit.evaluation import Evaluation
from smallvit.files import hash_bytes, read_json, write_bytes, write_json
from smallvit.runs import reading
from smallvit.runs.card import Card
from smallvit.runs.config import DataConfig, RunConfig
from smallvit.runs.dataset import located, open_data
from smallvit.runs.places import (
    CONFIG,
    EVALUATION,
    FINAL,
    INFO,
    LAST,
    LOCK,
    LOG,
    NEW,
    WEIGHTS,
    TakenError,
    locked,
    refuse_link,
    refuse_taken,
    resume_command,
    runs_near,
)
from smallvit.sizes import Size

logger = logging.getLogger(__name__)


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
    @checked
    def open(cls, folder: "str | os.PathLike[str] | Run") -> "Run":
        """Reads a run folder; of a cross-validation, the run that was trained on all images.

        Raises:
            ValueError: It is not a run folder, is damaged, or was written by a newer version.
        """
        if isinstance(folder, Run):
            return folder
        path = Path(folder)
        if not (path / INFO).is_file() and (path / FINAL / INFO).is_file():
            path = path / FINAL
        if not (path / INFO).is_file():
            if folds_of(path):
                raise ValueError(
                    f"{path} is a cross-validation without its model on all images: train that "
                    f"with {resume_command(path)}"
                )
            raise ValueError(f"{path} is not a run folder: it has no {INFO}{runs_near(path)}")
        info = reading.read_info(path / INFO)
        run = cls(path, reading.read_config(path / CONFIG, info), info)
        run.check_config()
        return run

    @classmethod
    def create(cls, folder: Path, config: RunConfig, info: Mapping[str, Any]) -> "Run":
        """Makes a new run folder; one that exists and is not empty is never touched.

        Raises:
            TakenError: The folder exists and is not empty.
            OSError: It cannot be written.
        """
        refuse_taken(folder)
        text = config.to_yaml().encode()
        first = {
            "format": reading.FORMAT,
            "hashes": {CONFIG: hash_bytes(text)},
            "config": config.to_dict(),
        }
        run = cls(folder, config, {**first, **info})
        target = folder.resolve()  # the folder itself may be a link
        # Written elsewhere and moved: a process that dies here leaves no half of a run.
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=NEW, dir=target.parent) as beside:
            new = Path(beside) / "run"
            new.mkdir()
            write_bytes(new / CONFIG, text)
            write_json(new / INFO, run.info)
            try:
                if target.exists():
                    target.rmdir()
                os.replace(new, target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise TakenError(folder) from error  # by a process that was faster
        return run

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {self._status}, {self._about})"

    def _repr_html_(self) -> str:
        """For notebooks: what it is, how it stands, how good it is."""
        from smallvit.pages import html_table

        info = self.info
        rows = [
            ("folder", str(self.folder)),
            ("status", self._status),
            ("parameters", f"{info.get('parameters', 0):,}"),
            ("device", str(info.get("device", ""))),
        ]
        try:
            evaluation = self.evaluation()
            tested = "not measured" if evaluation is None else evaluation.summary()
        except ValueError as error:  # a damaged file must not hide the rest
            tested = str(error)
        first, *more = tested.split("\n")
        return html_table(self._about, [*rows, ("test", first)], more)

    @property
    def _status(self) -> str:
        if self.finished and "steps" in self.info:
            return f"finished after {self.info['steps']:,} steps"
        return str(self.info.get("status", "unfinished"))

    @property
    def _about(self) -> str:
        info = self.info
        model = info.get("model", {}).get("name") or self.config.model.name
        source = Path(str(info.get("data", {}).get("source") or self.config.data.source)).name
        return f"{model} on {source}"

    def note(self, **values: Any) -> "Run":
        """Adds to what is recorded; returns the run as it is now."""
        new = Run(self.folder, self.config, {**self.info, **values})
        write_json(self.folder / INFO, new.info)
        return new

    def settle(self, config: RunConfig) -> "Run":
        """Records the config that was really trained, once all steps are taken."""
        if config == self.config:
            return self
        # run.json first: a process that dies in between leaves a config that is still known.
        run = self.note(settled=config.to_dict())
        write_bytes(self.folder / CONFIG, config.to_yaml().encode())
        return Run(self.folder, config, run.info)

    def moved(self, **places: Any) -> "Run":
        """Records where its data lies now: `source` and `root` of its config's `data`.

        What lies there is compared with what the run was trained on where it goes on.
        """
        config = self.config.changed({"data": places})
        if config == self.config:
            return self
        with self.locked():
            write_bytes(self.folder / CONFIG, config.to_yaml().encode())
            run = Run(self.folder, config, self.info)
            return run.note(hashes=run.hashed(CONFIG))

    def across_parts(self, key: str) -> tuple[str, ...]:
        """What is recorded under a key, such as the device, of all parts of a run in order."""
        parts = [*self.info.get("earlier", []), self.info]
        return tuple(dict.fromkeys(str(part[key]) for part in parts if key in part))

    @cached_property
    def card(self) -> Card:
        """What goes with the weights."""
        return reading.card_of(self.info, self.config, self.folder / INFO)

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

    def warn_of_rest(self) -> None:
        """Says that the training is not finished, where it is not: its weights are used as is."""
        if self.finished:
            return
        done, planned = self.info.get("step"), self.config.schedule.steps
        steps = f" after {done:,} of {planned:,} steps" if done is not None and planned else ""
        logger.warning(
            "the training of %s is not finished%s, and these are the best weights so far; to go "
            "on: %s",
            self.folder,
            steps,
            resume_command(self.folder),
        )

    def model(self, which: Literal["best", "last"] = "best") -> nn.Module:
        """The trained model, in eval mode on the CPU.

        Args:
            which: The weights chosen on validation, or those after the last step.
        """
        model = self.untrained()
        name = WEIGHTS if which == "best" else LAST
        self.check_hash(name)
        reading.load_weights(model, self.folder / name)
        return model.eval()

    def untrained(self) -> nn.Module:
        """The model as it was built for the run, with random weights.

        Raises:
            ValueError: What is recorded of it is damaged.
        """
        return reading.model_of(self.info, self.folder / INFO)

    def check_config(self) -> None:
        """Refuses a config that is not the one the run began or ended with; comments may change.

        Raises:
            ValueError: Values differ; all of them are named.
        """
        reading.check_config(self.config, self.info, self.folder)

    def check_hash(self, name: str) -> None:
        """Refuses a file of the run that is not the one that was written.

        Raises:
            ValueError: It has changed since. Files without a recorded hash are not checked.
        """
        recorded, path = self.info.get("hashes", {}).get(name), self.folder / name
        if recorded and path.is_file() and hash_bytes(path.read_bytes()) != recorded:
            raise ValueError(
                f"{path} is not the file that was written: it was edited or is damaged; restore it"
            )

    def hashed(self, *names: str) -> dict[str, str]:
        """Recorded hashes, with those of files as they are now; for `note(hashes=…)`."""
        paths = [self.folder / name for name in names]
        new = {path.name: hash_bytes(path.read_bytes()) for path in paths if path.is_file()}
        return {**self.info.get("hashes", {}), **new}

    def locked(self) -> AbstractContextManager[None]:
        """Keeps other processes from writing this folder; the lock of a dead process is gone.

        Raises:
            ValueError: Another process is writing it, or it holds a link.
        """
        for path in self.folder.iterdir():
            refuse_link(path)
        return locked(self.folder / LOCK)

    def dataset(self) -> Dataset:
        """The data that the run was trained on; it is never fetched, whatever the config says.

        Raises:
            ValueError: It is gone, or has changed.
        """
        dataset = open_data(self.located())
        self.check_data(dataset)
        return dataset

    def located(self) -> DataConfig:
        """Its config's `data`, with the source where it lies now; see `runs.dataset.located`."""
        return located(self.folder, self.config.data, self.info.get("data", {}))

    def count_seen(self, *samples: Samples) -> int | None:
        """How many of some images the run was trained on, or chosen by; None if its data is gone.

        Images are compared by their bytes.
        """
        try:
            own = self.dataset()
        except (OSError, ValueError):
            return None
        parts = [own.split(name) for name in ("train", "val") if name in own.splits]
        known = {row.tobytes() for part in parts for row in part.survey.digests}
        return sum(row.tobytes() in known for part in samples for row in part.survey.digests)

    def check_data(self, dataset: Dataset) -> None:
        """Refuses data that is not what the run was trained on, and says what is different."""
        reading.check_data(dataset, self.info)

    def evaluation(self) -> Evaluation | None:
        """How good the model is on the test split; None if that was not measured.

        Raises:
            ValueError: The file is damaged, or was written by a newer version.
        """
        path = self.folder / EVALUATION
        if not path.is_file():
            return None
        self._as_recorded().check_hash(EVALUATION)
        return Evaluation.from_json(reading.read_text(path), str(path))

    def save_evaluation(self, evaluation: Evaluation) -> None:
        """Writes what `evaluation` reads.

        Raises:
            ValueError: The run is being trained, or its folder holds a link.
        """
        with self.locked():
            now = self._as_recorded()
            hashes = {k: v for k, v in now.info.get("hashes", {}).items() if k != EVALUATION}
            # A process that dies in between leaves an evaluation without a hash, not a wrong one.
            now = now.note(hashes=hashes)
            write_bytes(self.folder / EVALUATION, evaluation.to_json().encode())
            now.note(hashes=now.hashed(EVALUATION))

    def _as_recorded(self) -> "Run":
        """With what is recorded on disk now: another process may have evaluated again."""
        path = self.folder / INFO
        return Run(self.folder, self.config, read_json(path)) if path.is_file() else self

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log.

        Raises:
            ValueError: It is damaged.
        """
        self.check_hash(LOG)
        return reading.read_log(self.folder / LOG)

    @cached_property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name


def folds_of(folder: str | os.PathLike[str]) -> list[Run]:
    """The runs of a cross-validation, in order; none where the folder is something else."""
    if (Path(folder) / INFO).is_file():
        return []
    folders = [path.parent for path in Path(folder).glob(f"fold-*/{INFO}")]
    folds = [path for path in folders if path.name[5:].isdecimal()]
    return [Run.open(path) for path in sorted(folds, key=lambda path: int(path.name[5:]))]
