"""Results as data: one JSON file for each thing that was trained, as the repository keeps them."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from smallvit.config_io import differences, from_plain, to_plain
from smallvit.evaluation import Estimate
from smallvit.files import read_json, write_json
from smallvit.runs.changes import upgrade
from smallvit.runs.config import RunConfig

FORMAT = 1

NOT_THE_ROW = "Not the row as it is published: "
"""How the note of a result begins that trained something else under a row's name."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training of a result.

    Attributes:
        seed: Its seed.
        accuracy: On the test split after the last step, as a share with its 95 % interval.
        best_of_epochs: The highest accuracy on the test split at any validation, where it was
            logged. Papers report it; it is too good, and nothing here uses it.
        minutes: Of training.
        images_per_second: Of training.
        commit: Of the code; of a training in parts, those of all parts in order.
        hardware: The device, in the same way.
        torch: Its version, in the same way.
        curve: Lines of the log.
    """

    seed: int
    accuracy: Estimate
    best_of_epochs: float | None = None
    minutes: float | None = None
    images_per_second: float | None = None
    commit: str = ""
    hardware: str = ""
    torch: str = ""
    curve: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was trained, and what came out.

    Attributes:
        row: The row of a paper that it reproduces; None for anything else.
        title: What it is, where it is no row.
        data: What was trained on.
        model: The model.
        recipe: The recipe.
        command: What was typed.
        images_seen: By each training.
        parameters: Of the model.
        trainings: One per seed.
        config: Of the first training.
        notes: What one has to know, a sentence each.
        format: Of the file.
    """

    row: str | None = None
    title: str = ""
    data: str
    model: str
    recipe: str
    command: str = ""
    images_seen: int
    parameters: int
    trainings: tuple[Training, ...]
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{(self.row or self.title).replace('/', '-').replace(' ', '-')}.json"

    @property
    def as_published(self) -> bool:
        """Whether nothing is noted that makes it another experiment than its row."""
        return not any(note.startswith(NOT_THE_ROW) for note in self.notes)

    @property
    def accuracies(self) -> list[float]:
        """After the last step, by seed."""
        return [each.accuracy.value for each in self.trainings]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.mean(self.accuracies)

    @property
    def deviation(self) -> float | None:
        """Over seeds; None for one."""
        return statistics.stdev(self.accuracies) if len(self.trainings) > 1 else None

    def spread(self) -> str:
        """Mean and spread: 76.2 ± 0.3 of three seeds, 76.2 (75.4–77.0) of one."""
        if self.deviation is not None:
            return f"{100 * self.mean:.1f} ± {100 * self.deviation:.1f}"
        only = self.trainings[0].accuracy
        return f"{100 * only.value:.1f} ({100 * only.low:.1f}–{100 * only.high:.1f})"


def read_results(folder: Path) -> list[Result]:
    """All results of a folder, by the names of their files; none where there is no folder.

    Raises:
        ValueError: A file is damaged, or was written by a newer version.
    """
    return [_read(path, Result) for path in sorted(folder.glob("*.json"))]


def _read(path: Path, kind: type[T]) -> T:
    plain = read_json(path)
    if plain.get("format") != FORMAT:
        raise ValueError(f"{path} has format {plain.get('format')!r}: expected {FORMAT}")
    try:
        return from_plain(kind, plain)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def write_result(folder: Path, result: Result) -> Path:
    """Writes a result; seeds that the file has and the result has not are kept.

    Raises:
        ValueError: The file is of something else: another model, recipe, config or number of
            images.
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / result.name
    if path.is_file():
        old = _read(path, Result)
        for name in ("model", "recipe", "images_seen"):
            if getattr(old, name) != getattr(result, name):
                raise ValueError(
                    f"{path} has {name} {getattr(old, name)!r} and the new result "
                    f"{getattr(result, name)!r}: they do not belong together; move the file away"
                )
        other = differences(_trained(old.config), _trained(result.config))
        if old.config and result.config and (other or old.as_published != result.as_published):
            what = other[0] if other else "one is not the row as it is published"
            raise ValueError(
                f"{path} is of another training ({what}): they do not belong together; move the "
                "file away"
            )
        seeds = {each.seed: each for each in (*old.trainings, *result.trainings)}
        trainings = tuple(seeds[seed] for seed in sorted(seeds))
        result = replace(result, trainings=trainings, notes=old.notes)
    write_json(path, to_plain(result))
    return path


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One model trained on one number of images.

    Attributes:
        images: Training images.
        accuracy: On the test split, the mean over seeds with its 95 % interval.
        accuracies: By seed.
        minutes: Of training, the mean over seeds.
        images_seen: In training, by each.
    """

    images: int
    accuracy: Estimate
    accuracies: tuple[float, ...]
    minutes: float | None = None
    images_seen: int | None = None


@dataclass(frozen=True, kw_only=True)
class CurveOfModel:
    """One model on several numbers of images.

    Attributes:
        model: As it was named.
        parameters: Of the model.
        points: By number of images.
        answer: What more images would bring, in a sentence.
    """

    model: str
    parameters: int | None = None
    points: tuple[CurvePoint, ...] = ()
    answer: str = ""


@dataclass(frozen=True, kw_only=True)
class CurveResult:
    """Accuracy against the number of training images: what `smallvit curve --result` keeps.

    Attributes:
        title: What it is.
        data: What was trained on, by its name.
        budget: How long each run trained.
        models: Those that were trained.
        command: What was typed.
        commits: Of the code.
        hardware: The devices.
        torch: Its versions.
        notes: What one has to know, a sentence each; written by hand.
        format: Of the file.
    """

    title: str
    data: str
    budget: str
    models: tuple[CurveOfModel, ...]
    command: str = ""
    commits: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    format: int = FORMAT


def read_curve(path: Path) -> CurveResult:
    """The curves of a file.

    Raises:
        ValueError: It is damaged, or was written by a newer version.
    """
    return _read(path, CurveResult)


def write_curve(path: Path, result: CurveResult) -> None:
    """Writes curves; notes that the file has are kept.

    Raises:
        ValueError: The file is of other data.
        OSError: It cannot be written.
    """
    if path.is_file():
        old = read_curve(path)
        if Path(old.data).name != Path(result.data).name:  # older files have a path
            raise ValueError(f"{path} has curves of {old.data}, not of {result.data}: move it away")
        result = replace(result, notes=old.notes)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, to_plain(result))


def _trained(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config decides what is trained; not on what device, and not where the data is."""
    plain = RunConfig.from_dict(upgrade(config)).to_dict()
    kept = {name: plain[name] for name in ("model", "augment", "loss", "optim", "schedule")}
    kept["data"] = {"limit": plain["data"]["limit"]}
    kept["loop"] = {"batch_size": plain["loop"]["batch_size"]}
    return kept
