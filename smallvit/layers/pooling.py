"""From tokens to one vector per image: class token, mean, sequence pooling.

Each pool prepends what it needs (`prefix` tokens) and reads its vector off the final tokens.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.arguments import Width, checked

Pool = Literal["class", "mean", "seq"]


class MeanPool(nn.Module):
    """The mean of all tokens."""

    prefix = 0

    def prepend(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Adds nothing."""
        return x

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B D"]:
        """Returns the mean token."""
        return x.mean(1)


class SeqPool(MeanPool):
    """Sequence pooling (arXiv 2104.05704): softmax(g(x)ᵀ) · x with g linear."""

    @checked
    def __init__(self, dim: Width) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def weights(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N"]:
        """How much each token counts; sums to one."""
        return self.score(x).squeeze(-1).softmax(-1)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B D"]:
        """Returns the weighted mean token."""
        return (self.weights(x).to(x.dtype).unsqueeze(1) @ x).squeeze(1)


class ClassToken(nn.Module):
    """A learned token in front of the others, read at the end."""

    prefix = 1

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, dim))

    def prepend(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B n D"]:
        """Puts the class token first."""
        return torch.cat([self.token.to(x.dtype).expand(x.shape[0], -1, -1), x], 1)

    def forward(self, x: Float[Tensor, "B n D"]) -> Float[Tensor, "B D"]:
        """Returns the class token."""
        return x[:, 0]


def make_pool(kind: Pool, dim: int) -> MeanPool | ClassToken:
    """The pool of that name."""
    if kind == "class":
        return ClassToken(dim)
    return SeqPool(dim) if kind == "seq" else MeanPool()
