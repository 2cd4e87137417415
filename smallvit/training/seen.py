"""Test images that a run has learned from before: the weights it starts from may know them."""

from smallvit.data import Dataset
from smallvit.files import at_home
from smallvit.runs.config import RunConfig
from smallvit.runs.folder import Run, is_run
from smallvit.text import counted
from smallvit.training.objective import find_objective


def seen_before(config: RunConfig, dataset: Dataset) -> tuple[int, list[str]]:
    """How many of the test images the run that this one starts from has learned from, and notes.

    Raises:
        ValueError: It is a cross-validation, and its start learned from the labels of images that
            are tested.
    """
    path = at_home(config.model.pretrained or "")
    folder = path if path.is_dir() else path.parent
    if not config.model.pretrained or "test" not in dataset.splits or not is_run(folder):
        return 0, []
    run, tested = Run.open(folder), dataset.split("test")
    earlier = run.info.get("seen_before", 0)
    if dataset.tested == run.info.get("data", {}).get("tested"):
        count: int | None = earlier  # it was tested on the same images, so it has not seen others
    elif (count := run.count_seen(tested)) is not None:
        count = max(count, min(earlier, len(tested)))
    images = counted(len(tested), "test image")
    if count is None:
        return 0, [
            f"the images that {run.folder} learned from are not here any more: if some of the "
            f"{images} are among them, the accuracy is too high"
        ]
    if not count:
        return 0, []
    if config.data.folds and find_objective(run.config.loss.objective).needs_labels:
        raise ValueError(
            f"with --folds every image is tested, and {run.folder} was trained on {count:,} of the "
            f"{images} of this fold: leave out --pretrained or --folds"
        )
    return count, [
        f"{run.folder} has learned from {count:,} of the {images}, so the accuracy is too high: "
        "start from a run with the same --seed and --test, or from scratch"
    ]
