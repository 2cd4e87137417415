"""A run in plain words, and what its number does not tell."""

from smallvit.evaluation.results import Evaluation
from smallvit.reporting.facts import Facts
from smallvit.runs.folder import Run
from smallvit.text import counted, shown

#: What a headline number is called and what it means.
MEANINGS = {
    "accuracy": ("Accuracy", "share of images that get the right answer"),
    "top5": ("Top-5 accuracy", "share whose class is among the five most probable"),
    "balanced_accuracy": ("Balanced accuracy", "mean recall: every class counts the same"),
    "precision": ("Precision", "how often an answer is right, averaged over classes"),
    "recall": ("Recall", "how much of a class is found, averaged over classes"),
    "f1": ("F1", "precision and recall in one, averaged over classes"),
    "weighted_precision": ("Precision, weighted", "the same, large classes counting more"),
    "weighted_recall": ("Recall, weighted", "large classes counting more: equals accuracy"),
    "weighted_f1": ("F1, weighted", "large classes counting more"),
    "log_loss": ("Log loss", "surprise at the true class: 0 is perfect, lower is better"),
    "ece": ("Calibration error", "mean distance of confidence and accuracy: lower is better"),
}


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return counted(max(1, round(seconds)), "second")
    if seconds < 5400:
        return counted(round(seconds / 60), "minute")
    return f"{seconds / 3600:.1f} hours"


def trained_seconds(facts: Facts) -> float:
    """What the log's lines say they took."""
    return sum(float(line.get("seconds", 0)) for line in facts.log)


def about_run(facts: Facts) -> list[str]:
    """Model, data and training, a sentence each."""
    run, data = facts.run, facts.run.info["data"]
    height, width = run.image_size
    counts = data["counts"]
    start = (
        f"starting from {run.config.model.pretrained}"
        if run.config.model.pretrained
        else ("from scratch")
    )
    parameters = run.info.get("parameters", 0)
    size = f"{parameters / 1e6:.2f} million parameters" if parameters else "unknown size"
    name = run.info["model"]["name"]
    images = counted(counts.get("train", 0), "image")
    first = (
        f"{name} ({size}) was trained {start} on {shown(data['source'])}: {images} of "
        f"{counted(len(run.classes), 'class', 'classes')}, "
        f"brought to {height}×{width} pixels ({run.card.fit})."
    )
    return [first, *_training(facts)]


def _training(facts: Facts) -> list[str]:
    run = facts.run
    last = max((line["step"] for line in facts.log), default=0)
    steps = int(run.info.get("steps", last))
    if not steps:
        return ["Nothing was trained yet."]
    images = steps * run.config.loop.batch_size
    passes = images / max(run.info["data"]["counts"].get("train", 1), 1)
    where = run.info.get("device", "an unknown device").replace("cpu", "a CPU")
    told = [
        f"It saw {counted(images, 'image')} in {counted(steps, 'step')}, each one about "
        f"{passes:.3g} times and differently augmented, in {duration(trained_seconds(facts))} on "
        f"{where}."
    ]
    val = run.info["data"]["counts"].get("val", 0)
    best = run.info.get("best_step")
    if run.finished and val:
        told.append(
            f"Of its weights, those after step {best:,} are kept: they did best on "
            f"{counted(val, 'validation image')}."
        )
    elif run.finished:
        told.append("There was no validation split; the weights after the last step are kept.")
    else:
        planned = run.config.schedule.steps or steps
        told.append(f"It has not come to its end: {planned:,} steps were planned.")
    return told


def about_result(found: Evaluation) -> str:
    """The accuracy in plain words."""
    value, low, high = (
        100 * part for part in (found.accuracy.value, found.accuracy.low, found.accuracy.high)
    )
    seen = (
        f"On {counted(found.count, 'test image')} it had never seen"
        if found.split == "test"
        else f"On {counted(found.count, 'validation image')}, by which its weights were chosen"
    )
    return (
        f"{seen}, it gives the right answer for {value:.1f} % of them. With so many images the "
        f"share among all images of this kind is between {low:.1f} and {high:.1f} %, with 95 % "
        f"confidence; guessing the most frequent class would be right for "
        f"{100 * guessing(found):.1f} %."
    )


def guessing(found: Evaluation) -> float:
    """The share that is right if the most frequent class is always answered."""
    return max(row.support for row in found.per_class) / found.count


def caveats(facts: Facts) -> list[str]:
    """What the accuracy does not tell, a sentence each."""
    found = facts.evaluation
    if found is None:
        return []
    told = []
    if found.split == "val":
        told.append(
            "It is too good to be true: the weights were chosen by these very images, and there "
            "is no test split. Hold some images out (--test 0.2) for a number to trust."
        )
    told += _data_caveats(facts, found)
    present = sorted((row for row in found.per_class if row.support), key=lambda r: r.recall.value)
    if len(present) > 1 and present[-1].recall.value - present[0].recall.value > 0.1:
        told.append(
            f"It is a mean. Of {shown(present[0].name)} it finds "
            f"{100 * present[0].recall.value:.0f} %, of {shown(present[-1].name)} "
            f"{100 * present[-1].recall.value:.0f} %."
        )
    told.append(
        "It holds for images taken as these were. Another camera, place or time may give quite "
        "another number."
    )
    told.append(
        f"An image of something else gets one of the {len(found.classes)} answers all the same."
    )
    told.append(
        "It is one training. Another seed would give another number; the interval is about the "
        "choice of test images alone."
    )
    return told


def _data_caveats(facts: Facts, found: Evaluation) -> list[str]:
    told = []
    if found.absent:
        names = ", ".join(shown(name) for name in found.absent[:5])
        more = f" and {len(found.absent) - 5:,} more" if len(found.absent) > 5 else ""
        told.append(f"Nothing was learned about {names}{more}: not one image of it was tested.")
    leaks = {"leaks", "near-leaks"}
    if facts.audit and any(finding.code in leaks for finding in facts.audit.findings):
        told.append(
            "It may be too good: some images stand in more than one split; see the findings "
            "about the data."
        )
    if found.count < 200:
        told.append(
            f"{counted(found.count, 'image')} are few: the interval is "
            f"{100 * (found.accuracy.high - found.accuracy.low):.0f} points wide."
        )
    return told


def unfinished(run: Run, log_steps: int, tested: bool) -> str:
    """What is missing; empty where the run came to its end."""
    if run.finished:
        return ""
    planned = run.config.schedule.steps
    of_all = f" of {planned:,}" if planned else ""
    state = "numbers are of the best weights so far" if tested else "nothing was tested"
    return (
        f"This run has not come to its end: its log ends after {log_steps:,}{of_all} steps, and "
        f"{state}. "
        f"To go on: smallvit train --resume --out {shown(run.folder)}"
    )
