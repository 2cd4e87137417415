"""What both backward programs share."""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

import triton
import triton.language as tl

from smallvit.layers.kernels.parts import read


@triton.jit
def slopes(scores, lse, delta, pull, keep, upscale, dropped: tl.constexpr):
    """The weights as they met the values, and the gradient of the scores in natural base.

    Args:
        scores: In base 2.
        lse: Logarithm of each softmax's sum, in base 2.
        delta: Each query's output times its gradient, summed.
        pull: Gradient of the weights that met the values.
        keep: The dropout mask.
        upscale: What kept weights were multiplied with.
        dropped: There is dropout.
    """
    weight = tl.exp2(scores - lse)
    met = weight
    if dropped:
        met = tl.where(keep, weight * upscale, 0.0)
        pull = tl.where(keep, pull * upscale, 0.0)
    return met, weight * (pull - delta)


@triton.jit
def read_queries(
    q_base,
    out_base,
    grad_base,
    lse_base,
    queries,
    window,
    token_stride,
    n: tl.constexpr,
    layout: tl.constexpr,
    inner: tl.constexpr,
    width: tl.constexpr,
    block_e: tl.constexpr,
    padded: tl.constexpr,
):
    """Queries, the gradient of their outputs, the logarithms of their sums, and delta."""
    q = read(q_base, queries, window, token_stride, n, layout, width, block_e, padded)
    grad = read(grad_base, queries, window, inner, n, layout, width, block_e, padded)
    out = read(out_base, queries, window, inner, n, layout, width, block_e, padded)
    delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    lse = tl.load(lse_base + queries, queries < n, 0.0)
    return q, grad, lse, delta


@triton.jit
def add_to(part, value, query, key, again, n: tl.constexpr):
    """Adds a tile to a program's own (n, n) numbers; the first time it only writes them."""
    inside = (query < n) & (key < n)
    address = part + query * n + key
    before = tl.load(address, inside & again, 0.0)
    tl.store(address, before + value, inside)
