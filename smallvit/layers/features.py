"""What a backbone tells of an image and of itself, as plain data.

Losses and probes read its features; explanations read which tokens attend to which, and what tokens
are made of.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

View = Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B N s"]]
"""From a feature map to the values that each token is made of."""


class Features(NamedTuple):
    """The output of every `forward_features`; losses and probes read it and know no backbone.

    Attributes:
        tokens: The final patch tokens, row by row, without the class token.
        grid: Rows and columns of the token grid.
        pooled: What the linear head reads.
    """

    tokens: Float[Tensor, "B N D"]
    grid: tuple[int, int]
    pooled: Float[Tensor, "B D"]


class AttentionLayout(NamedTuple):
    """Which tokens the weights of an attention layer, (B, W·M, n, k), stand for.

    Tokens are numbered as a model keeps them: class tokens first, then the grid row by row.

    Attributes:
        queries: The token of each row of the weights, per window.
        keys: The token of each column; by default the queries.
        view: Where keys are not tokens: what each key is made of, on the grid of the tokens.
    """

    queries: Int64[Tensor, "W n"]
    keys: Int64[Tensor, "W k"] | None = None
    view: View | None = None


class Stage(NamedTuple):
    """Attention layers over one grid of tokens.

    Attributes:
        grid: Rows and columns of the tokens.
        attentions: The layers, first to last.
        view: What each token is made of, on the grid of the stage before; None if there is none.
    """

    grid: tuple[int, int]
    attentions: Sequence[AttentionLayout]
    view: View | None = None


def token_range(start: int, count: int) -> Int64[Tensor, "1 n"]:
    """Consecutive tokens as the queries or keys of one window."""
    return torch.arange(start, start + count, device="cpu")[None]
