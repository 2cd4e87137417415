"""The programs of the tokenizer's ReLU and max-pool (3×3, stride 2, padding 1), and their launch.

Forward, one number in 0 to 9 is kept for each pooled one: which of the nine pixels gave it, or that
the ReLU cut it. Backward, each pixel asks the up to four windows it lies in: nothing is added by
several programs, and the map itself is not needed.
"""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from smallvit.layers.kernels.launch import on_device
from smallvit.layers.kernels.parts import narrow
from smallvit.layers.kernels.pool import pooled

_PIXELS = 8
_CHANNELS = 128
#: The number of a pooled value that the ReLU cut.
_CUT = tl.constexpr(9)


@triton.jit
def _places(total, size: tl.constexpr, block: tl.constexpr, height, width, channels):
    """Image, row, column and channel of each number of a program's tile, and which are there."""
    pixel = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)[:, None]
    channel = tl.program_id(1) * block + tl.arange(0, block)[None, :]
    rest = pixel // width
    row, column = (rest % height).to(tl.int32), (pixel % width).to(tl.int32)
    return rest // height, row, column, channel, (pixel < total) & (channel < channels)


@triton.jit
def pool_forward(
    x,
    out,
    codes,
    image_stride,
    channel_stride,
    row_stride,
    column_stride,
    total,
    height,
    width,
    high,
    wide,
    channels,
    size: tl.constexpr,
    block: tl.constexpr,
):
    """Pools `size` pixels of `block` channels.

    Args:
        x: The map, (image, channel, height, width), with any strides.
        out: (image, high, wide, channel).
        codes: Like `out`.
        image_stride: Of x.
        channel_stride: Of x.
        row_stride: Of x.
        column_stride: Of x.
        total: Pixels of `out`, of all images.
        height: Of x.
        width: Of x.
        high: Of out.
        wide: Of out.
        channels: Of both.
        size: Pixels of a program.
        block: Channels of a program.
    """
    image, row, column, channel, there = _places(total, size, block, high, wide, channels)
    base = x + image * image_stride + channel * channel_stride
    best = tl.full((size, block), float("-inf"), tl.float32)
    code = tl.zeros((size, block), tl.int32)
    for tap in tl.static_range(9):
        y, z = 2 * row + tap // 3 - 1, 2 * column + tap % 3 - 1
        inside = there & (y >= 0) & (y < height) & (z >= 0) & (z < width)
        value = tl.load(base + y * row_stride + z * column_stride, inside, float("-inf"))
        value = value.to(tl.float32)
        better = (value > best) | (value != value)  # what is not a number stays
        best = tl.where(better, value, best)
        code = tl.where(better, tap, code)
    cut = best <= 0
    at = ((image * high + row) * wide + column) * channels + channel
    tl.store(out + at, narrow(tl.where(cut, 0.0, best), out.dtype.element_ty), there)
    tl.store(codes + at, tl.where(cut, _CUT, code).to(tl.uint8), there)


@triton.jit
def pool_backward(
    grad,
    codes,
    dx,
    total,
    height,
    width,
    high,
    wide,
    channels,
    size: tl.constexpr,
    block: tl.constexpr,
):
    """The gradient of `size` pixels of the map; the arguments are as in `pool_forward`.

    Args:
        grad: (image, high, wide, channel).
        codes: Likewise, as the forward program left them.
        dx: (image, height, width, channel).
        total: Pixels of the map, of all images.
        height: Of the map.
        width: Of the map.
        high: Of grad.
        wide: Of grad.
        channels: Of both.
        size: Pixels of a program.
        block: Channels of a program.
    """
    image, row, column, channel, there = _places(total, size, block, height, width, channels)
    share = tl.zeros((size, block), tl.float32)
    for corner in tl.static_range(4):
        y, z = row // 2 + corner // 2, column // 2 + corner % 2
        inside = there & (y < high) & (z < wide)
        # An odd row lies in two windows, an even one in one; so do columns.
        if corner // 2 == 1:
            inside = inside & (row % 2 == 1)
        if corner % 2 == 1:
            inside = inside & (column % 2 == 1)
        at = ((image * high + y) * wide + z) * channels + channel
        tap = (row - 2 * y + 1) * 3 + column - 2 * z + 1
        code = tl.load(codes + at, inside, 255).to(tl.int32)
        mine = tl.load(grad + at, inside & (code == tap), 0.0).to(tl.float32)
        share += mine
    at = ((image * height + row) * width + column) * channels + channel
    tl.store(dx + at, narrow(share, dx.dtype.element_ty), there)


def _grid(pixels: int, channels: int) -> tuple[int, int]:
    return triton.cdiv(pixels, _PIXELS), triton.cdiv(channels, _CHANNELS)


def launch_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """relu(max_pool(x)) as (B, h, w, C), and the numbers that the backward program needs."""
    images, channels, height, width = x.shape
    high, wide = pooled(height), pooled(width)
    out = x.new_empty((images, high, wide, channels))
    codes = x.new_empty(out.shape, dtype=torch.uint8)
    total = images * high * wide
    with on_device(x):
        pool_forward[_grid(total, channels)](
            x, out, codes, *x.stride(), total, height, width, high, wide, channels,
            size=_PIXELS, block=_CHANNELS,
        )  # fmt: skip
    return out, codes


def launch_pool_backward(grad: Tensor, codes: Tensor, height: int, width: int) -> Tensor:
    """The gradient of the map, as (B, H, W, C)."""
    images, high, wide, channels = codes.shape
    dx = grad.new_empty((images, height, width, channels))
    total = images * height * width
    with on_device(grad):
        pool_backward[_grid(total, channels)](
            grad, codes, dx, total, height, width, high, wide, channels,
            size=_PIXELS, block=_CHANNELS,
        )  # fmt: skip
    return dx
