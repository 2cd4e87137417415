"""The backward program of heads too long for one tile of keys.

Each program owns one tile of tokens. First it takes them as keys and walks over all queries,
then as queries and walks over all keys: products are formed twice, but nothing is shared between
programs.
"""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

import triton
import triton.language as tl

from smallvit.layers.kernels.parts import (
    LOG2E,
    add_to,
    dot,
    kept,
    lot_of,
    narrow,
    read,
    scores_of,
    write,
)


@triton.jit
def _slopes(scores, lse, delta, pull, query, key, lot, n: tl.constexpr, dropped: tl.constexpr):
    """The weights as they met the values, and the gradient of the scores in natural base.

    Args:
        scores: In base 2.
        lse: Logarithm of each softmax's sum, in base 2.
        delta: Each query's output times its gradient, summed.
        pull: Gradient of the weights that met the values.
        query: Places of the queries.
        key: Places of the keys.
        lot: Of dropout.
        n: Tokens of a group.
        dropped: There is dropout.
    """
    weight = tl.exp2((scores - lse).to(tl.float32))
    met = weight
    if dropped:
        keep = kept(lot, query, key, n)
        met = tl.where(keep, weight * lot[3], 0.0)
        pull = tl.where(keep, pull * lot[3], 0.0)
    return met, weight * (pull - delta)


@triton.jit
def _read_queries(
    bases,
    queries,
    window,
    strides,
    n: tl.constexpr,
    layout: tl.constexpr,
    width: tl.constexpr,
    block_e: tl.constexpr,
    padded: tl.constexpr,
):
    """Queries, the gradient of their outputs, the logarithms of their sums, and delta."""
    q = read(bases[0], queries, window, strides[0], n, layout, width, block_e, padded)
    out = read(bases[3], queries, window, strides[1], n, layout, width, block_e, padded)
    grad = read(bases[4], queries, window, strides[1], n, layout, width, block_e, padded)
    lse = tl.load(bases[5] + queries, queries < n, 0.0)
    return q, grad, lse, tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)


@triton.jit
def _to_keys(
    dk,
    dv,
    k,
    v,
    keys,
    queries,
    bases,
    strides,
    place,
    lot,
    n: tl.constexpr,
    layout: tl.constexpr,
    kind: tl.constexpr,
    width: tl.constexpr,
    block_e: tl.constexpr,
    padded: tl.constexpr,
    keys_padded: tl.constexpr,
):
    """Adds what a block of queries gives to the gradients of some keys and values."""
    q, grad, lse, delta = _read_queries(
        bases, queries, place[0], strides, n, layout, width, block_e, padded
    )
    query, key = queries[None, :], keys[:, None]
    products = dot(k, tl.trans(q), exact=True)
    scores = scores_of(products, query, key, place, n, layout, kind, keys_padded)
    pull = dot(v, tl.trans(grad), exact=True)
    met, slope = _slopes(scores, lse[None, :], delta[None, :], pull, query, key, lot, n, kind[2])
    return dot(narrow(slope, q.dtype), q, dk), dot(narrow(met, v.dtype), grad, dv)


@triton.jit
def _look(
    q,
    grad,
    keys,
    queries,
    bases,
    strides,
    place,
    n: tl.constexpr,
    layout: tl.constexpr,
    kind: tl.constexpr,
    width: tl.constexpr,
    block_e: tl.constexpr,
    padded: tl.constexpr,
):
    """A tile of keys, and what queries have there: scores, and the gradients of the weights."""
    k = read(bases[1], keys, place[0], strides[0], n, layout, width, block_e, padded)
    v = read(bases[2], keys, place[0], strides[0], n, layout, width, block_e, padded)
    query, key = queries[:, None], keys[None, :]
    products = dot(q, tl.trans(k), exact=True)
    scores = scores_of(products, query, key, place, n, layout, kind, padded)
    return k, scores, dot(grad, tl.trans(v), exact=True)


