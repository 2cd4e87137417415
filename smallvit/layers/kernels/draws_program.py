"""The program that draws uniform numbers by position, and how it is launched."""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from smallvit.layers.kernels.launch import on_device

_BLOCK = 256


@triton.jit
def _draw(out, seed, step, positions, total, count, blocks, size: tl.constexpr):
    """Four numbers for each of `size` pairs of a position and a block of columns."""
    pair = tl.program_id(0) * size + tl.arange(0, size)
    inside = pair < total
    row, block = pair // blocks, pair % blocks
    place = tl.load(positions + row, inside, 0).to(tl.uint32)
    now = tl.load(step)
    zero = tl.zeros((size,), tl.uint32)
    low, high = zero + now.to(tl.uint32), zero + (now >> 32).to(tl.uint32)
    words = tl.philox(tl.load(seed), place, block.to(tl.uint32), low, high)
    for part in tl.static_range(4):
        column = 4 * block + part
        # 23 bits and a half step: exact in float32, and never 0 or 1.
        number = ((words[part] >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
        tl.store(out + row.to(tl.int64) * count + column, number, inside & (column < count))


def launch_draws(seed: Tensor, step: Tensor, positions: Tensor, count: int) -> Tensor:
    """`count` numbers for each position; the arguments are those of `uniform`."""
    blocks = triton.cdiv(count, 4)
    out = positions.new_empty((len(positions), count), dtype=torch.float32)
    total = len(positions) * blocks
    if total:
        with on_device(positions):
            _draw[(triton.cdiv(total, _BLOCK),)](
                out, seed, step, positions.contiguous(), total, count, blocks, _BLOCK
            )
    return out
