"""Position embeddings: learned or sinusoidal, and their resampling to another grid."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Position = Literal["learned", "sine", "none"]


def sinusoid(tokens: int, dim: int) -> Float[Tensor, "1 N D"]:
    """The fixed table: sine on even columns, cosine on odd ones."""
    column = torch.arange(dim, dtype=torch.float64)
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] / 10000 ** (2 * (column // 2) / dim)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())[None].float()


def resample(
    table: Float[Tensor, "1 N D"], old: tuple[int, int], new: tuple[int, int], prefix: int = 0
) -> Float[Tensor, "1 n D"]:
    """Stretches a position table from one token grid to another (bicubic, antialiased).

    Args:
        old: Rows and columns of the table.
        new: Rows and columns that are needed.
        prefix: Leading entries of class tokens, which are kept.
    """
    if table.shape[1] != prefix + old[0] * old[1]:
        raise ValueError(
            f"a position table of {table.shape[1]} entries does not fit a grid of "
            f"{old[0]}×{old[1]} and {prefix} class tokens"
        )
    if old == new:
        return table
    image = table[:, prefix:].unflatten(1, old).permute(0, 3, 1, 2)
    image = F.interpolate(image.float(), new, mode="bicubic", antialias=True, align_corners=False)
    entries = image.flatten(2).transpose(1, 2).to(table.dtype)
    return torch.cat([table[:, :prefix], entries], 1)


class Positions(nn.Module):
    """Adds a position table to the tokens.

    Args:
        kind: A learned table, the fixed sinusoid (stored as a parameter that is not trained, so
            that a checkpoint carries it), or none.
        grid: Rows and columns of tokens.
        dim: Width of the tokens.
        prefix: Class tokens in front of the patches; they have entries too.
        std: Standard deviation of the learned table at the start.
    """

    def __init__(
        self, kind: Position, grid: tuple[int, int], dim: int, *, prefix: int = 0, std: float = 0.02
    ) -> None:
        super().__init__()
        self.grid, self.prefix = grid, prefix
        tokens = prefix + grid[0] * grid[1]
        self.table: nn.Parameter | None = None
        if kind == "learned":
            self.table = nn.Parameter(std * torch.randn(1, tokens, dim))
        elif kind == "sine":
            self.table = nn.Parameter(sinusoid(tokens, dim), requires_grad=False)

    def resampled(self, new: "Positions") -> dict[str, Tensor]:
        """The tensors of this layer for the grid of another."""
        if self.table is None:
            return {}
        return {"table": resample(self.table.detach(), self.grid, new.grid, self.prefix)}

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Returns the tokens with their positions added."""
        return x if self.table is None else x + self.table