@triton.jit
def _to_delta(
    delta,
    q,
    grad,
    lse,
    queries,
    keys,
    bases,
    strides,
    place,
    lot,
    n: tl.constexpr,
    layout: tl.constexpr,
    kind: tl.constexpr,
    width: tl.constexpr,
    block_e: tl.constexpr,
    padded: tl.constexpr,
):
    """Adds a tile's share of Σ weight · gradient over the keys of each query."""
    _, scores, pull = _look(
        q, grad, keys, queries, bases, strides, place, n, layout, kind, width, block_e, padded
    )
    query, key = queries[:, None], keys[None, :]
    met, _ = _slopes(scores, lse[:, None], 0.0, pull, query, key, lot, n, kind[2])
    return delta + tl.sum(met * pull, 1)


@triton.jit
def _to_queries(
    dq,
    q,
    grad,
    lse,
    delta,
    queries,
    keys,
    bases,
    strides,
    place,
    lot,
    part,
    again,
    n: tl.constexpr,
    layout: tl.constexpr,
    kind: tl.constexpr,
    width: tl.constexpr,
    block_e: tl.constexpr,
    padded: tl.constexpr,
    sloped: tl.constexpr,
):
    """Adds what a tile of keys gives to the gradient of some queries, and to the bias's."""
    k, scores, pull = _look(
        q, grad, keys, queries, bases, strides, place, n, layout, kind, width, block_e, padded
    )
    query, key = queries[:, None], keys[None, :]
    _, slope = _slopes(scores, lse[:, None], delta[:, None], pull, query, key, lot, n, kind[2])
    if sloped:
        add_to(part, slope, query, key, again, n)
    return dot(narrow(slope, k.dtype), k, dq)


@triton.jit
def _own(
    dq_base,
    bases,
    strides,
    places,
    place,
    lot,
    natural,
    part,
    again,
    n: tl.constexpr,
    layout: tl.constexpr,
    kind: tl.constexpr,
    width: tl.constexpr,
    block_e: tl.constexpr,
    block: tl.constexpr,
    tail: tl.constexpr,
    padded: tl.constexpr,
    sloped: tl.constexpr,
):
    """Both walks of a tile of tokens of one map; returns the temperature's share.

    Args:
        dq_base: Where the gradients of this map start.
        bases: Where its queries, keys, values, outputs, gradients and sums start.
        strides: From token to token, of qkv and of the output.
        places: The tile's tokens.
        place: As `scores_of` takes it.
        lot: As `kept` takes it.
        natural: What products are multiplied with.
        part: This program's share of the bias gradient.
        again: There is something in it already.
        n: Tokens of a group.
        layout: Image, window and shift.
        kind: Whether there are a mask, a bias and dropout.
        width: Of a head.
        block_e: The same, rounded up.
        block: Tokens of a full tile.
        tail: Tokens of the last one, or 0.
        padded: Some of this tile's tokens may lie beyond n.
        sloped: The bias needs its gradient.
    """
    whole: tl.constexpr = n // block * block
    window = place[0]
    walk = tl.arange(0, block)
    last = whole + tl.arange(0, tail if tail > 0 else 16)

    k = read(bases[1], places, window, strides[0], n, layout, width, block_e, padded)
    v = read(bases[2], places, window, strides[0], n, layout, width, block_e, padded)
    dk = tl.zeros((places.shape[0], block_e), tl.float32)
    dv = tl.zeros((places.shape[0], block_e), tl.float32)
    for start in range(0, whole, block):
        dk, dv = _to_keys(
            dk, dv, k, v, places, start + walk, bases, strides, place, lot,
            n, layout, kind, width, block_e, False, padded,
        )  # fmt: skip
    if tail > 0:
        dk, dv = _to_keys(
            dk, dv, k, v, places, last, bases, strides, place, lot,
            n, layout, kind, width, block_e, True, padded,
        )  # fmt: skip
    stride = 3 * strides[1]
    dk_base = dq_base + strides[1]
    write(dk_base, dk * natural, places, window, stride, n, layout, width, block_e)
    write(dk_base + strides[1], dv, places, window, stride, n, layout, width, block_e)

    q, grad, lse, delta = _read_queries(
        bases, places, window, strides, n, layout, width, block_e, padded
    )
    if q.dtype == tl.float32:
        # Not from the output: where one weight is all, this leaves nothing to round.
        delta = tl.zeros((places.shape[0],), tl.float32)
        for start in range(0, whole, block):
            delta = _to_delta(
                delta, q, grad, lse, places, start + walk, bases, strides, place, lot,
                n, layout, kind, width, block_e, False,
            )  # fmt: skip
        if tail > 0:
            delta = _to_delta(
                delta, q, grad, lse, places, last, bases, strides, place, lot,
                n, layout, kind, width, block_e, True,
            )  # fmt: skip
    dq = tl.zeros((places.shape[0], block_e), tl.float32)
    for start in range(0, whole, block):
        dq = _to_queries(
            dq, q, grad, lse, delta, places, start + walk, bases, strides, place, lot, part,
            again, n, layout, kind, width, block_e, False, sloped,
        )  # fmt: skip
    if tail > 0:
        dq = _to_queries(
            dq, q, grad, lse, delta, places, last, bases, strides, place, lot, part,
            again, n, layout, kind, width, block_e, True, sloped,
        )  # fmt: skip
    write(dq_base, dq * natural, places, window, stride, n, layout, width, block_e)
    return tl.sum(tl.sum(q.to(tl.float32) * dq, 1), 0)


