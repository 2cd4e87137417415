"""The backward program of attention with talking heads where a tile holds all tokens.

It owns an image and forms every product once.
"""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,assignment"

import triton
import triton.language as tl

from smallvit.layers.kernels.parts import dot, narrow, write
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
def _pairs_by_key(part, length, keys, maps, slopes, heads: tl.constexpr):
    """Writes Σ map h · slope g over a block's queries to its own of (heads, heads, length).

    Sums over keys would need all warps of a program to meet, once for each pair of heads; and to
    add to what an earlier block wrote would be to wait for memory as often.
    """
    for old in tl.static_range(heads):
        for new in tl.static_range(heads):
            at = part + (old * heads + new) * length + keys
            tl.store(at, tl.sum(maps[old] * slopes[new], 1))


@triton.jit(do_not_specialize=["threshold"])
def talking_backward_whole(
    qkv,
    lse,
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
    """All gradients of an image whose keys are one tile, from tiles of keys × queries.

    The arguments are those of `talking_backward`, but `parts` is (2, heads, heads, image,
    block of queries, key).
    """
    image = tl.program_id(0)
    inner: tl.constexpr = heads * width
    ragged: tl.constexpr = n % block_k != 0
    uneven: tl.constexpr = n % block_q != 0
    layout: tl.constexpr = (1, n, 1, n, 0, 0)
    keys = tl.arange(0, block_k)
    key = keys[:, None]
    base = qkv + image.to(tl.int64) * image_stride
    grad_base = grads + image.to(tl.int64) * (n * inner)
    dq_base = dqkv + image.to(tl.int64) * (3 * n * inner)
    row_base = image.to(tl.int64) * (heads * n)
    blocks: tl.constexpr = (n + block_q - 1) // block_q
    length = tl.num_programs(0).to(tl.int64) * (blocks * block_k)
    part = parts + image.to(tl.int64) * (blocks * block_k)
    lots = lots_of(seeds, image, threshold, upscale, heads, dropped)
    dk = zeros_of(heads, block_k, block_e)
    dv = zeros_of(heads, block_k, block_e)
    k = read_heads(base + inner, keys, token_stride, n, heads, width, block_e, ragged)
    v = read_heads(base + 2 * inner, keys, token_stride, n, heads, width, block_e, ragged)
    for start in range(0, n, block_q):
        queries = start + tl.arange(0, block_q)
        query = queries[None, :]
        q = read_heads(base, queries, token_stride, n, heads, width, block_e, uneven)
        grad = read_heads(grad_base, queries, inner, n, heads, width, block_e, uneven)
        sums = load_rows(lse + row_base, query, n, heads)
        products = products_of(k, q, heads)
        weights = weights_of(products, before, sums, query, key, n, heads, masked, ragged)
        spoken = drop(mix(weights, after, 1.0, heads, False), lots, query, key, n, heads, dropped)
        dv = accumulated(dv, spoken, grad, heads)
        heard = drop(products_of(v, grad, heads), lots, query, key, n, heads, dropped)
        here = part + start // block_q * block_k
        _pairs_by_key(here + length * (heads * heads), length, keys, weights, heard, heads)
        pulls = mix(heard, after, 1.0, heads, True)
        slopes = ()
        for head in tl.static_range(heads):
            delta = tl.sum(weights[head] * pulls[head], 0)[None, :]
            slopes += (weights[head] * (pulls[head] - delta),)
        _pairs_by_key(here, length, keys, products, slopes, heads)
        back = mix(slopes, before, 1.0, heads, True)
        dk = accumulated(dk, back, q, heads)
        for head in tl.static_range(heads):
            dq = dot(tl.trans(narrow(back[head], k[head].dtype)), k[head])
            write(dq_base + head * width, dq, queries, 0, 3 * inner, n, layout, width, block_e)
    for head in tl.static_range(heads):
        at = dq_base + inner + head * width
        write(at, dk[head], keys, 0, 3 * inner, n, layout, width, block_e)
        write(at + inner, dv[head], keys, 0, 3 * inner, n, layout, width, block_e)
