"""What a page shows of one run, gathered: numbers, images, and why something is missing."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, UInt8

from smallvit.data import Audit, Dataset, UnreadableError, audit
from smallvit.data.images import as_array
from smallvit.devices import choose_device
from smallvit.evaluation import Evaluation, logits_of, measure
from smallvit.evaluation.calibration import ConfidenceBin, reliability, softmax
from smallvit.reporting.images import (
    confident_mistakes,
    data_uri,
    enlarged,
    find_suspects,
    right_and_wrong,
)
from smallvit.runs.folder import Run
from smallvit.text import counted, shown

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

MISTAKES, SUSPECTS, MAPS = 24, 24, 6
"""Most images of each kind; of maps, for right and for wrong predictions each."""

Logits = dict[str, Float32[np.ndarray, "N K"]]


@dataclass(frozen=True, kw_only=True)
class Example:
    """One image with its label and its prediction.

    Attributes:
        name: The file, or the index in the array.
        split: Where it is from.
        truth: The class it is labelled with.
        predicted: The class the model predicts.
        confidence: The probability of that class.
        image: For an src attribute; empty where it could not be read.
        rollout: The same with the attention rollout over it; empty where there is none.
        silent: Why there is none although the model has attention; empty elsewhere.
        gradient: The same with the gradient map over it.
    """

    name: str
    split: str
    truth: str
    predicted: str
    confidence: float
    image: str = ""
    rollout: str = ""
    silent: str = ""
    gradient: str = ""

    @property
    def right(self) -> bool:
        """Whether the prediction is the label."""
        return self.truth == self.predicted


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of one run; a page is a pure function of it.

    Attributes:
        run: The run.
        log: Lines of its log.
        evaluation: Of the test split, or of validation where there is no test split.
        uncalibrated: Confidence against accuracy before temperature scaling.
        audit: Findings about the data.
        mistakes: The most confident wrong predictions.
        suspects: Images whose label may be wrong, the clearest cases.
        suspect_count: How many there are in all; None if no image could be searched.
        searched: How many images were searched for them.
        searched_splits: Of which splits.
        maps: Images with attention and gradient maps, right predictions first.
        temperatures: Of LSA, by layer and head.
        data_error: Why there are no images; empty where there are.
        maps_error: Why there are no maps; empty where there are.
        maps_notes: What to know before reading them: where attention shows no place, and why.
    """

    run: Run
    log: tuple[dict[str, Any], ...] = ()
    evaluation: Evaluation | None = None
    uncalibrated: tuple[ConfidenceBin, ...] = ()
    audit: Audit | None = None
    mistakes: tuple[Example, ...] = ()
    suspects: tuple[Example, ...] = ()
    suspect_count: int | None = None
    searched: int = 0
    searched_splits: tuple[str, ...] = ()
    maps: tuple[Example, ...] = ()
    temperatures: tuple[tuple[float, ...], ...] = ()
    data_error: str = ""
    maps_error: str = ""
    maps_notes: tuple[str, ...] = ()


def brief_facts(run: Run) -> RunFacts:
    """What the run folder alone holds: all that a comparison needs."""
    return RunFacts(run=run, log=tuple(run.log()), evaluation=run.evaluation())


def gather(run: Run, *, device: str = "auto", progress: bool = False) -> RunFacts:
    """Everything that can be shown of a run; what is missing is left out with its reason.

    Raises:
        ValueError: The run folder is damaged, or there is no such device.
    """
    from smallvit.explaining.probes import temperatures

    chosen = choose_device(device)
    facts = brief_facts(run)
    model: nn.Module | None = None
    dataset: Dataset | None = None
    try:
        model = run.model()
        layers = tuple(tuple(map(float, layer)) for layer in temperatures(model))
        facts = replace(facts, temperatures=layers)
    except (ValueError, OSError) as error:
        facts = replace(facts, maps_error=f"the weights could not be read: {error}")
    try:
        dataset = run.dataset()
        splits = [split for split in ("test", "val") if split in dataset.splits]
        pixels = {split: dataset.pixels(split, progress=progress) for split in splits}
        facts = replace(facts, audit=audit(dataset))
    except (ValueError, OSError, ImportError) as error:
        facts = replace(facts, data_error=str(error))
    if facts.data_error or model is None or not (facts.evaluation or run.finished):
        return _with_mistakes(facts, None if facts.data_error else dataset)
    assert dataset is not None
    logits = {
        split: logits_of(model, part, mean=run.card.mean, std=run.card.std, device=chosen)
        for split, part in pixels.items()
    }
    split = "val" if facts.evaluation is None else facts.evaluation.split
    # Nothing was tested, or only a part of the images for want of time.
    if split in logits and (not facts.evaluation or facts.evaluation.count != len(logits[split])):
        evaluation = measure(
            logits[split],
            dataset.labels(split),
            run.classes,
            split=split,
            temperature=run.card.temperature,
            names=dataset.split(split).names,
        )
        facts = replace(facts, evaluation=evaluation)
    facts = _with_suspects(_with_mistakes(facts, dataset), dataset, logits)
    return _with_maps(_with_calibration(facts, logits), model.cpu(), dataset)


