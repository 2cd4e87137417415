"""Mixup and CutMix with soft targets.

Partners are drawn inside fixed groups of the global batch, so that a process, or one pass of an
accumulated step, needs no other images if it has whole groups.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from smallvit.augment.boxes import Box, inside
from smallvit.augment.config import Per
from smallvit.augment.randomness import whole, written
from smallvit.sizes import Size

_QUANTILES = 1024
#: Uniform numbers per image that `draw_mix` takes.
MIX_DRAWS = 6


def beta_quantiles(alpha: float) -> Float[Tensor, " points"]:
    """The inverse distribution function of Beta(α, α) at equally spaced probabilities.

    Up to α = 1 the density has a pole at 0, which disappears with s = x^α: (1 − x)^(α−1) remains
    to integrate over s, smooth up to the middle. Above, it is a peak, narrow for a large α: the
    ends are four standard deviations away from the middle. The upper half mirrors the lower.
    """
    if alpha <= 1:
        x = np.linspace(0, 0.5**alpha, 2**16 + 1) ** (1 / alpha)
        density = (1 - x) ** (alpha - 1)
    else:
        x = np.linspace(max(0.0, 0.5 - 2 / np.sqrt(2 * alpha + 1)), 0.5, 2**16 + 1)
        density = (4 * x * (1 - x)) ** (alpha - 1)
    mass = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    lower = np.interp(np.linspace(0, mass[-1], _QUANTILES // 2 + 1), mass, x)
    lower[-1] = 0.5
    return torch.from_numpy(np.concatenate([lower, 1 - lower[-2::-1]])).float()


def beta(uniforms: Float[Tensor, " B"], quantiles: Float[Tensor, " points"]) -> Float[Tensor, " B"]:
    """Beta numbers from uniform ones, one for one."""
    position = uniforms * (len(quantiles) - 1)
    below = position.long()
    return torch.lerp(quantiles[below], quantiles[below + 1], position - below)


def soft_targets(
    labels: Int64[Tensor, " B"], num_classes: int, smoothing: float
) -> Float[Tensor, "B K"]:
    """One-hot rows with a share of `smoothing` spread over all classes."""
    hot = labels[:, None] == torch.arange(num_classes, device=labels.device)
    return hot * (1 - smoothing) + smoothing / num_classes


class Mix(NamedTuple):
    """How each image is mixed.

    Attributes:
        partner: Row of the image that is mixed in.
        share: How much of its label the image keeps.
        weight: How much of its pixels it keeps: its share (Mixup), or 1 (CutMix).
        box: The rectangle taken from the partner; empty for Mixup.
    """

    partner: Int64[Tensor, " B"]
    share: Float[Tensor, " B"]
    weight: Float[Tensor, " B"]
    box: Box


def draw_partner(
    uniforms: Float[Tensor, " B"], positions: Int64[Tensor, " B"], group: int
) -> Int64[Tensor, " B"]:
    """Rows of the partners: each group is reflected about a point that its first image draws.

    Odd reflections of an even number of images give each of them another one as partner.
    """
    rows = torch.arange(len(positions), device=positions.device)
    within = positions % group
    turn = whole(uniforms, group // 2)[rows - within]
    return rows - within + (2 * turn + 1 - within) % group


def cut_box(
    share: Float[Tensor, " B"],
    y: Float[Tensor, " B"],
    x: Float[Tensor, " B"],
    size: Size,
    *,
    even: bool = False,
) -> Box:
    """CutMix's rectangle: of the image's shape, 1 − share of its area, clipped at the edge.

    Args:
        y: Uniform number for its centre, from top to bottom.
        x: Uniform number for its centre, from left to right.
        even: Whether an odd side is one pixel shorter, so that the centre is in the middle.
    """
    ratio = torch.sqrt(1 - share)
    edges = []
    for centre, side in ((y, size[0]), (x, size[1])):
        cut = (ratio * side).long()
        middle = whole(centre, side)
        first = (middle - cut // 2).clamp(min=0)
        after = cut // 2 if even else (cut + 1) // 2
        edges.append((first, (middle + after).clamp(max=side) - first))
    (top, height), (left, width) = edges
    return Box(*written(torch.stack([top, left, height, width])))


def _check_groups(positions: Int64[Tensor, " B"], group: int) -> None:
    """Refuses a batch that is not made of whole groups."""
    if len(positions) % group:
        raise ValueError(
            f"a batch of {len(positions)} images does not divide into mixing groups of {group}: "
            "choose a batch size that does, or another mix_group"
        )
    # On a GPU this check would wait for the device, and it would break a compiled graph.
    if positions.device.type == "cpu" and not torch.compiler.is_compiling():
        first = int(positions[0])
        if first % group:
            raise ValueError(
                f"the first image has position {first}, in the middle of a mixing group of "
                f"{group}: give each process whole groups, or choose another mix_group"
            )


def draw_mix(
    uniforms: Float[Tensor, "B draws"],
    shared: Float[Tensor, "#B draws"],
    positions: Int64[Tensor, " B"],
    size: Size,
    quantiles: tuple[Tensor | None, Tensor | None],
    *,
    probability: float,
    cutmix_share: float,
    per: Per,
    group: int,
    even_box: bool = False,
) -> Mix:
    """Partners, kinds and shares.

    Args:
        uniforms: `MIX_DRAWS` numbers per image.
        shared: As many for the batch, or for the part of it that each image is in.
        positions: Positions of whole groups, in order.
        quantiles: `beta_quantiles` of Mixup and of CutMix; None switches that kind off.
        probability: How often a batch (or pair) is mixed at all.
        cutmix_share: How often that is CutMix where both kinds are on.
        per: What shares its numbers: the whole batch, or the two images of a pair.
        group: Images in a group.
        even_box: Whether CutMix's boxes have even sides.
    """
    _check_groups(positions, group)
    partner = draw_partner(uniforms[:, 0], positions, group)
    if per == "pair":
        rows = torch.arange(len(positions), device=partner.device)
        numbers = uniforms[torch.minimum(partner, rows)]
    else:
        numbers = shared.expand(len(positions), -1)
    mixed, kind, amount, y, x = numbers[:, 1:].unbind(1)
    mixup, cutmix = quantiles
    share = torch.ones_like(amount)
    cut = torch.zeros_like(share, dtype=torch.bool)
    if mixup is not None:
        share = beta(amount, mixup)
    if cutmix is not None:
        cut = kind < (cutmix_share if mixup is not None else 1)
        share = torch.where(cut, beta(amount, cutmix), share)
    share = torch.where(mixed < probability, share, 1)
    # A share of 1 cuts an empty box, for images that are not to be cut.
    box = cut_box(torch.where(cut, share, 1), y, x, size, even=even_box)
    kept = 1 - box.height * box.width / (size[0] * size[1])
    shares = written(torch.stack([torch.where(cut, kept, share), torch.where(cut, 1, share)]))
    return Mix(written(partner), shares[0], shares[1], box)


def mix_images(images: Float[Tensor, "B C H W"], mix: Mix) -> Float[Tensor, "B C H W"]:
    """Images with their partners mixed in."""
    size = (images.shape[2], images.shape[3])
    weight = torch.where(inside(mix.box, size), 0, mix.weight[:, None, None, None])
    return images.index_select(0, mix.partner).lerp_(images, weight)


def mix_targets(targets: Float[Tensor, "B K"], mix: Mix) -> Float[Tensor, "B K"]:
    """Targets in the same shares as the images."""
    return torch.lerp(targets[mix.partner], targets, mix.share[:, None])
