"""Where a model looks: attention rollout, maps of every head, and what speaks for a class."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from smallvit.evaluation.inside import receptive_field, temperatures
from smallvit.evaluation.overlays import overlay
from smallvit.evaluation.rollout import Shares, carry, steps
from smallvit.interop.features import grid_tokens
from smallvit.layers import Features
from smallvit.layers.pooling import ClassToken, SeqPool
from smallvit.models.base import Backbone, Size
from smallvit.models.cait import CaiT

__all__ = ["Explanation", "explain", "overlay", "receptive_field", "temperatures"]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Maps of a batch of pictures.

    Each map is divided by its largest value: 1 is where the model looks most, 0.5 half as much,
    and a map that is zero everywhere stays so.

    Attributes:
        rollout: Attention rollout on the grid of the first tokens; None for models that are not
            ours. What is approximate in it is said in `smallvit.evaluation.rollout`.
        heads: For every attention, first layer first, a map a head on the grid of the tokens that
            come in: where the head looks, each token asking as much as it counts for the output.
            In the last layer that is the row of the class token, or SeqPool's or the plain mean of
            all rows. Heads are scaled one by one.
        gradient: What speaks for the target, on the grid of the last tokens.
        grid: Rows and columns of the last tokens.
        target: The class that `gradient` speaks for.
        logits: What the model says.
    """

    rollout: Float32[np.ndarray, "B h w"] | None
    heads: list[Float32[np.ndarray, "B M _h _w"]]
    gradient: Float32[np.ndarray, "B _gh _gw"]
    grid: Size
    target: Int64[np.ndarray, " B"]
    logits: Float32[np.ndarray, "B K"]


def explain(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: int | Sequence[int] | None = None,
) -> Explanation:
    """Shows where a model looks in pictures, and what in them speaks for a class.

    The gradient map is token × gradient of the target's logit (less the mean of all logits, as the
    softmax sees only differences), summed over channels; what speaks against the class is cut off.
    With a mean of the tokens or a CNN that is Grad-CAM on the last map. Where a class token is
    read, the final patch tokens say nothing any more, and what is taken is what the last
    attention reads of them.

    Args:
        model: One of ours, a baseline or timm's, in eval mode. Only ours give attention.
        images: Normalised, on the model's device.
        target: The class, one for all or one a picture; by default what the model predicts.

    Raises:
        ValueError: The model trains, shows no grid of tokens, or has no such class.
    """
    if model.training:
        raise ValueError("the model is in training mode, where dropout blurs maps: model.eval()")
    parts: Any = model
    weights: list[Tensor] = []
    with torch.enable_grad(), _watched(model) as seen:
        images = images.detach().requires_grad_()  # also frozen models need a graph
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
            tokens, grid, _ = features
            logits = parts.head(features.pooled)
        else:
            tokens, grid = grid_tokens(parts, features, (images.shape[2], images.shape[3]))
            logits = parts.forward_head(features)
            seen.append(features)
        wanted = _target(target, logits)
        gradient = _gradient(parts, seen, grid, logits, wanted)
    shares: Shares | None = None
    heads: list[Tensor] = []
    plan = steps(model) if isinstance(model, Backbone) else None
    if plan is not None:
        shares, heads = carry(plan, weights, reading(parts, tokens, grid))
    return Explanation(
        rollout=None if shares is None else scaled(shares.places),
        heads=[scaled(each) for each in heads],
        gradient=scaled(gradient),
        grid=grid,
        target=wanted.cpu().numpy(),
        logits=logits.detach().float().cpu().numpy(),
    )


def scaled(maps: Float[Tensor, "*B h w"]) -> Float32[np.ndarray, "*B h w"]:
    """Each map over its largest value; nothing stays nothing."""
    maps = maps.detach().float()
    most = maps.amax((-2, -1), keepdim=True)
    found: Float32[np.ndarray, "*B h w"] = (maps / most.where(most > 0, 1)).cpu().numpy()
    return found


@torch.no_grad()
def reading(model: Any, tokens: Float[Tensor, "B N D"], grid: Size) -> Shares:
    """How much of each final token the head of one of our models reads."""
    lead = tokens.new_zeros(len(tokens), model.pool.prefix, dtype=torch.float32)
    places = tokens.new_zeros(len(tokens), *grid, dtype=torch.float32)
    own = getattr(model, "global_pool", None) in (None, getattr(model, "own_pool", None))
    if own and isinstance(model.pool, ClassToken):
        return Shares(lead + 1, places)
    if own and isinstance(model.pool, SeqPool):
        return Shares(lead, model.pool.weights(tokens).float().unflatten(1, grid))
    return Shares(lead, places + 1 / (grid[0] * grid[1]))


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[Tensor]]:
    """Notes what every attention reads, and what the pool reads, as the model runs."""
    seen: list[Tensor] = []

    def note_input(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    def note_output(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            seen.append(output)

    hooks = [
        part.register_forward_hook(note_output)
        for name, part in model.named_modules()
        if name.rpartition(".")[2] == "norm1"
    ]
    if isinstance(model, CaiT):  # whose class layers read the patches without a norm
        hooks.append(model.blocks.register_forward_hook(note_output))
    if isinstance(model, Backbone):
        pool: Any = model.pool
        hooks.append(pool.register_forward_pre_hook(note_input))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _target(target: int | Sequence[int] | None, logits: Tensor) -> Int64[Tensor, " B"]:
    """The class of each picture that is to be explained."""
    if logits.ndim != 2 or not logits.shape[1]:
        raise ValueError(
            f"expected logits shaped (pictures, classes) and got {tuple(logits.shape)}: a model "
            "without a head or a pool has no classes to explain"
        )
    count, classes = logits.shape
    if target is None:
        return logits.argmax(1)
    each = [target] * count if isinstance(target, int) else [int(k) for k in target]
    if len(each) != count or not all(0 <= k < classes for k in each):
        raise ValueError(
            f"target is {target!r}: give one class from 0 to {classes - 1}, or one for each of "
            f"the {count} pictures"
        )
    return torch.tensor(each, device=logits.device)


def _gradient(
    model: Any,
    seen: list[Tensor],
    grid: Size,
    logits: Float[Tensor, "B K"],
    target: Int64[Tensor, " B"],
) -> Float[Tensor, "B h w"]:
    """Token × gradient at the last tokens on the grid that the logits depend on."""
    score = logits.gather(1, target[:, None]).sum()
    if logits.shape[1] > 1:
        score = score - logits.mean(1).sum()
    count = grid[0] * grid[1]
    maps = seen[-1:] if seen and seen[-1].ndim == 4 else []
    candidates = maps + [x for x in reversed(seen) if x.ndim == 3 and x.shape[1] >= count]
    # Only the last few can be on the way: the class token's own, and what it asked.
    for x in candidates[:_TRIED]:
        slopes: Any = torch.autograd.grad(score, x, retain_graph=True, allow_unused=True)
        if slopes[0] is None:
            continue
        product = (x * slopes[0]).detach()
        evidence = grid_tokens(model, product, grid)[0] if x.ndim == 4 else product[:, -count:]
        if evidence.any():
            return evidence.float().sum(-1).relu().unflatten(1, grid)
    return logits.new_zeros(len(logits), *grid)


_TRIED = 4