def _example(evaluation: Evaluation, index: int, dataset: Dataset | None) -> Example:
    """One prediction of an evaluation, with its image if there is a dataset."""
    predictions, classes = evaluation.predictions, evaluation.classes
    assert predictions is not None
    name = predictions.names[index] if predictions.names else f"number {index}"
    return Example(
        name=shown(name),
        split=evaluation.split,
        truth=shown(classes[predictions.truth[index]]),
        predicted=shown(classes[predictions.predicted[index]]),
        confidence=predictions.confidence[index],
        image="" if dataset is None else _image(dataset, evaluation.split, index),
    )


def _image(dataset: Dataset, split: str, index: int) -> str:
    try:
        return data_uri(as_array(dataset.split(split).read(index, dataset.channels)))
    except (UnreadableError, OSError) as error:
        logger.warning("%s: %s", shown(dataset.split(split).names[index]), error)
        return ""


def _with_mistakes(facts: RunFacts, dataset: Dataset | None) -> RunFacts:
    """With the most confident wrong predictions; by name alone where there is no dataset."""
    evaluation = facts.evaluation
    if evaluation is None or evaluation.predictions is None:
        return facts
    indices = confident_mistakes(evaluation.predictions, MISTAKES)
    mistakes = tuple(_example(evaluation, index, dataset) for index in indices)
    return replace(facts, mistakes=mistakes)


def _with_suspects(facts: RunFacts, dataset: Dataset, logits: Logits) -> RunFacts:
    """With the images of test and validation whose labels the model contradicts."""
    if not logits:
        return facts
    images = [(split, index) for split, part in logits.items() for index in range(len(part))]
    labels = np.concatenate([dataset.labels(split) for split in logits])
    probabilities = softmax(np.concatenate(list(logits.values())), facts.run.card.temperature)
    suspects = find_suspects(probabilities, labels)
    classes = [shown(name) for name in facts.run.classes]
    examples = []
    for suspect in suspects[:SUSPECTS]:
        split, index = images[suspect.image]
        examples.append(
            Example(
                name=shown(dataset.split(split).names[index]),
                split=split,
                truth=classes[labels[suspect.image]],
                predicted=classes[suspect.predicted],
                confidence=suspect.confidence,
                image=_image(dataset, split, index),
            )
        )
    return replace(
        facts,
        suspects=tuple(examples),
        suspect_count=len(suspects),
        searched=len(labels),
        searched_splits=tuple(logits),
    )


def _with_calibration(facts: RunFacts, logits: Logits) -> RunFacts:
    """With the reliability of probabilities before temperature scaling."""
    evaluation = facts.evaluation
    if evaluation is None or evaluation.predictions is None or evaluation.split not in logits:
        return facts
    probabilities = softmax(logits[evaluation.split])
    right = probabilities.argmax(1) == np.array(evaluation.predictions.truth)
    return replace(facts, uncalibrated=reliability(probabilities.max(1), right))


def _with_maps(facts: RunFacts, model: "nn.Module", dataset: Dataset) -> RunFacts:
    """With attention and gradient maps of some right and some wrong predictions."""
    import torch

    from smallvit.explaining.explain import explain
    from smallvit.explaining.overlays import overlay
    from smallvit.explaining.probes import about_field

    evaluation, run = facts.evaluation, facts.run
    if evaluation is None or evaluation.predictions is None:
        return facts
    predictions = evaluation.predictions
    indices = [index for kind in right_and_wrong(predictions, MAPS) for index in kind]
    pixels = np.array(dataset.pixels(evaluation.split)[indices])
    images = run.card.normalise(torch.from_numpy(pixels))
    try:
        maps = explain(model, images, [predictions.predicted[index] for index in indices])
    except ValueError as error:
        return replace(facts, maps_error=str(error))

    def overlaid(image: UInt8[np.ndarray, "H W 3"], heat: Float32[np.ndarray, "h w"]) -> str:
        return data_uri(overlay(image, heat))

    examples = []
    for number, index in enumerate(indices):
        image = enlarged(pixels[number].transpose(1, 2, 0))
        example = replace(
            _example(evaluation, index, None),
            image=data_uri(image),
            rollout=""
            if maps.rollout is None or maps.silent[number]
            else overlaid(image, maps.rollout[number]),
            silent=maps.silent[number],
            gradient=overlaid(image, maps.gradient[number]),
        )
        examples.append(example)
    notes = _about_maps(about_field(model, run.image_size), maps.silent)
    return replace(facts, maps=tuple(examples), maps_notes=notes)


def _about_maps(field: str, silent: Sequence[str]) -> tuple[str, ...]:
    """How far a token sees, and how many maps are left out for which reason."""
    reasons = Counter(reason for reason in silent if reason)
    left_out = (
        f"In {count} of {counted(len(silent), 'image')} {reason}: the map is left out."
        for reason, count in reasons.items()
    )
    return (*([f"{field[0].upper()}{field[1:]}."] if field else []), *left_out)
