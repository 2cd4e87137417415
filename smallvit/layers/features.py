"""What a backbone returns: tokens on their grid, and one vector per image."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


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
