"""What to try next, from the curves of a run, and never more certain than they are."""

import math

from smallvit.runs import Run
from smallvit.text import counted

_TIMES = 4  # validations below which there is no curve
_FEW = 100  # validation images below which curves say little
_PER_CLASS = 20  # training images per class that are few
_PASSES = 5.0  # over the training images, below which a training is short
_LEARNED = 0.9  # training accuracy from which little is left to learn


def advise(run: Run) -> str:
    """One or two sentences on how the training went, and what may help.

    The standard error of a validation accuracy decides what is a difference: two of them.
    """
    log = run.log()
    val = [(line["step"], line["accuracy"]) for line in log if _is(line, "val")]
    train = [line["accuracy"] for line in log if _is(line, "train")]
    counts, classes = run.info["data"]["counts"], len(run.info["data"]["classes"])
    few = counts.get("train", 0) < _PER_CLASS * classes
    hint = (
        f" There are fewer than {_PER_CLASS} training images per class: more images may help most."
        if few
        else ""
    )
    images = counts.get("val", 0)
    if len(val) < _TIMES or images < _FEW:
        return f"{_unvalidated(run, train, len(val), images)}{hint}"
    last = val[-1][1]
    error = 2 * math.sqrt(max(last * (1 - last), 1 / images) / images)
    steps = val[-1][0]
    before = [accuracy for step, accuracy in val if step <= 0.75 * steps]
    if before and last - max(before) > error:
        return (
            f"It was still learning: validation accuracy rose from {max(before):.1%} to {last:.1%} "
            "in the last quarter, part of it because the learning rate falls to its end there. "
            f"More time may bring more (--minutes or --epochs).{hint}"
        )
    mixed = run.config.augment.mixed  # then training accuracy is not one of whole images
    if train and not mixed and train[-1] - last > max(0.15, error):
        return (
            f"It may be overfitting: {train[-1]:.1%} of the training images are right and "
            f"{last:.1%} of the validation images. More images or stronger augmentation may help; "
            f"more time alone will hardly.{hint}"
        )
    return (
        "The last quarter brought no difference that these validation images can show, which is "
        f"±{error:.1%}: more time alone will hardly help.{hint}"
    )


def _unvalidated(run: Run, train: list[float], times: int, images: int) -> str:
    """What can be said without validation: only that a training was short, or how to find out."""
    seen = run.info.get("steps", 0) * run.config.loop.batch_size
    passes = seen / max(run.info["data"]["counts"].get("train", 0), 1)
    if 0 < passes < _PASSES and train and train[-1] < _LEARNED:
        return (
            f"It was a short training: every image was seen {passes:.2g} times. More time may well "
            "bring more (--minutes or --epochs), though too little was validated to show it."
        )
    why = "there were no validation images"
    if images:
        why = f"{counted(images, 'image')}, and curves of fewer than {_FEW} say little"
        if images >= _FEW:
            why = f"{counted(times, 'time')}, and {_TIMES} make a curve"
    return (
        f"Too little was validated to tell whether more training would help ({why}). To find out, "
        "train once for longer, and compare: smallvit report RUN1 RUN2."
    )


def _is(line: dict[str, object], kind: str) -> bool:
    return line["kind"] == kind and "accuracy" in line
