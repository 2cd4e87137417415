"""Randomness as a pure function of (seed, step, position in the global batch).

By Philox4x32-10: no generator state, so a draw is the same on every device, eager or compiled, and
however the batch is split. `written` keeps a compiled program from computing what was drawn anew
for every pixel that depends on it.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from smallvit.layers.kernels import exporting, philox, runs_on, uniform_numbers

_WORD = 0xFFFFFFFF


def uniform(
    seed: Int64[Tensor, ""], step: Int64[Tensor, ""], positions: Int64[Tensor, " B"], count: int
) -> Float[Tensor, "B count"]:
    """`count` numbers for each position, uniform on the open interval (0, 1).

    Seed and step are tensors so that neither is compiled in.
    """
    if positions.is_cuda and not exporting() and runs_on(positions.device):
        return uniform_numbers(seed, step, positions, count)  # the same bits
    blocks = torch.arange(-(-count // 4), device=positions.device)
    counter = (positions[:, None] & _WORD, blocks[None], step & _WORD, (step >> 32) & _WORD)
    words = torch.stack(philox(counter, (seed & _WORD, (seed >> 32) & _WORD)), 2).flatten(1)
    # 23 bits and a half step: exact in float32, and never 0 or 1.
    return written(((words[:, :count] >> 9).float() + 0.5) * 2.0**-23)


def normal(uniforms: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Standard normal numbers from uniform ones, one for one."""
    return torch.erfinv(2 * uniforms - 1) * 2**0.5


def whole(uniforms: Float[Tensor, "*shape"], n: int | Tensor) -> Int64[Tensor, "*shape"]:
    """Whole numbers from 0 to n − 1, equally likely."""
    return (uniforms * n).long().clamp(max=n - 1)  # a product may round up to n


def written(x: Tensor) -> Tensor:
    """The same tensor, which a compiler may not fuse into what reads it.

    A pixel of a moved image reads many pixels of the image before: fused, each of them would be
    computed again for every reader. A view with strides needs the tensor in memory.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())
