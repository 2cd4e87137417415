"""The backward program of heads that fit one tile of keys and a tail."""
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
def _look(
    q,
    k,
    v,
    grad,
    lse,
    queries,
    keys,
    place,
    lot,
    n: tl.constexpr,
    layout: tl.constexpr,
    kind: tl.constexpr,
    padded: tl.constexpr,
):
    """The weights of a tile, the weights that met the values, and the gradient of the weights.

    The tile is keys × queries: so dk and dv need no transposed weights, and dq alone does.
    """
    query, key = queries[None, :], keys[:, None]
    products = dot(k, tl.trans(q), exact=True)
    scores = scores_of(products, query, key, place, n, layout, kind, padded)
    weight = tl.exp2((scores - lse[None, :]).to(tl.float32))
    pull = dot(v, tl.trans(grad))
    met = weight
    if kind[2]:
        keep = kept(lot, query, key, n)
        met = tl.where(keep, weight * lot[3], 0.0)
        pull = tl.where(keep, pull * lot[3], 0.0)
    return weight, met, pull


@triton.jit
def _give(dq, dk, dv, q, k, grad, weight, met, pull, delta):
    """Adds what a tile gives to the gradients; also returns that of its scores."""
    dv = dot(narrow(met, k.dtype), grad, dv)
    slope = weight * (pull - delta[None, :])
    short = narrow(slope, k.dtype)
    dk = dot(short, q, dk)
    dq = dot(tl.trans(short), k, dq)
    return dq, dk, dv, slope


@triton.jit(do_not_specialize=["threshold"])
def backward(
    qkv,
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
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    tail: tl.constexpr,
    block_e: tl.constexpr,
):
    """All gradients of `repeat` maps of one head.

    The arguments that `forward` has too mean the same. Sums over the batch are left in parts,
    one per program, so that nothing depends on the order in which programs run.

    Args:
        grads: Gradient of `out`, laid out like it.
        dqkv: Gradient of `qkv`, contiguous.
        temperature_parts: (heads, program's turn).
        bias_parts: (program's turn, heads, n, n).
        sloped: The bias needs its gradient.
        repeat: Maps of a program, one after the other; divides their number.
    """
    head = tl.program_id(0) % heads
    turn = tl.program_id(0) // heads
    windows: tl.constexpr = (layout[0] // layout[2]) * (layout[1] // layout[3])
    inner: tl.constexpr = heads * width
    full: tl.constexpr = n // block_k
    # One block of queries: the bias gradient stays in registers over all maps.
    held: tl.constexpr = sloped and block_q >= n
    part = bias_parts + tl.program_id(0).to(tl.int64) * (n * n)
    natural = scale
    if tempered:
        natural *= tl.load(temperatures + head).to(tl.float32)
    kind: tl.constexpr = (masked, biased, dropped)
    warmth = tl.zeros((block_q,), tl.float32)
    keys = tl.arange(0, block_k)
    last = full * block_k + tl.arange(0, tail if tail > 0 else 16)
    if held:
        held_all = tl.zeros((block_k, block_q), tl.float32)
        held_last = tl.zeros((tail if tail > 0 else 16, block_q), tl.float32)

    first = turn * repeat
    for step in range(repeat):
        group = first + step
        number = group * heads + head
        window = group % windows
        image = (group // windows).to(tl.int64)
        q_base = qkv + image * image_stride + head * width
        k_base = q_base + inner
        v_base = k_base + inner
        dq_base = dqkv + image * (3 * n * windows * inner) + head * width
        grad_base = grads + image * (n * windows * inner) + head * width
        lse_base = lse + number.to(tl.int64) * n
        place = (window, bias + head * n * n, natural * LOG2E)
        lot = lot_of(seeds, number, threshold, upscale, dropped)
        if full > 0:
            k = read(k_base, keys, window, token_stride, n, layout, width, block_e, False)
            v = read(v_base, keys, window, token_stride, n, layout, width, block_e, False)
            dk = tl.zeros((block_k, block_e), tl.float32)
            dv = tl.zeros((block_k, block_e), tl.float32)
        if tail > 0:
            k_last = read(k_base, last, window, token_stride, n, layout, width, block_e, True)
            v_last = read(v_base, last, window, token_stride, n, layout, width, block_e, True)
            dk_last = tl.zeros((tail, block_e), tl.float32)
            dv_last = tl.zeros((tail, block_e), tl.float32)
        for block in range(0, n, block_q):
            queries = block + tl.arange(0, block_q)
            ragged: tl.constexpr = n % block_q != 0
            q = read(q_base, queries, window, token_stride, n, layout, width, block_e, ragged)
            grad = read(grad_base, queries, window, inner, n, layout, width, block_e, ragged)
            sums = tl.load(lse_base + queries, queries < n, 0.0)
            dq = tl.zeros((block_q, block_e), tl.float32)
            # Not from the output: where one weight is all, this leaves nothing to round.
            delta = tl.zeros((block_q,), tl.float32)
            if full > 0:
                weight, met, pull = _look(
                    q, k, v, grad, sums, queries, keys, place, lot, n, layout, kind, False
                )
                delta += tl.sum(weight * pull, 0)
            if tail > 0:
                weight_last, met_last, pull_last = _look(
                    q, k_last, v_last, grad, sums, queries, last, place, lot, n, layout, kind, True
                )
                delta += tl.sum(weight_last * pull_last, 0)
            if full > 0:
                dq, dk, dv, slope = _give(dq, dk, dv, q, k, grad, weight, met, pull, delta)
                if held:
                    held_all += slope
                elif sloped:
                    add_to(part, slope, queries[None, :], keys[:, None], step > 0, n)
            if tail > 0:
                dq, dk_last, dv_last, slope = _give(
                    dq, dk_last, dv_last, q, k_last, grad, weight_last, met_last, pull_last, delta
                )
                if held:
                    held_last += slope
                elif sloped:
                    add_to(part, slope, queries[None, :], last[:, None], step > 0, n)
            if tempered:
                warmth += tl.sum(q.to(tl.float32) * dq, 1)
            write(dq_base, dq * natural, queries, window, 3 * inner, n, layout, width, block_e)
        dk_base = dq_base + inner
        dv_base = dk_base + inner
        if full > 0:
            write(dk_base, dk * natural, keys, window, 3 * inner, n, layout, width, block_e)
            write(dv_base, dv, keys, window, 3 * inner, n, layout, width, block_e)
        if tail > 0:
            write(dk_base, dk_last * natural, last, window, 3 * inner, n, layout, width, block_e)
            write(dv_base, dv_last, last, window, 3 * inner, n, layout, width, block_e)
        if sloped and not held:
            # What this map added may be read by other threads for the next one.
            tl.debug_barrier()

    if held:
        queries = tl.arange(0, block_q)
        if full > 0:
            add_to(part, held_all, queries[None, :], keys[:, None], False, n)
        if tail > 0:
            add_to(part, held_last, queries[None, :], last[:, None], False, n)
    if tempered:
        at = head * (tl.num_programs(0) // heads) + turn
        tl.store(temperature_parts + at, tl.sum(warmth, 0) * scale)
