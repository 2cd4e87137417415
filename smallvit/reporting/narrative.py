"""A run in plain words: what was trained, what to try next, what its accuracy does not show."""

import math

from smallvit.evaluation import Estimate, Evaluation
from smallvit.evaluation.results import ClassResult
from smallvit.reporting.facts import RunFacts
from smallvit.runs import Run
from smallvit.runs.card import short_of_folds
from smallvit.text import counted, shown, some
from smallvit.training.log import rounded_epoch
from smallvit.training.objective import unlabelled

_TIMES = 4  # validations below which there is no curve
_FEW = 100  # validation images below which curves say little
_COARSE = 0.04  # error of an accuracy from which a gain could hide in it
_PER_CLASS = 20  # training images per class that are few
_PASSES = 5.0  # over the training images, below which a training is short
_LEARNED = 0.9  # training accuracy from which little is left to learn
_FEW_TESTED = 10  # images of a class below which its recall is said with their number


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return counted(max(1, round(seconds)), "second")
    if seconds < 5400:
        return counted(round(seconds / 60), "minute")
    return f"{seconds / 3600:.1f} hours"


def trained_seconds(facts: RunFacts) -> float:
    """How long the training took, by its log."""
    return sum(float(line.get("seconds", 0)) for line in facts.log)


def last_step(facts: RunFacts) -> int:
    """The last step in the log."""
    return max((int(line["step"]) for line in facts.log), default=0)


