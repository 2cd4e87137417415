"""Everything a page says of one run, gathered: numbers, images, and why something is missing."""

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, UInt8

from smallvit.data import Audit, Dataset, UnreadableError, audit
from smallvit.data.images import as_array
from smallvit.devices import choose_device
from smallvit.evaluation.calibration import softmax
from smallvit.evaluation.measure import logits_of, measure
from smallvit.evaluation.metrics import Reliability, reliability
from smallvit.evaluation.results import Evaluation
from smallvit.reporting.images import data_uri, enlarged
from smallvit.reporting.selection import confident_mistakes, find_suspects, right_and_wrong
from smallvit.runs.folder import Run
from smallvit.text import shown

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

MISTAKES, SUSPECTS, MAPS = 24, 24, 6
"""Most images of each kind; of maps, for right and for wrong answers each."""

SPOKEN = {"test": "test", "val": "validation"}

Logits = dict[str, Float32[np.ndarray, "N K"]]


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One image and what is said of it.

    Attributes:
        name: The file, or the place in the array.
        split: Where it is from.
        truth: The class it is labelled with.
        answer: The class it was taken for.
        confidence: The probability of that.
        image: For an src attribute; empty where it could not be read.
        rollout: The same with what attention looked at; empty where there is none.
        gradient: The same with what the answer depends on.
    """

    name: str
    split: str
    truth: str
    answer: str
    confidence: float
    image: str = ""
    rollout: str = ""
    gradient: str = ""

    @property
    def right(self) -> bool:
        """Whether the answer is the label."""
        return self.truth == self.answer


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of one run.

    Attributes:
        run: The run.
        log: Lines of its log.
        evaluation: The test; validation where there is no test split; None without either.
        uncalibrated: Confidence against accuracy as it was before the temperature.
        audit: What is odd about the data.
        mistakes: The surest wrong answers.
        suspects: Images whose label may be wrong, the clearest cases.
        suspected: How many there are in all; None if that could not be looked at.
        held_out: How many images were looked at for it.
        looked_at: Of which splits.
        maps: Images with what the model looked at, right answers first.
        temperatures: Of LSA, by layer and head.
        gone: Why there are no images; empty where there are.
        unexplained: Why there are no maps; empty where there are.
    """

    run: Run
    log: tuple[dict[str, Any], ...] = ()
    evaluation: Evaluation | None = None
    uncalibrated: Reliability | None = None
    audit: Audit | None = None
    mistakes: tuple[Shot, ...] = ()
    suspects: tuple[Shot, ...] = ()
    suspected: int | None = None
    held_out: int = 0
    looked_at: tuple[str, ...] = ()
    maps: tuple[Shot, ...] = ()
    temperatures: tuple[tuple[float, ...], ...] = ()
    gone: str = ""
    unexplained: str = ""


def read_evaluation(run: Run) -> Evaluation | None:
    """The evaluation that the run folder keeps, if it does."""
    return run.evaluation()


def gather(run: Run, *, device: str = "auto", progress: bool = False) -> Facts:
    """Everything there is to say of a run; what cannot be had is left out with its reason.

    Raises:
        ValueError: The run folder is damaged, or there is no such device.
    """
    place = choose_device(device)
    facts = Facts(run=run, log=tuple(run.log()), evaluation=read_evaluation(run))
    model: nn.Module | None = None
    try:
        model = run.model()
        facts = replace(facts, temperatures=_temperatures(model))
    except (ValueError, OSError) as error:
        facts = replace(facts, unexplained=f"the weights could not be read: {error}")
    try:
        dataset = run.dataset()
        pixels = {
            split: dataset.pixels(split, progress=progress)
            for split in ("test", "val")
            if split in dataset.splits
        }
    except (ValueError, OSError, ImportError) as error:
        return _with_mistakes(replace(facts, gone=str(error)), None)
    facts = replace(facts, audit=audit(dataset))
    if model is None or (facts.evaluation is None and not run.finished):
        return _with_mistakes(facts, dataset)
    logits = {
        split: logits_of(model, part, mean=run.card.mean, std=run.card.std, device=place)
        for split, part in pixels.items()
    }
    facts = _with_mistakes(_with_validation(facts, dataset, logits), dataset)
    facts = _with_calibration(_with_suspects(facts, dataset, logits), logits)
    return _with_maps(facts, model.cpu(), dataset)


