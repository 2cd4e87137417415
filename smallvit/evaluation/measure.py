"""From a model and images to logits, and from logits to an `Evaluation`."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float, Float32, Int, UInt8

from smallvit.arguments import Natural, Positive, checked, described
from smallvit.data.cache import refuse_truncated
from smallvit.devices import choose_device, images_per_pass
from smallvit.evaluation.calibration import flip_average, reliability, softmax
from smallvit.evaluation.checks import check_logits
from smallvit.evaluation.intervals import REPLICATES, Estimate, wilson
from smallvit.evaluation.metrics import class_scores, confusion_matrix, estimates, tally
from smallvit.evaluation.results import ClassResult, Evaluation, Predictions

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)

Precision = Literal["fp32", "bf16", "fp16"]


@checked
def logits_of(
    model: "nn.Module",
    pixels: UInt8[np.ndarray, "N C H W"],
    *,
    mean: Sequence[float],
    std: Sequence[float],
    batch_size: Positive | None = None,
    device: "torch.device | str" = "cpu",
    flip: bool = False,
    precision: Precision | None = None,
) -> Float32[np.ndarray, "N K"]:
    """Logits of images.

    The model is moved to the device and runs in evaluation mode; afterwards its modules are in the
    modes they were in.

    Args:
        model: From normalised images to logits.
        pixels: Decoded images; a mapping of a file larger than memory is fine.
        mean: What is subtracted from each channel, on a scale of 0 to 1.
        std: What each channel is divided by, on the same scale.
        batch_size: Images at a time; None means as many as suit the device.
        device: Where to run it.
        flip: Whether to average with the mirror images; see `flip_average`.
        precision: Of autocast; None and fp32 do without.

    Raises:
        ValueError: There are no images, their channels are not those of the mean, or some logits
            are not finite.
    """
    import torch

    from smallvit.augment import normalise
    from smallvit.models.features import evaluating

    if pixels.dtype != np.uint8 or pixels.ndim != 4:
        raise ValueError(f"pixels is {described(pixels)}: expected are bytes (N, C, H, W)")
    if not all(value > 0 for value in std):
        raise ValueError(f"std is {tuple(std)}: allowed are numbers above 0")
    if not len(pixels) or pixels.shape[1] != len(mean) or len(mean) != len(std):
        raise ValueError(
            f"expected images of {len(mean)} channels, as the mean has, and got an array of "
            f"{pixels.shape} with {len(std)} standard deviations"
        )
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision or "fp32")
    device = torch.device(choose_device(device) if isinstance(device, str) else device)
    centre, spread = torch.tensor(mean, device=device), torch.tensor(std, device=device)
    model.to(device)

    def forward(pixels: UInt8[np.ndarray, "N C H W"]) -> "torch.Tensor":
        images = normalise(torch.from_numpy(np.array(pixels)).to(device), centre, spread)
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            logits: torch.Tensor = model(images).float()
        return logits

    def run(pixels: UInt8[np.ndarray, "N C H W"]) -> Float32[np.ndarray, "N K"]:
        batches: list[torch.Tensor] = []
        start, size = 0, batch_size or images_per_pass(device, pixels.shape[2:])
        while start < len(pixels):
            refuse_truncated(pixels)
            try:
                batches.append(forward(pixels[start : start + size]))
            except torch.OutOfMemoryError:
                if size == 1:
                    raise ValueError(
                        "out of memory with a single image: choose a smaller model or image_size"
                    ) from None
            else:
                start += size
                continue
            size = -(-size // 2)  # what the failed pass held is free only now
            if device.type == "cuda":
                torch.cuda.empty_cache()
            logger.warning("out of memory: going on with %d images at a time", size)
        logits: Float32[np.ndarray, "N K"] = torch.cat(batches).cpu().numpy()
        check_logits(logits)
        return logits

    with evaluating(model):
        return flip_average(run, pixels, axis=3) if flip else run(pixels)


@checked
def measure(
    logits: Float[np.ndarray, "N K"],
    labels: Int[np.ndarray, " M"],
    classes: Sequence[str],
    *,
    split: str,
    temperature: float = 1.0,
    names: Sequence[str] | None = None,
    flip: bool = False,
    replicates: Positive = REPLICATES,
    seed: Natural = 0,
) -> Evaluation:
    """Evaluates a model's logits.

    Args:
        logits: Of each image.
        labels: Their true classes.
        classes: Names of the classes, in the order of the logits.
        split: Which images they are, for the record.
        temperature: What logits are divided by to give probabilities.
        names: What the images are called.
        flip: Whether logits were averaged with those of mirror images, for the record.
        replicates: Of the bootstrap behind the intervals.
        seed: Of the bootstrap.

    Raises:
        ValueError: Lengths differ, labels are out of range, or logits are not finite.
    """
    check_logits(logits)
    if logits.shape[1] != len(classes):
        raise ValueError(f"there are {logits.shape[1]} logits per image and {len(classes)} classes")
    probabilities = softmax(logits, temperature)
    metrics = estimates(labels, probabilities, replicates=replicates, seed=seed)
    predicted, confidence = probabilities.argmax(1), probabilities.max(1)
    confusion = confusion_matrix(labels, predicted, len(classes))
    return Evaluation(
        split=split,
        count=len(labels),
        classes=tuple(classes),
        metrics=metrics,
        per_class=_per_class(confusion, classes),
        confusion=tuple(map(tuple, confusion.tolist())),
        reliability=reliability(confidence, labels == predicted),
        temperature=float(temperature),
        flip=flip,
        predictions=Predictions(
            truth=tuple(labels.tolist()),
            predicted=tuple(predicted.tolist()),
            confidence=tuple(confidence.round(6).tolist()),
            names=tuple(names or ()),
        ),
    )


def _per_class(
    confusion: Int[np.ndarray, "K K"], classes: Sequence[str]
) -> tuple[ClassResult, ...]:
    counts = tally(confusion)
    scores = class_scores(counts)
    low, high = wilson(counts.hits, counts.support)
    columns = (*scores, low, high, counts.support.astype(int), counts.predicted.astype(int))
    rows = zip(classes, *(column.tolist() for column in columns), strict=True)
    return tuple(
        ClassResult(
            name=name,
            support=support,
            predicted=predicted,
            precision=precision,
            recall=Estimate(value=recall, low=down, high=up),
            f1=f1,
        )
        for name, precision, recall, f1, down, up, support, predicted in rows
    )
