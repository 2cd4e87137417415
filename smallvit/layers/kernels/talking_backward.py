"""The backward programs of attention with talking heads, for any number of tokens.

One owns a block of queries: it leaves their gradient, `delta` and the program's part of the
gradients of the mixings. The other owns a block of keys, reads `delta`, and leaves the gradients of
keys and values. Products are formed twice, but nothing is shared between programs. Images of few
tokens have a faster one, in `talking_whole`.
"""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,assignment"

import triton
import triton.language as tl

from smallvit.layers.kernels.parts import write
from smallvit.layers.kernels.talking_parts import (
    accumulated,
    drop,
    load_rows,
    lots_of,
    mix,
    products_of,
    read_heads,
    weights_of,
    zeros_of,
)


@triton.jit
def _slopes(weights, pulls, delta, heads: tl.constexpr):
    """Gradients of the scores, in natural base, from those of the softmax's weights."""
    slopes = ()
    for head in tl.static_range(heads):
        slopes += (weights[head] * (pulls[head] - delta[head]),)
    return slopes


@triton.jit
def _deltas(deltas, weights, pulls, heads: tl.constexpr):
    """Adds a tile's share of Σ weight · gradient over the keys of each query."""
    sums = ()
    for head in tl.static_range(heads):
        sums += (deltas[head] + tl.sum(weights[head] * pulls[head], 1)[:, None],)
    return sums


@triton.jit
def _all_pairs(part, maps, slopes, again, heads: tl.constexpr):
    """Adds Σ map h · slope g for all h and g to a program's own of (heads, heads, programs)."""
    programs = tl.num_programs(0).to(tl.int64) * tl.num_programs(1)
    for old in tl.static_range(heads):
        for new in tl.static_range(heads):
            at = part + (old * heads + new) * programs
            total = tl.sum(maps[old] * slopes[new])
            tl.store(at, tl.load(at, again, 0.0) + total)


@triton.jit
def _look(
    q,
    grads,
    lse,
    base,
    keys,
    before,
    lots,
    query,
    token_stride,
    n: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    masked: tl.constexpr,
    dropped: tl.constexpr,
    block_e: tl.constexpr,
    padded: tl.constexpr,
):
    """Keys, products, weights and the gradients of the mixed weights of a tile, for queries."""
    inner: tl.constexpr = heads * width
    key = keys[None, :]
    k = read_heads(base + inner, keys, token_stride, n, heads, width, block_e, padded)
    v = read_heads(base + 2 * inner, keys, token_stride, n, heads, width, block_e, padded)
    products = products_of(q, k, heads)
    weights = weights_of(products, before, lse, query, key, n, heads, masked, padded)
    heard = drop(products_of(grads, v, heads), lots, query, key, n, heads, dropped)
    return k, products, weights, heard


@triton.jit
def _give(
    dq,
    k,
    products,
    weights,
    heard,
    pulls,
    delta,
    before,
    part,
    again,
    heads: tl.constexpr,
):
    """Adds what a tile gives to the gradients of queries and mixings."""
    programs = tl.num_programs(0).to(tl.int64) * tl.num_programs(1)
    _all_pairs(part + heads * heads * programs, weights, heard, again, heads)
    slopes = _slopes(weights, pulls, delta, heads)
    _all_pairs(part, products, slopes, again, heads)
    back = mix(slopes, before, 1.0, heads, True)
    return accumulated(dq, back, k, heads)