def _with_validation(facts: Facts, dataset: Dataset, logits: Logits) -> Facts:
    """With numbers of validation where nothing was tested."""
    if facts.evaluation is not None or "val" not in logits:
        return facts
    found = measure(
        logits["val"],
        dataset.labels("val"),
        facts.run.classes,
        split="val",
        temperature=facts.run.card.temperature,
        names=dataset.split("val").names,
    )
    return replace(facts, evaluation=found)


def _shot(evaluation: Evaluation, place: int, dataset: Dataset | None) -> Shot:
    """One answer of an evaluation, with its image if there is one."""
    answers, classes = evaluation.answers, evaluation.classes
    assert answers is not None
    names = answers.names or [f"number {number}" for number in range(evaluation.count)]
    return Shot(
        name=shown(names[place]),
        split=evaluation.split,
        truth=shown(classes[answers.truth[place]]),
        answer=shown(classes[answers.predicted[place]]),
        confidence=answers.confidence[place],
        image=_image(dataset, evaluation.split, place),
    )


def _image(dataset: Dataset | None, split: str, place: int) -> str:
    if dataset is None:
        return ""
    try:
        return data_uri(as_array(dataset.split(split).read(place, dataset.channels)))
    except (UnreadableError, OSError) as error:
        logger.warning("%s: %s", shown(dataset.split(split).names[place]), error)
        return ""


def _with_mistakes(facts: Facts, dataset: Dataset | None) -> Facts:
    """With the surest wrong answers; by name alone where there is no dataset."""
    found = facts.evaluation
    if found is None or found.answers is None:
        return facts
    places = confident_mistakes(found.answers, MISTAKES)
    return replace(facts, mistakes=tuple(_shot(found, place, dataset) for place in places))


def _with_suspects(facts: Facts, dataset: Dataset, logits: Logits) -> Facts:
    """With the images of test and validation whose labels the model contradicts."""
    if not logits:
        return facts
    splits = [split for split, part in logits.items() for _ in part]
    places = [place for part in logits.values() for place in range(len(part))]
    labels = np.concatenate([dataset.labels(split) for split in logits])
    probabilities = softmax(np.concatenate(list(logits.values())), facts.run.card.temperature)
    found = find_suspects(probabilities, labels)
    classes = [shown(name) for name in facts.run.classes]
    shots = []
    for each in found[:SUSPECTS]:
        split, place = splits[each.place], places[each.place]
        shots.append(
            Shot(
                name=shown(dataset.split(split).names[place]),
                split=split,
                truth=classes[labels[each.place]],
                answer=classes[each.answer],
                confidence=each.confidence,
                image=_image(dataset, split, place),
            )
        )
    return replace(
        facts,
        suspects=tuple(shots),
        suspected=len(found),
        held_out=len(labels),
        looked_at=tuple(SPOKEN[split] for split in logits),
    )


def _with_calibration(facts: Facts, logits: Logits) -> Facts:
    found = facts.evaluation
    if found is None or found.answers is None or found.split not in logits:
        return facts
    probabilities = softmax(logits[found.split])
    right = probabilities.argmax(1) == np.array(found.answers.truth)
    return replace(facts, uncalibrated=reliability(probabilities.max(1), right))


def _with_maps(facts: Facts, model: "nn.Module", dataset: Dataset) -> Facts:
    """With what the model looked at in some right and some wrong answers."""
    import torch

    from smallvit.explaining.explain import explain

    found, run = facts.evaluation, facts.run
    if found is None or found.answers is None:
        return facts
    places = [place for kind in right_and_wrong(found.answers, MAPS) for place in kind]
    pixels = np.array(dataset.pixels(found.split)[places])
    images = run.card.normalise(torch.from_numpy(pixels))
    answers = [found.answers.predicted[place] for place in places]
    try:
        told = explain(model, images, answers)
    except ValueError as error:
        return replace(facts, unexplained=str(error))
    shots = []
    for number, place in enumerate(places):
        image = enlarged(pixels[number].transpose(1, 2, 0))
        rollout = "" if told.rollout is None else _heated(image, told.rollout[number])
        shots.append(
            replace(
                _shot(found, place, None),
                image=data_uri(image),
                rollout=rollout,
                gradient=_heated(image, told.gradient[number]),
            )
        )
    return replace(facts, maps=tuple(shots))


def _heated(image: UInt8[np.ndarray, "H W 3"], heat: Float32[np.ndarray, "h w"]) -> str:
    from smallvit.explaining.explain import overlay

    return data_uri(overlay(image, heat))


def _temperatures(model: "nn.Module") -> tuple[tuple[float, ...], ...]:
    from smallvit.explaining.explain import temperatures

    return tuple(tuple(map(float, layer)) for layer in temperatures(model))