def epochs_of(run: Run, steps: int) -> float:
    """The epochs of that many steps; one has whole batches only, as in the log and in --epochs."""
    return steps / max(run.info["data"]["counts"].get("train", 0) // run.config.loop.batch_size, 1)


def about_run(facts: RunFacts) -> list[str]:
    """Model, data and training, one sentence each."""
    run, data = facts.run, facts.run.info["data"]
    height, width = run.image_size
    pretrained = run.config.model.pretrained
    start = f"starting from {pretrained}" if pretrained else "from scratch"
    if teacher := run.config.loss.teacher:
        start += f", taught by {shown(teacher)},"
    parameters = run.info.get("parameters", 0)
    size = f"{parameters / 1e6:.2f} million parameters" if parameters else "unknown size"
    images = counted(data["counts"].get("train", 0), "image")
    first = (
        f"{run.info['model']['name']} ({size}) was trained {start} on {shown(data['source'])}: "
        f"{images} of {counted(len(run.classes), 'class', 'classes')}, resized to "
        f"{height}×{width} pixels ({run.card.fit})."
    )
    return [first, *_about_training(facts), *([advise(run)] if run.finished else [])]


def _about_training(facts: RunFacts) -> list[str]:
    run, counts = facts.run, facts.run.info["data"]["counts"]
    steps = int(run.info.get("steps", last_step(facts)))
    if not steps:
        return ["It has not been trained yet."]
    images = steps * run.config.loop.batch_size
    epochs = counted(rounded_epoch(epochs_of(run, steps)), "epoch")
    device = run.info.get("device", "an unknown device").replace("cpu", "a CPU")
    training = (
        f"It saw {counted(images, 'image')} in {counted(steps, 'step')} "
        f"({epochs}), in {duration(trained_seconds(facts))} on {device}."
    )
    if not run.finished:
        planned = run.config.schedule.steps or steps
        steps_planned = counted(planned, "step was", "steps were")
        return [training, f"The training is not finished: {steps_planned} planned."]
    if not counts.get("val", 0):
        return [training, "There was no validation split; the weights of the last step are kept."]
    return [
        training,
        f"The weights of step {run.info.get('best_step'):,} are kept, the best on "
        f"{counted(counts['val'], 'validation image')}.",
    ]


def advise(run: Run) -> str:
    """One or two sentences on how the training went, and what may help.

    The standard error of a validation accuracy decides what is a difference: two of them.
    """
    if reason := unlabelled(run.config, run.folder):
        return reason
    log = [line for line in run.log() if "accuracy" in line]
    val = [(line["step"], line["accuracy"]) for line in log if line["kind"] == "val"]
    train = [line["accuracy"] for line in log if line["kind"] == "train"]
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
    then = "more time alone will hardly help"
    if error > _COARSE:
        then = "whether more time would help cannot be told from so few images"
    return (
        "The last quarter brought no difference that these validation images can show, which is "
        f"±{error:.1%}: {then}.{hint}"
    )


def _unvalidated(run: Run, train: list[float], times: int, images: int) -> str:
    """What can be said without validation: only that a training was short, or how to find out."""
    passes = epochs_of(run, run.info.get("steps", 0))
    if 0 < passes < _PASSES and train and train[-1] < _LEARNED:
        return (
            f"It was a short training of {counted(rounded_epoch(passes), 'epoch')}. More time may "
            "well bring more (--minutes or --epochs), though too little was validated to show it."
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


def about_folds(run: Run) -> str:
    """What the folds say of the model that was trained on all images; empty for other runs."""
    crossed = run.info.get("cross_validation")
    if not crossed:
        return ""
    accuracy, folds = Estimate(**crossed["accuracy"]), counted(crossed["folds"], "fold")
    short = short_of_folds(run.card.facts)
    but = f"But {short}. " if short else ""
    return (
        f"This model was trained on all images of a cross-validation, so none is left to test it "
        f"on. Its {folds}, which were trained on fewer images with the same settings, estimate its "
        f"accuracy: {accuracy.percent} over {counted(crossed['tested'], 'image')}. {but}For the "
        f"page of the folds: smallvit report {shown(run.folder.parent)}"
    )


def about_result(evaluation: Evaluation, *, seen: int = 0) -> str:
    """The accuracy in plain words.

    Args:
        seen: How many of the test images the weights that it started from had learned from.
    """
    accuracy, images = evaluation.accuracy, counted(evaluation.count, "test image")
    if evaluation.split != "test":
        images = (
            f"{counted(evaluation.count, 'validation image')}, by which its weights were chosen"
        )
    elif seen:
        images = f"{images}, of which the weights that it started from had learned {seen:,}"
    else:
        images = f"{images} it had never seen"
    most_frequent = max(row.support for row in evaluation.per_class) / evaluation.count
    return (
        f"On {images}, it predicts the right class for {100 * accuracy.value:.1f} %. With so many "
        f"images, the accuracy on all images of this kind is between {100 * accuracy.low:.1f} and "
        f"{100 * accuracy.high:.1f} % (95 % confidence interval). Always predicting the most "
        f"frequent class would be right for {100 * most_frequent:.1f} %."
    )


def _recall(row: ClassResult) -> str:
    """The recall of a class; with few images beside their number."""
    of = f" ({counted(row.support, 'image')})" if row.support < _FEW_TESTED else ""
    return f"{100 * row.recall.value:.0f} % for {shown(row.name)}{of}"


def caveats(facts: RunFacts) -> list[str]:
    """What the accuracy does not show, one sentence each."""
    evaluation = facts.evaluation
    if evaluation is None:
        return []
    present = sorted(
        (row for row in evaluation.per_class if row.support), key=lambda row: row.recall.value
    )
    worst, best = present[0], present[-1]
    codes = {finding.code for finding in facts.audit.findings} if facts.audit else set()
    width = 100 * (evaluation.accuracy.high - evaluation.accuracy.low)
    sentences = [
        (
            evaluation.split == "val",
            "It is too good to be true: the weights were chosen by these very images, and there "
            "is no test split. Hold some images out (--test 0.2) for a number to trust.",
        ),
        (
            bool(seen := facts.run.info.get("seen_before", 0)),
            f"It is too good to be true: {shown(facts.run.config.model.pretrained or '')} had "
            f"learned from {seen:,} of the images that are tested. Start from a run with the same "
            "--seed and --test, or from scratch.",
        ),
        (
            bool(evaluation.absent),
            f"Nothing was measured about {some(evaluation.absent, 5)}: not one image of it was "
            "tested.",
        ),
        (
            bool(codes & {"leaks", "near-leaks"}),
            "It may be too good: some images are in more than one split; see the findings about "
            "the data.",
        ),
        (
            evaluation.count < 200,
            f"{counted(evaluation.count, 'image')} are few: the confidence interval is "
            f"{width:.0f} points wide.",
        ),
        (
            best.recall.value - worst.recall.value > 0.1,
            f"It differs between classes: recall is {_recall(worst)} and {_recall(best)}.",
        ),
        (
            True,
            "It holds for images taken as these were. Another camera, place or time may give "
            "quite another number.",
        ),
        (
            True,
            f"An image of something else is also predicted as one of the "
            f"{len(evaluation.classes)} classes.",
        ),
        (
            True,
            "It is one training. Another seed would give another number; the confidence interval "
            "is about the choice of test images alone.",
        ),
    ]
    return [sentence for holds, sentence in sentences if holds]


def unfinished(facts: RunFacts) -> str:
    """What is missing; empty where the training is finished."""
    run = facts.run
    if run.finished:
        return ""
    planned = run.config.schedule.steps
    done = counted(last_step(facts), "step")
    if planned:
        done = f"{last_step(facts):,} of {counted(planned, 'step')}"
    tested = facts.evaluation is not None
    state = "numbers are of the best weights so far" if tested else "nothing was tested"
    return (
        f"The training is not finished: its log ends after {done}, and "
        f"{state}. To go on: smallvit train --resume --out {shown(run.folder)}"
    )
