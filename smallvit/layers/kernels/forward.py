"""The forward program of fused attention."""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

import triton
import triton.language as tl

from smallvit.layers.kernels.parts import (
    LOG2E,
    dot,
    kept,
    lot_of,
    narrow,
    read,
    scores_of,
    write,
)


@triton.jit
def _step(
    state,
    q,
    k,
    v,
    queries,
    keys,
    place,
    lot,
    n: tl.constexpr,
    layout: tl.constexpr,
    kind: tl.constexpr,
    padded: tl.constexpr,
):
    """Takes one tile of keys into the softmax of a block of queries.

    The state is the mixed values, the highest score and the sum of weights so far.
    """
    mixed, highest, total = state
    query, key = queries[:, None], keys[None, :]
    scores = scores_of(dot(q, tl.trans(k), exact=True), query, key, place, n, layout, kind, padded)
    higher = tl.maximum(highest, tl.max(scores, 1))
    # A tile may hold nothing a query may see: then there is nothing to subtract.
    level = tl.where(higher == float("-inf"), 0.0, higher)
    weight = tl.exp2(scores - level[:, None])
    shrink = tl.exp2(highest - level)
    total = total * shrink + tl.sum(weight, 1)
    if kind[2]:
        weight = tl.where(kept(lot, query, key, n), weight, 0.0)
    return dot(narrow(weight, v.dtype), v, mixed * shrink[:, None]), higher, total


@triton.jit(do_not_specialize=["threshold"])
def forward(
    qkv,
    out,
    lse,
    temperatures,
    bias,
    seeds,
    image_stride,
    token_stride,
    scale,
    threshold,
    upscale,
    n: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    layout: tl.constexpr,
    masked: tl.constexpr,
    tempered: tl.constexpr,
    biased: tl.constexpr,
    dropped: tl.constexpr,
    rows: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    tail: tl.constexpr,
    block_e: tl.constexpr,
):
    """Attention of `rows` queries of one map, a block of them at a time.

    Args:
        qkv: The projection's output, (image, token, 3 · heads · width).
        out: (image, token, heads · width), contiguous.
        lse: (map, n), the logarithm of each softmax's sum, in base 2.
        temperatures: One number per head.
        bias: (heads, n, n).
        seeds: One seed.
        image_stride: From one image of qkv to the next.
        token_stride: From one token of qkv to the next.
        scale: Multiplies the scores beside the temperature.
        threshold: Of dropout.
        upscale: What kept weights are multiplied with.
        n: Tokens of a group.
        heads: Number of heads.
        width: Width of a head.
        layout: Image, window and shift.
        masked: Hides the diagonal.
        tempered: There are temperatures.
        biased: There is a bias.
        dropped: There is dropout.
        rows: Queries of a program, a multiple of block_q.
        block_q: Queries of a block.
        block_k: Keys of a full tile.
        tail: Keys of the last tile, for those that fill no full one; 0 without.
        block_e: The head's width, rounded up to a power of 2.
    """
    number = tl.program_id(0)
    head = number % heads
    windows: tl.constexpr = (layout[0] // layout[2]) * (layout[1] // layout[3])
    group = number // heads
    window = group % windows
    image = (group // windows).to(tl.int64)
    inner: tl.constexpr = heads * width
    full: tl.constexpr = n // block_k
    q_base = qkv + image * image_stride + head * width
    k_base = q_base + inner
    v_base = k_base + inner
    out_base = out + image * (n * windows * inner) + head * width
    lse_base = lse + number.to(tl.int64) * n
    temperature = scale * LOG2E
    if tempered:
        temperature *= tl.load(temperatures + head).to(tl.float32)
    place = (window, bias + head * n * n, temperature)
    kind: tl.constexpr = (masked, biased, dropped)
    lot = lot_of(seeds, number, threshold, upscale, dropped)

    # A head that fits one tile is read once for all blocks of queries.
    keys = tl.arange(0, block_k)
    if full == 1:
        k = read(k_base, keys, window, token_stride, n, layout, width, block_e, False)
        v = read(v_base, keys, window, token_stride, n, layout, width, block_e, False)
    if tail > 0:
        last = full * block_k + tl.arange(0, tail)
        k_last = read(k_base, last, window, token_stride, n, layout, width, block_e, True)
        v_last = read(v_base, last, window, token_stride, n, layout, width, block_e, True)

    first = tl.program_id(1) * rows
    ragged: tl.constexpr = n % block_q != 0
    for block in range(0, rows, block_q):
        queries = first + block + tl.arange(0, block_q)
        q = read(q_base, queries, window, token_stride, n, layout, width, block_e, ragged)
        mixed = tl.zeros((block_q, block_e), tl.float32)
        highest = tl.full((block_q,), float("-inf"), tl.float32)
        total = tl.zeros((block_q,), tl.float32)
        state = (mixed, highest, total)
        if full == 1:
            state = _step(state, q, k, v, queries, keys, place, lot, n, layout, kind, False)
        if full > 1:
            for start in range(0, full * block_k, block_k):
                at = start + keys
                k = read(k_base, at, window, token_stride, n, layout, width, block_e, False)
                v = read(v_base, at, window, token_stride, n, layout, width, block_e, False)
                state = _step(state, q, k, v, queries, at, place, lot, n, layout, kind, False)
        if tail > 0:
            state = _step(
                state, q, k_last, v_last, queries, last, place, lot, n, layout, kind, True
            )
        mixed, highest, total = state
        mixed = mixed * (upscale / total)[:, None]
        write(out_base, mixed, queries, window, inner, n, layout, width, block_e)
        level = tl.cast(highest, lse.dtype.element_ty) + tl.log2(total)
        tl.store(lse_base + queries, level, queries < n)