@triton.jit(do_not_specialize=["threshold"])
def backward_tiled(
    qkv,
    out,
    lse,
    grads,
    dqkv,
    temperatures,
    bias,
    seeds,
    temperature_parts,
    bias_parts,
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
    sloped: tl.constexpr,
    dropped: tl.constexpr,
    repeat: tl.constexpr,
    block: tl.constexpr,
    tail: tl.constexpr,
    block_e: tl.constexpr,
):
    """All gradients of one tile of tokens in `repeat` maps of one head.

    The arguments mean what they do in `backward`; parts of temperatures are (heads, turn, tile).
    """
    head = tl.program_id(0) % heads
    turn = tl.program_id(0) // heads
    tile = tl.program_id(1)
    windows: tl.constexpr = (layout[0] // layout[2]) * (layout[1] // layout[3])
    inner: tl.constexpr = heads * width
    kind: tl.constexpr = (masked, biased, dropped)
    part = bias_parts + tl.program_id(0).to(tl.int64) * (n * n)
    strides = (token_stride, inner)
    natural = scale
    if tempered:
        natural *= tl.load(temperatures + head).to(tl.float32)
    warmth = 0.0
    first = turn * repeat
    for step in range(repeat):
        group = first + step
        number = group * heads + head
        image = (group // windows).to(tl.int64)
        q_base = qkv + image * image_stride + head * width
        dq_base = dqkv + image * (3 * n * windows * inner) + head * width
        inside = image * (n * windows * inner) + head * width
        sums = lse + number.to(tl.int64) * n
        bases = (q_base, q_base + inner, q_base + 2 * inner, out + inside, grads + inside, sums)
        place = (group % windows, bias + head * n * n, natural * LOG2E)
        lot = lot_of(seeds, number, threshold, upscale, dropped)
        if tile < n // block:
            warmth += _own(
                dq_base, bases, strides, tile * block + tl.arange(0, block), place, lot, natural,
                part, step > 0, n, layout, kind, width, block_e, block, tail, False, sloped,
            )  # fmt: skip
        elif tail > 0:
            warmth += _own(
                dq_base, bases, strides, tile * block + tl.arange(0, tail), place, lot, natural,
                part, step > 0, n, layout, kind, width, block_e, block, tail, True, sloped,
            )  # fmt: skip
        if sloped:
            # What this map added may be read by other threads for the next one.
            tl.debug_barrier()
    if tempered:
        at = head * (tl.num_programs(0) // heads) + turn
        tl.store(temperature_parts + at * tl.num_programs(1) + tile, warmth * scale)
