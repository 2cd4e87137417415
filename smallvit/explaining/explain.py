"""Where a model looks: attention rollout, one map per head, and gradient maps of a class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from smallvit.arguments import checked, described
from smallvit.explaining.overlays import overlay
from smallvit.explaining.probes import receptive_field, temperatures, why_silent
from smallvit.explaining.rollout import Shares, carry
from smallvit.layers import Features
from smallvit.layers.pooling import ClassToken, SeqPool
from smallvit.models.base import Backbone
from smallvit.models.features import evaluating, grid_tokens
from smallvit.sizes import Size

__all__ = ["Explanation", "explain", "overlay", "receptive_field", "temperatures"]

_STEPS = 16
"""Steps from noise to the image."""

_LEAST = 8
"""Cells along a side of the gradient map of models that end on a coarser grid."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Maps of a batch of images.

    Each map is divided by its largest value: 1 is where the model looks most, 0.5 half as much,
    and a map that is zero everywhere stays so.

    Attributes:
        rollout: Attention rollout on the grid of the first tokens; None for models that are not
            ours. What is approximate in it is said in `smallvit.explaining.rollout`.
        heads: For every attention, first layer first, one map per head on the grid of its input
            tokens: where the head looks, each query weighted by how much it counts for the output.
            In the last layer that is the row of the class token, or SeqPool's or the plain mean of
            all rows. Each head is scaled on its own.
        silent: Why an image's rollout shows no place, one text per image; empty where it shows one.
        gradient: What supports the target, on the grid of the rollout, or of the last tokens
            where there is none (at least 8×8).
        grid: Rows and columns of the last tokens.
        target: The class that `gradient` supports.
        logits: Of the model.
    """

    rollout: Float32[np.ndarray, "B h w"] | None
    silent: tuple[str, ...]
    heads: list[Float32[np.ndarray, "B _M _h _w"]]
    gradient: Float32[np.ndarray, "B _gh _gw"]
    grid: Size
    target: Int64[np.ndarray, " B"]
    logits: Float32[np.ndarray, "B K"]


class Look(NamedTuple):
    """What a forward pass shows of a batch of images.

    Attributes:
        logits: Of the model.
        grid: Rows and columns of the last tokens.
        shares: How much of each of the first tokens counts for the output, by attention; None for
            models that are not ours.
        heads: For every attention, first layer first, what each head looks at.
    """

    logits: Float[Tensor, "B K"]
    grid: Size
    shares: Shares | None
    heads: list[Float[Tensor, "B M _h _w"]]


@checked
def explain(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: int | Sequence[int] | None = None,
) -> Explanation:
    """Shows where a model looks in images, and what in them supports a class.

    The gradient map is pixel × gradient of the target's logit (minus the mean of all logits, as the
    softmax depends on differences only), averaged over steps from noise to the image, each step
    with noise of its own (expected gradients), and summed over the cells of a grid; evidence
    against the class is cut off. It is taken at the pixels because attention moves evidence from
    token to token: the gradient of a final token says little about where in the image it came from.
    It starts at noise because a network that normalises patches sees no difference between a faint
    image and a clear one.

    The model runs in evaluation mode; afterwards its modules are in the modes they were in.

    Args:
        model: One of ours, a baseline or timm's. Only ours give attention.
        images: Normalised, on the model's device.
        target: The class, one for all or one per image; by default what the model predicts.

    Raises:
        ValueError: The model has no grid of tokens, or no such class.
    """
    if images.ndim != 4 or not images.is_floating_point():
        raise TypeError(
            f"images is {described(images)}: expected is a batch of normalised images in floating "
            "point, (B, C, H, W)"
        )
    if not len(images):
        raise ValueError("images holds no image: expected is at least one")
    seen = look(model, images)
    classes = _target(target, seen.logits)
    size = images.shape[2], images.shape[3]
    fine = tuple(max(side, min(_LEAST, limit)) for side, limit in zip(seen.grid, size, strict=True))
    cells = fine if seen.shares is None else seen.shares.places.shape[1:]
    evidence = evidence_for(model, images, classes)
    rollout = None if seen.shares is None else scaled(seen.shares.places)
    return Explanation(
        rollout=rollout,
        silent=("",) * len(images) if rollout is None else tuple(why_silent(model, size, rollout)),
        heads=[scaled(each) for each in seen.heads],
        gradient=scaled(F.adaptive_avg_pool2d(evidence, (cells[0], cells[1])).relu()),
        grid=seen.grid,
        target=classes.cpu().numpy(),
        logits=seen.logits.float().cpu().numpy(),
    )


def look(model: nn.Module, images: Float[Tensor, "B C H W"]) -> Look:
    """What one forward pass shows; see `explain`."""
    parts: Any = model
    size = images.shape[2], images.shape[3]
    weights: list[Tensor] = []
    with evaluating(model):
        if isinstance(model, Backbone):
            features: Any = parts.forward_features(images, weights=weights)
        elif hasattr(parts, "forward_features") and hasattr(parts, "forward_head"):
            features = parts.forward_features(images)
        else:
            raise ValueError(
                f"a {type(model).__name__} has no forward_features and forward_head, so its tokens "
                "cannot be read: ours, the baselines and timm's models can be explained"
            )
        if isinstance(features, Features):
            tokens, grid = features.tokens, features.grid
            logits = parts.head(features.pooled)
        else:
            tokens, grid = grid_tokens(parts, features, size)
            logits = parts.forward_head(features)
    if not isinstance(model, Backbone):
        return Look(logits, grid, None, [])
    shares = reading(parts, tokens, grid)
    return Look(logits, grid, *carry(model.attention_stages(), weights, shares))


def evidence_for(
    model: nn.Module, images: Float[Tensor, "B C H W"], target: Int64[Tensor, " B"]
) -> Float[Tensor, "B H W"]:
    """What each pixel adds to the target's logit over the mean of all, by expected gradients."""
    total = torch.zeros(len(images), *images.shape[2:], device=images.device)
    for step in range(_STEPS):
        # One noise for all images, so that an image's map does not depend on its neighbours.
        noise = torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(step))
        noise = noise.to(images)
        with evaluating(model), torch.enable_grad():
            between = torch.lerp(noise, images, (step + 0.5) / _STEPS).detach().requires_grad_()
            logits = model(between)
            score = logits.gather(1, target[:, None]).sum()
            if logits.shape[1] > 1:
                score = score - logits.mean(1).sum()
            (slope,) = torch.autograd.grad(score, between)
        total += ((images - noise) * slope).float().sum(1) / _STEPS
    return total


