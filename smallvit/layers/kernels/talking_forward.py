"""The forward program of attention with talking heads."""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,assignment"

import triton
import triton.language as tl

from smallvit.layers.kernels.parts import dot, narrow, write
from smallvit.layers.kernels.talking_parts import (
    drop,
    lots_of,
    mix,
    mixed_scores,
    products_of,
    read_heads,
    zeros_of,
)


@triton.jit
def _absorb(highest, totals, scores, heads: tl.constexpr):
    """Takes a tile of scores into each head's softmax: its highest score and its sum."""
    higher, sums = (), ()
    for head in tl.static_range(heads):
        high = tl.maximum(highest[head], tl.max(scores[head], 1))
        # A tile may hold nothing a query may see: then there is nothing to subtract.
        level = tl.where(high == float("-inf"), 0.0, high)
        shrink = tl.exp2(highest[head] - level)
        total = totals[head] * shrink + tl.sum(tl.exp2(scores[head] - level[:, None]), 1)
        higher += (high,)
        sums += (total,)
    return higher, sums


@triton.jit
def _meet(
    mixed,
    scores,
    highest,
    totals,
    v,
    after,
    lots,
    query,
    key,
    n: tl.constexpr,
    heads: tl.constexpr,
    dropped: tl.constexpr,
):
    """Adds what a tile of keys gives to the mixed values."""
    weights = ()
    for head in tl.static_range(heads):
        weight = tl.exp2(scores[head] - highest[head][:, None]) / totals[head][:, None]
        weights += (weight,)
    spoken = drop(mix(weights, after, 1.0, heads, False), lots, query, key, n, heads, dropped)
    more = ()
    for head in tl.static_range(heads):
        more += (dot(narrow(spoken[head], v[head].dtype), v[head], mixed[head]),)
    return more


@triton.jit(do_not_specialize=["threshold"])
def talking_forward(
    qkv,
    out,
    lse,
    before,
    after,
    seeds,
    image_stride,
    token_stride,
    threshold,
    upscale,
    n: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    masked: tl.constexpr,
    dropped: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    block_e: tl.constexpr,
):
    """Attention of a block of queries of one image, all heads.

    Keys that fit one tile are looked at once. Of more, the first walk finds each softmax's sum, and
    the second mixes: the mixing after the softmax needs the weights themselves.

    Args:
        qkv: The projection's output, (image, token, 3 · heads · width).
        out: (image, token, heads · width), contiguous.
        lse: (image, heads, n), the logarithm of each softmax's sum, in base 2.
        before: (heads, heads), with scale and temperatures; new map g is the sum over h of
            before[h, g] · map h.
        after: (heads, heads), likewise.
        seeds: One seed.
        image_stride: From one image of qkv to the next.
        token_stride: From one token of qkv to the next.
        threshold: Of dropout.
        upscale: What kept weights are multiplied with.
        n: Tokens of an image.
        heads: Number of heads.
        width: Width of a head.
        masked: Hides the diagonal.
        dropped: There is dropout.
        block_q: Queries of a program.
        block_k: Keys of a tile.
        block_e: The head's width, rounded up to a power of 2.
    """
    image = tl.program_id(0)
    inner: tl.constexpr = heads * width
    single: tl.constexpr = n <= block_k
    queries = tl.program_id(1) * block_q + tl.arange(0, block_q)
    query = queries[:, None]
    base = qkv + image.to(tl.int64) * image_stride
    q = read_heads(base, queries, token_stride, n, heads, width, block_e, n % block_q != 0)
    lots = lots_of(seeds, image, threshold, upscale, heads, dropped)
    highest, totals = (), ()
    for _ in tl.static_range(heads):
        highest += (tl.full((block_q,), float("-inf"), tl.float32),)
        totals += (tl.zeros((block_q,), tl.float32),)
    mixed = zeros_of(heads, block_q, block_e)
    ragged: tl.constexpr = n % block_k != 0
    if single:
        keys = tl.arange(0, block_k)
        key = keys[None, :]
        k = read_heads(base + inner, keys, token_stride, n, heads, width, block_e, ragged)
        products = products_of(q, k, heads)
        scores = mixed_scores(products, before, query, key, n, heads, masked, ragged)
        highest, totals = _absorb(highest, totals, scores, heads)
        v = read_heads(base + 2 * inner, keys, token_stride, n, heads, width, block_e, ragged)
        mixed = _meet(
            mixed, scores, highest, totals, v, after, lots, query, key, n, heads, dropped
        )  # fmt: skip
    else:
        for start in range(0, n, block_k):
            keys = start + tl.arange(0, block_k)
            k = read_heads(base + inner, keys, token_stride, n, heads, width, block_e, ragged)
            products = products_of(q, k, heads)
            scores = mixed_scores(products, before, query, keys[None, :], n, heads, masked, ragged)
            highest, totals = _absorb(highest, totals, scores, heads)
        for start in range(0, n, block_k):
            keys = start + tl.arange(0, block_k)
            key = keys[None, :]
            k = read_heads(base + inner, keys, token_stride, n, heads, width, block_e, ragged)
            products = products_of(q, k, heads)
            scores = mixed_scores(products, before, query, key, n, heads, masked, ragged)
            v = read_heads(base + 2 * inner, keys, token_stride, n, heads, width, block_e, ragged)
            mixed = _meet(
                mixed, scores, highest, totals, v, after, lots, query, key, n, heads, dropped
            )  # fmt: skip
    layout: tl.constexpr = (1, n, 1, n, 0, 0)
    out_base = out + image.to(tl.int64) * (n * inner)
    lse_base = lse + image.to(tl.int64) * (heads * n)
    for head in tl.static_range(heads):
        at = out_base + head * width
        write(at, mixed[head], queries, 0, inner, n, layout, width, block_e)
        level = tl.cast(highest[head], lse.dtype.element_ty) + tl.log2(totals[head])
        tl.store(lse_base + head * n + queries, level, queries < n)
