"""The log of a run, and what a person sees of it."""

import contextlib
import errno
import json
import logging
import os
import sys
from contextlib import ExitStack
from importlib import import_module
from io import FileIO
from typing import Any

from smallvit.extras import require
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run
from smallvit.runs.places import LOG

logger = logging.getLogger(__name__)

#: Fields that differ between two runs that are otherwise the same.
TIMED = ("seconds", "images_per_second")

_WIDE = 110  # columns of a terminal from which everything has room


def duration(seconds: float) -> str:
    """4:05 or 1:02:03."""
    rounded = max(0, round(seconds))
    hours, minutes = divmod(rounded // 60, 60)
    return f"{hours}:{minutes:02d}:{rounded % 60:02d}" if hours else f"{minutes}:{rounded % 60:02d}"


def rounded_epoch(epoch: float) -> float:
    """An epoch as terminal and report show it: 18.9 or 0.125."""
    return round(epoch, 1 if epoch >= 1 else 3)


class Log:
    """log.jsonl always; a bar on a terminal, one line per interval elsewhere; others if wanted.

    Args:
        run: Whose log; its config says which others are wanted.
        steps: Of the run.
        size: Bytes of the file to keep: what follows was written after the checkpoint that a
            resumed run starts from.
        active: Whether anything is written or shown, as only in the first process.
        shown: Whether to show progress to a person.
    """

    def __init__(
        self, run: Run, *, steps: int, size: int = 0, active: bool = True, shown: bool = True
    ) -> None:
        self.steps, self._shown, self._told = steps, shown and active, steps
        self._file: FileIO | None = None
        self._board: Any = None
        self._wandb: Any = None
        self._bar: Any = None
        self._stack = ExitStack()
        if not active:
            return
        path = run.folder / LOG
        if (present := path.stat().st_size if path.is_file() else 0) < size:
            raise ValueError(
                f"{path} has {present:,} bytes and had {size:,} when the checkpoint was written: "
                "restore it, or start a new run"
            )
        # Unbuffered: what a full disk refused must not wait to be written before the next line.
        self._file = self._stack.enter_context(path.open("ab", buffering=0))
        self._file.truncate(size)
        self._file.seek(0, 2)
        if run.config.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run.folder / "tensorboard"))
            self._stack.callback(self._board.close)
        if run.config.wandb:
            config = run.config.to_dict()
            self._wandb = _wandb().init(project="smallvit", name=run.name, config=config)
            self._stack.callback(self._wandb.finish)
        if self._shown and sys.stderr.isatty():
            self._bar, self._task = self._make_bar()

    def _make_bar(self) -> tuple[Any, Any]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        console = Console(stderr=True)
        # In a narrow terminal the numbers and the time are worth more than cells of the bar.
        narrow = console.width < _WIDE
        bar = self._stack.enter_context(
            Progress(
                *([] if narrow else [TextColumn("{task.description}")]),
                BarColumn(10 if narrow else 40),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=True)),
                console=console,
                transient=True,
            )
        )
        return bar, bar.add_task("training", total=self.steps, numbers="")

    def flush(self) -> int:
        """Forces the file to disk; returns its bytes."""
        if self._file is None:
            return 0
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        return self._file.tell()

    def advance(self, step: int, steps: int) -> None:
        """Moves the bar to that many steps."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, total=steps)

    def write(self, kind: str, *, step: int, **values: Any) -> None:
        """One whole line in the log, or none; a full disk does not end the training."""
        if self._file is None:
            return
        line = json.dumps({"kind": kind, "step": step, **values}, ensure_ascii=False) + "\n"
        data, size = line.encode(), self._file.tell()
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            logger.warning("could not write to the log: %s; training goes on", error)
            with contextlib.suppress(OSError):
                self._file.truncate(size)
                self._file.seek(size)
        numbers = {
            f"{kind}/{name}": value
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def tell(self, sentence: str) -> None:
        """A line for a person, above the bar if there is one."""
        if not self._shown:
            return
        if self._bar is not None:
            self._bar.console.print(sentence, highlight=False, markup=False)
        else:
            logger.info("%s", sentence)

    def tell_plan(self, steps: int) -> None:
        """Another number of steps is planned: a line if it is another one by half or more."""
        if 2 / 3 < steps / self._told < 1.5:
            return
        how = "slower" if steps < self._told else "faster"
        self.tell(f"the machine is {how} than before: about {steps:,} steps, not {self._told:,}")
        self._told = steps

    def show_interval(
        self,
        epoch: float,
        train: dict[str, float],
        val: dict[str, float],
        speed: float,
        left: float,
    ) -> None:
        """Numbers, images per second and seconds left: on the bar, or as a line."""
        words = [f"{name} {_number(name, value)}" for name, value in train.items()]
        words += [f"val {_number(name, value)}" for name, value in val.items()]
        words.append(f"{speed:,.0f} images/s")
        if self._bar is not None:
            self._bar.update(self._task, numbers=" · ".join(words), refresh=True)
        else:
            self.tell(
                " · ".join([f"epoch {rounded_epoch(epoch):g}", *words, f"{duration(left)} left"])
            )

    def close(self) -> None:
        """Closes everything."""
        self._stack.close()


def _number(name: str, value: float) -> str:
    return f"{value:.1%}" if name == "accuracy" else f"{value:.3f}"


def require_loggers(config: RunConfig) -> None:
    """Refuses a missing package before anything is trained, not after.

    Raises:
        ImportError: One is missing; the message holds the command that installs it.
    """
    if config.tensorboard:
        require("tensorboard", "tensorboard", "--tensorboard")
    if config.wandb:
        _wandb()


def _wandb() -> Any:
    try:
        return import_module("wandb")
    except ModuleNotFoundError as error:
        raise ImportError("--wandb needs wandb: pip install wandb", name="wandb") from error