def scaled(maps: Float[Tensor, "*B h w"]) -> Float32[np.ndarray, "*B h w"]:
    """Each map divided by its largest value; a map of zeros stays one."""
    maps = maps.detach().float()
    most = maps.amax((-2, -1), keepdim=True)
    return np.asarray((maps / most.where(most > 0, 1)).cpu().numpy())


@torch.no_grad()
def reading(model: Any, tokens: Float[Tensor, "B N D"], grid: Size) -> Shares:
    """How much of each final token the head of one of our models reads."""
    lead = tokens.new_zeros(len(tokens), model.pool.prefix, dtype=torch.float32)
    places = tokens.new_zeros(len(tokens), *grid, dtype=torch.float32)
    unchanged = getattr(model, "global_pool", None) in (None, getattr(model, "own_pool", None))
    if unchanged and isinstance(model.pool, ClassToken):
        return Shares(lead + 1, places)
    if unchanged and isinstance(model.pool, SeqPool):
        return Shares(lead, model.pool.weights(tokens).float().unflatten(1, grid))
    return Shares(lead, places + 1 / (grid[0] * grid[1]))


def _target(target: int | Sequence[int] | None, logits: Tensor) -> Int64[Tensor, " B"]:
    """The class of each image that is to be explained."""
    if logits.ndim != 2 or not logits.shape[1]:
        raise ValueError(
            f"expected logits shaped (images, classes) and got {tuple(logits.shape)}: a model "
            "without a head or a pool has no classes to explain"
        )
    count, classes = logits.shape
    if target is None:
        return logits.argmax(1)
    each = [target] * count if isinstance(target, int) else [int(k) for k in target]
    if len(each) != count or not all(0 <= k < classes for k in each):
        raise ValueError(
            f"target is {target!r}: expected one class from 0 to {classes - 1}, or one for each "
            f"of the {count} images"
        )
    return torch.tensor(each, device=logits.device)
