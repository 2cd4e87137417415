"""Window attention as in Swin: attention inside windows, with a learned relative bias."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers.attention import MultiHead, attend
from smallvit.layers.features import AttentionLayout
from smallvit.layers.kernels import Windows, fused_attention, fusible
from smallvit.layers.positions import resample


def relative_index(window: tuple[int, int]) -> Tensor:
    """For each pair of tokens of a window, its row in the relative bias table."""
    rows, columns = window
    position = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    offset = position[:, None] - position[None, :] + torch.tensor([rows - 1, columns - 1])
    return offset[..., 0] * (2 * columns - 1) + offset[..., 1]


def shift_mask(grid: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]) -> Tensor:
    """−100 between tokens of a rolled window that are not neighbours in the image, else 0."""

    def region(size: int, side: int, by: int) -> Tensor:
        index = torch.arange(size)
        return (index >= size - side).int() + (index >= size - by).int() if by else index * 0

    rows = region(grid[0], window[0], shift[0])
    columns = region(grid[1], window[1], shift[1])
    regions = (3 * rows[:, None] + columns).unflatten(1, (-1, window[1]))
    regions = regions.unflatten(0, (-1, window[0])).transpose(1, 2).flatten(2).flatten(0, 1)
    return (regions[:, :, None] != regions[:, None, :]).float() * -100.0


def _refill(attention: "WindowAttention", _: object) -> None:
    """Computes the constants again where weights were loaded.

    A model that was made on the meta device, or emptied by `to_empty`, has none, and no state dict
    brings them.
    """
    with torch.device(attention.bias_table.device):
        index, mask = attention.constants()
    if attention.index.device != index.device:
        attention.index = index
        attention.mask = None if mask is None else mask.to(attention.bias_table.dtype)
    attention.index.copy_(index)  # in place, as a captured graph may read it
    if mask is not None and attention.mask is not None:
        attention.mask.copy_(mask)


class WindowAttention(MultiHead):
    """Attention inside windows of the grid, optionally rolled by half a window.

    Along an axis where the grid is not larger than the window, the window is the grid and
    nothing is rolled. Windows and heads share one axis, so that bias and mask broadcast over
    the batch and are never copied for it.

    Args:
        dim: Width of the tokens.
        num_heads: Number of heads.
        grid: Rows and columns of tokens; multiples of the window.
        window: Side of a window.
        shifted: Rolls the grid by half a window.
        qkv_bias: Gives the query, key and value projections a bias.
        temperature: Learns one scale per head (half of LSA); it multiplies q·kᵀ only.
        masked: Hides every token from itself (the other half).
        dropout: On the output.
        attn_dropout: On the weights.
    """

    index: Tensor
    mask: Tensor | None

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        grid: tuple[int, int],
        window: int,
        shifted: bool = False,
        qkv_bias: bool = True,
        temperature: bool = False,
        masked: bool = False,
        dropout: float = 0.0,
        attn_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            dim,
            num_heads,
            qkv_bias=qkv_bias,
            temperature=temperature,
            masked=masked,
            dropout=dropout,
            attn_dropout=attn_dropout,
        )
        self.grid = grid
        self.window = (min(window, grid[0]), min(window, grid[1]))
        if grid[0] % self.window[0] or grid[1] % self.window[1]:
            raise ValueError(
                f"a grid of {grid[0]}×{grid[1]} tokens does not divide into windows of {window}"
            )
        by = [
            side // 2 if shifted and size > side else 0
            for size, side in zip(grid, self.window, strict=True)
        ]
        self.shift = (by[0], by[1])
        entries = (2 * self.window[0] - 1) * (2 * self.window[1] - 1)
        self.bias_table = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(entries, num_heads), std=0.02)
        )
        index, mask = self.constants()
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("mask", mask, persistent=False)
        self.register_load_state_dict_post_hook(_refill)

    def constants(self) -> tuple[Tensor, Tensor | None]:
        """What follows from the sizes alone, and is in no state dict: index and shift mask."""
        mask = shift_mask(self.grid, self.window, self.shift) if any(self.shift) else None
        return relative_index(self.window), mask

    @property
    def layout(self) -> AttentionLayout:
        """Every token attends to the tokens of its window."""
        (rows, columns), (height, width) = self.grid, self.window
        tokens = torch.arange(rows * columns, device="cpu").view(self.grid)
        tokens = tokens.roll((-self.shift[0], -self.shift[1]), (0, 1))
        tokens = tokens.view(rows // height, height, columns // width, width)
        return AttentionLayout(tokens.transpose(1, 2).flatten(2).flatten(0, 1))

    def resampled(self, new: "WindowAttention") -> dict[str, Tensor]:
        """The tensors of this layer for the window of another."""
        old_table, new_table = ((2 * w[0] - 1, 2 * w[1] - 1) for w in (self.window, new.window))
        table = self.bias_table.detach()[None]
        return {"bias_table": resample(table, old_table, new_table)[0]}

    def relative_bias(self) -> Float[Tensor, "M n n"]:
        """The bias of each head, for the fused kernel.

        With a gradient it is a product with ones and zeros: that of an index would be summed in any
        order.
        """
        if not (torch.is_grad_enabled() and self.bias_table.requires_grad):
            return self.bias_table[self.index].permute(2, 0, 1).contiguous()
        rows = torch.arange(len(self.bias_table), device=self.index.device)
        chosen = (self.index[..., None] == rows).to(self.bias_table.dtype)
        return (chosen * self.bias_table.T[:, None, None]).sum(-1)

    def bias(self) -> Float[Tensor, "WM n n"]:
        """Relative bias and shift mask, for every window and head."""
        bias = self.bias_table[self.index].permute(2, 0, 1)
        windows = (self.grid[0] // self.window[0]) * (self.grid[1] // self.window[1])
        if self.mask is None:
            return bias.repeat(windows, 1, 1)
        return (bias[None] + self.mask[:, None]).flatten(0, 1)

    def forward(
        self, x: Float[Tensor, "B N D"], *, weights: list[Tensor] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Tokens attend inside their windows.

        Args:
            weights: A list to which the weights are appended, (B, windows · M, n, n).
        """
        (rows, columns), (height, width) = self.grid, self.window
        qkv, windows = self.qkv(x), Windows(*self.grid, *self.window, *self.shift)
        alone = self.fused and weights is None
        if alone and fusible(qkv, self.num_heads, windows=windows, dropout=self.dropped):
            x = fused_attention(
                qkv,
                self.num_heads,
                scale=self.scale,
                masked=self.masked,
                bias=self.relative_bias(),
                windows=windows,
                dropout=self.dropped,
            )
            return self.dropout(self.proj(x))
        x = qkv.unflatten(1, self.grid)
        if any(self.shift):
            x = x.roll((-self.shift[0], -self.shift[1]), (1, 2))
        x = x.reshape(
            -1, rows // height, height, columns // width, width, 3, self.num_heads, self.head_dim
        )
        q, k, v = x.permute(5, 0, 1, 3, 6, 2, 4, 7).flatten(5, 6).flatten(2, 4).unbind(0)
        scale = self.head_scale
        if isinstance(scale, Tensor):
            scale = scale.repeat(q.shape[1] // self.num_heads, 1, 1)
        x = attend(
            q,
            k,
            v,
            scale=scale,
            masked=self.masked,
            bias=self.bias(),
            dropout=self.dropped,
            weights=weights,
        )
        x = x.view(
            -1, rows // height, columns // width, self.num_heads, height, width, self.head_dim
        )
        x = x.permute(0, 1, 4, 2, 5, 3, 6).flatten(5).flatten(3, 4).flatten(1, 2)
        if any(self.shift):
            x = x.roll(self.shift, (1, 2))
        return self.dropout(self.proj(x.flatten(1, 2)))
