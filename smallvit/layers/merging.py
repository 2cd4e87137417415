"""Between stages: fewer, wider tokens. All take and return tokens with `prefix` class tokens.

`view` shows what each new token is made of, on the grid before (`before`).
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers.soft_split import soft_split
from smallvit.layers.tokenizers import SPT, Directions, shifted_stack


class PatchMerging(nn.Module):
    """Swin's merging: 2×2 neighbours side by side, normalised, projected to twice the width."""

    def __init__(self, dim: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.before = grid
        self.grid = (grid[0] // 2, grid[1] // 2)
        self.view = partial(soft_split, kernel=2, stride=2, padding=0)
        self.norm = nn.LayerNorm(4 * dim)
        self.proj = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B n d"]:
        """Neighbours are taken at (row, column) offsets (0,0), (1,0), (0,1), (1,1)."""
        x = x.unflatten(1, (self.grid[0], 2, self.grid[1], 2)).permute(0, 1, 3, 4, 2, 5)
        return self.proj(self.norm(x.flatten(3).flatten(1, 2)))


class _PoolingWithClass(nn.Module):
    """Pools the grid with `pool` and widens class tokens with a separate linear layer."""

    def __init__(self, dim: int, before: tuple[int, int], grid: tuple[int, int], prefix: int):
        super().__init__()
        self.before, self.grid, self.prefix = before, grid, prefix
        self.class_proj = nn.Linear(dim, 2 * dim) if prefix else None

    def pool(self, image: Float[Tensor, "B D h w"]) -> Float[Tensor, "B n d"]:
        raise NotImplementedError

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B n d"]:
        """Returns a quarter of the tokens at twice the width."""
        patches = self.pool(x[:, self.prefix :].transpose(1, 2).unflatten(2, self.before))
        if self.class_proj is None:
            return patches
        return torch.cat([self.class_proj(x[:, : self.prefix]), patches], 1)


class PiTPooling(_PoolingWithClass):
    """PiT's pooling: depthwise 3×3 convolution at stride 2 and a 1×1 convolution."""

    def __init__(self, dim: int, grid: tuple[int, int], *, prefix: int = 1) -> None:
        super().__init__(dim, grid, (-(-grid[0] // 2), -(-grid[1] // 2)), prefix)
        self.view = partial(soft_split, kernel=3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(dim, 2 * dim, 3, 2, 1, groups=dim)
        self.proj = nn.Linear(2 * dim, 2 * dim)

    def pool(self, image: Float[Tensor, "B D h w"]) -> Float[Tensor, "B n d"]:
        """Halves the grid, rounding up."""
        return self.proj(self.depthwise(image).flatten(2).transpose(1, 2))


class SPTPooling(_PoolingWithClass):
    """Shifted patch tokenization as pooling: patches of 2, shifted by one token."""

    def __init__(
        self,
        dim: int,
        grid: tuple[int, int],
        *,
        prefix: int = 0,
        directions: Directions = "diagonal",
    ) -> None:
        if grid[0] % 2 or grid[1] % 2:
            raise ValueError(f"SPT pooling needs an even grid, not {grid[0]}×{grid[1]}")
        super().__init__(dim, grid, (grid[0] // 2, grid[1] // 2), prefix)
        self.spt = SPT(dim, 2 * dim, 2, directions=directions)

    def view(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B n s"]:
        """A token is made of 2×2 tokens and of those in the shifted copies."""
        return soft_split(shifted_stack(image, self.spt.shift, self.spt.directions), 2, 2, 0)

    def pool(self, image: Float[Tensor, "B D h w"]) -> Float[Tensor, "B n d"]:
        """Halves the grid."""
        return self.spt(image)
