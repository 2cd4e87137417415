"""Attention rollout for every family, carried backwards from what the head reads.

Abnar & Zuidema, Quantifying Attention Flow in Transformers (2020): the heads of a layer are
averaged, the identity is added for the residual branch, rows are renormalised, and the matrices of
all layers are multiplied. Only one row of the product is wanted, that of the vector the head
reads; so a row is carried from the last layer to the first and no product of matrices is made.

What is exact and what is not:
- ViT, CVT and CCT are the paper's rule, read at the class token or by SeqPool's weights.
- Swin's windows are put back where they were; that is exact too. The mean over tokens reads it.
- Wherever a token is made of several others (PiT's pooling, Swin's merging, soft splits, the
  embeddings and strided keys of CvT) its share goes to what it is made of, and a position gets
  the mean of the tokens that see it. The learned weights in there are ignored.
- HCT's mergings are convolutions: a share goes to the 2×2 tokens of the shortcut or the maximum,
  and the convolutions themselves are ignored, as those in the MLPs are.
- CaiT mixes heads after the softmax, so weights may be negative and rows need not sum to one:
  their absolute values are taken. Its class layers are rows over the patches.
- LayerScale, MLPs and the size of the values are ignored, as in the paper.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from smallvit.layers import AttentionLayout, Stage
from smallvit.layers.features import View
from smallvit.sizes import Size


class Shares(NamedTuple):
    """How much each token counts for what the head reads; those of an image sum to one.

    Attributes:
        lead: Of the class token; without one it has no entries.
        places: Of the tokens on the grid.
    """

    lead: Float[Tensor, "B P"]
    places: Float[Tensor, "B h w"]


def step_back(
    after: Shares, weight: Float[Tensor, "B WM n k"], layout: AttentionLayout
) -> tuple[Shares, Float[Tensor, "B M h w"]]:
    """Shares in front of one attention layer, and what each head looks at.

    Args:
        after: Shares behind the layer.
        weight: Its attention weights.
        layout: The tokens they stand for.
    """
    prefix, grid = after.lead.shape[1], (after.places.shape[1], after.places.shape[2])
    shares = torch.cat([after.lead, after.places.flatten(1)], 1)
    queries = layout.queries.to(shares.device)
    weight = weight.unflatten(1, (len(queries), -1))
    asking = shares[:, queries] / (1 + weight.mean(2).sum(-1))
    shares[:, queries] = asking
    seen = torch.einsum("bwn,bwmnk->bmwk", asking, weight)
    if layout.view is None:
        keys = queries if layout.keys is None else layout.keys.to(shares.device)
        tokens = shares.new_zeros(*seen.shape[:2], shares.shape[1])
        tokens[:, :, keys] = seen
        shares = shares + tokens.mean(1)
        heads = tokens[..., prefix:].unflatten(2, grid)
    else:
        heads = spread(seen.flatten(2).flatten(0, 1), grid, layout.view)
        heads = heads.unflatten(0, seen.shape[:2])
        shares = torch.cat([shares[:, :prefix], shares[:, prefix:] + heads.mean(1).flatten(1)], 1)
    return Shares(shares[:, :prefix], shares[:, prefix:].unflatten(1, grid)), heads


def spread(shares: Float[Tensor, "B N"], grid: Size, view: View) -> Float[Tensor, "B h w"]:
    """Shares of tokens on the finer grid that they are made of.

    A position gets the mean of all tokens that see it, so that even shares stay even where kernels
    overlap or reach over the border; then the sum is restored.
    """
    with torch.enable_grad():
        positions = shares.new_ones(len(shares), 1, *grid).requires_grad_()
        counts = view(positions).sum(-1)
        # The transpose of counting is its gradient, whatever `view` is made of.
        back, cover = (
            torch.autograd.grad(counts, positions, values, retain_graph=True)[0][:, 0]
            for values in (shares, torch.ones_like(shares))
        )
    mean = back / cover.clamp(min=1)
    total = mean.sum((1, 2), keepdim=True)
    return mean * (shares.sum(1)[:, None, None] / total.where(total > 0, 1))


def carry(
    stages: list[Stage], weights: list[Tensor], shares: Shares
) -> tuple[Shares, list[Float[Tensor, "B _M _h _w"]]]:
    """Carries shares from behind the last layer to the first tokens.

    Args:
        stages: The model's `attention_stages()`.
        weights: Of every attention, first layer first.
        shares: What the head reads of the final tokens.

    Returns:
        Shares of the first tokens, and for each attention, first layer first, what each head
        looks at: its rows, weighted by how much each token counts behind the layer.
    """
    remaining, maps = list(weights), []
    for number, stage in reversed(list(enumerate(stages))):
        for layout in reversed(stage.attentions):
            shares, seen = step_back(shares, remaining.pop().detach().float().abs(), layout)
            maps.append(seen)
        if stage.view is not None:
            finer = stages[number - 1].grid
            shares = Shares(shares.lead, spread(shares.places.flatten(1), finer, stage.view))
    return shares, maps[::-1]