@triton.jit(do_not_specialize=["threshold"])
def talking_backward_queries(
    qkv,
    lse,
    deltas,
    grads,
    dqkv,
    before,
    after,
    seeds,
    parts,
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
    """Gradients of a block of queries, and its part of those of the mixings.

    The arguments that the forward program has too mean the same.

    Args:
        deltas: (image, heads, n), each softmax's Σ weight · gradient, written here.
        grads: Gradient of `out`, laid out like it.
        dqkv: Gradient of `qkv`, contiguous.
        parts: (2, heads, heads, program), the mixings before and after.
    """
    image = tl.program_id(0)
    inner: tl.constexpr = heads * width
    single: tl.constexpr = n <= block_k
    ragged: tl.constexpr = n % block_k != 0
    uneven: tl.constexpr = n % block_q != 0
    queries = tl.program_id(1) * block_q + tl.arange(0, block_q)
    query = queries[:, None]
    base = qkv + image.to(tl.int64) * image_stride
    grad_base = grads + image.to(tl.int64) * (n * inner)
    row_base = image.to(tl.int64) * (heads * n)
    program = (image * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
    part = parts + program
    q = read_heads(base, queries, token_stride, n, heads, width, block_e, uneven)
    grad = read_heads(grad_base, queries, inner, n, heads, width, block_e, uneven)
    sums = load_rows(lse + row_base, query, n, heads)
    lots = lots_of(seeds, image, threshold, upscale, heads, dropped)
    delta = zeros_of(heads, block_q, 1)
    dq = zeros_of(heads, block_q, block_e)
    if single:
        keys = tl.arange(0, block_k)
        k, products, weights, heard = _look(
            q, grad, sums, base, keys, before, lots, query, token_stride,
            n, heads, width, masked, dropped, block_e, ragged,
        )  # fmt: skip
        pulls = mix(heard, after, 1.0, heads, True)
        delta = _deltas(delta, weights, pulls, heads)
        dq = _give(dq, k, products, weights, heard, pulls, delta, before, part, False, heads)
    else:
        for start in range(0, n, block_k):
            keys = start + tl.arange(0, block_k)
            k, products, weights, heard = _look(
                q, grad, sums, base, keys, before, lots, query, token_stride,
                n, heads, width, masked, dropped, block_e, ragged,
            )  # fmt: skip
            delta = _deltas(delta, weights, mix(heard, after, 1.0, heads, True), heads)
        for start in range(0, n, block_k):
            keys = start + tl.arange(0, block_k)
            k, products, weights, heard = _look(
                q, grad, sums, base, keys, before, lots, query, token_stride,
                n, heads, width, masked, dropped, block_e, ragged,
            )  # fmt: skip
            pulls = mix(heard, after, 1.0, heads, True)
            dq = _give(
                dq, k, products, weights, heard, pulls, delta, before, part, start > 0, heads
            )
            # What this tile added may be read by other threads for the next one.
            tl.debug_barrier()
    layout: tl.constexpr = (1, n, 1, n, 0, 0)
    dq_base = dqkv + image.to(tl.int64) * (3 * n * inner)
    for head in tl.static_range(heads):
        at = dq_base + head * width
        write(at, dq[head], queries, 0, 3 * inner, n, layout, width, block_e)
        tl.store(deltas + row_base + head * n + query, delta[head], query < n)


@triton.jit(do_not_specialize=["threshold"])
def talking_backward_keys(
    qkv,
    lse,
    deltas,
    grads,
    dqkv,
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
    """Gradients of a block of keys and of their values, from tiles of keys × queries.

    The arguments are those of the other program; `deltas` is read here.
    """
    image = tl.program_id(0)
    inner: tl.constexpr = heads * width
    ragged: tl.constexpr = n % block_k != 0
    uneven: tl.constexpr = n % block_q != 0
    keys = tl.program_id(1) * block_k + tl.arange(0, block_k)
    key = keys[:, None]
    base = qkv + image.to(tl.int64) * image_stride
    grad_base = grads + image.to(tl.int64) * (n * inner)
    row_base = image.to(tl.int64) * (heads * n)
    k = read_heads(base + inner, keys, token_stride, n, heads, width, block_e, ragged)
    v = read_heads(base + 2 * inner, keys, token_stride, n, heads, width, block_e, ragged)
    lots = lots_of(seeds, image, threshold, upscale, heads, dropped)
    dk = zeros_of(heads, block_k, block_e)
    dv = zeros_of(heads, block_k, block_e)
    for start in range(0, n, block_q):
        queries = start + tl.arange(0, block_q)
        query = queries[None, :]
        q = read_heads(base, queries, token_stride, n, heads, width, block_e, uneven)
        grad = read_heads(grad_base, queries, inner, n, heads, width, block_e, uneven)
        sums = load_rows(lse + row_base, query, n, heads)
        delta = load_rows(deltas + row_base, query, n, heads)
        products = products_of(k, q, heads)
        weights = weights_of(products, before, sums, query, key, n, heads, masked, ragged)
        spoken = drop(mix(weights, after, 1.0, heads, False), lots, query, key, n, heads, dropped)
        dv = accumulated(dv, spoken, grad, heads)
        heard = drop(products_of(v, grad, heads), lots, query, key, n, heads, dropped)
        slopes = _slopes(weights, mix(heard, after, 1.0, heads, True), delta, heads)
        back = mix(slopes, before, 1.0, heads, True)
        dk = accumulated(dk, back, q, heads)
    layout: tl.constexpr = (1, n, 1, n, 0, 0)
    dk_base = dqkv + image.to(tl.int64) * (3 * n * inner) + inner
    for head in tl.static_range(heads):
        at = dk_base + head * width
        write(at, dk[head], keys, 0, 3 * inner, n, layout, width, block_e)
        write(at + inner, dv[head], keys, 0, 3 * inner, n, layout, width, block_e)
