"""The backward program of heads that fit one tile of keys and a tail."""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

import triton
import triton.language as tl

from smallvit.layers.kernels.parts import LOG2E, kept, keys_of, read, scores_of, write
from smallvit.layers.kernels.slopes import add_to, read_queries, slopes


@triton.jit
def _step(
    dq,
    dk,
    dv,
    q,
    k,
    v,
    grad,
    lse,
    delta,
    queries,
    start,
    window,
    bias,
    temperature,
    first_word,
    second_word,
    threshold,
    upscale,
    n: tl.constexpr,
    layout: tl.constexpr,
    masked: tl.constexpr,
    biased: tl.constexpr,
    dropped: tl.constexpr,
    block: tl.constexpr,
    padded: tl.constexpr,
):
    """What one tile of keys and one block of queries give to each other's gradients.

    The tile is keys × queries: so dk and dv need no transposed weights, and dq alone does.
    """
    keys = start + tl.arange(0, block)
    scores = scores_of(
        tl.dot(k, tl.trans(q), input_precision="ieee"),
        queries[None, :],
        keys[:, None],
        window,
        bias,
        temperature,
        n,
        layout,
        masked,
        biased,
        padded,
    )
    keep = scores
    if dropped:
        keep = kept(first_word, second_word, queries[None, :], keys[:, None], threshold, n)
    pull = tl.dot(v, tl.trans(grad), input_precision="ieee")
    met, slope = slopes(scores, lse[None, :], delta[None, :], pull, keep, upscale, dropped)
    dv = tl.dot(met.to(v.dtype), grad, dv, input_precision="ieee")
    short = slope.to(k.dtype)
    dk = tl.dot(short, q, dk, input_precision="ieee")
    dq = tl.dot(tl.trans(short), k, dq, input_precision="ieee")
    return dq, dk, dv, slope


@triton.jit(do_not_specialize=["threshold"])
def backward(
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
        temperature_parts: (program's turn, heads).
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
    bias_base = bias + head * n * n
    part = bias_parts + tl.program_id(0).to(tl.int64) * (n * n)
    natural = scale
    if tempered:
        natural *= tl.load(temperatures + head).to(tl.float32)
    temperature = natural * LOG2E
    warmth = tl.zeros((block_q,), tl.float32)
    keys = tl.arange(0, block_k)
    keys_tail = full * block_k + tl.arange(0, tail if tail > 0 else 16)
    if held:
        held_full = tl.zeros((block_k, block_q), tl.float32)
        held_tail = tl.zeros((tail if tail > 0 else 16, block_q), tl.float32)

    first = turn * repeat
    for step in range(0, repeat):
        group = first + step
        number = group * heads + head
        window = group % windows
        image = (group // windows).to(tl.int64)
        q_base = qkv + image * image_stride + head * width
        dq_base = dqkv + image * (3 * n * windows * inner) + head * width
        out_base = out + image * (n * windows * inner) + head * width
        grad_base = grads + image * (n * windows * inner) + head * width
        first_word, second_word = 0, 0
        if dropped:
            first_word, second_word = keys_of(tl.load(seeds), number)
        lse_base = lse + number.to(tl.int64) * n
        if full > 0:
            k = read(q_base + inner, keys, window, token_stride, n, layout, width, block_e, False)
            v = read(
                q_base + 2 * inner, keys, window, token_stride, n, layout, width, block_e, False
            )
            dk = tl.zeros((block_k, block_e), tl.float32)
            dv = tl.zeros((block_k, block_e), tl.float32)
        if tail > 0:
            k_tail = read(
                q_base + inner, keys_tail, window, token_stride, n, layout, width, block_e, True
            )
            v_tail = read(
                q_base + 2 * inner, keys_tail, window, token_stride, n, layout, width, block_e, True
            )
            dk_tail = tl.zeros((tail, block_e), tl.float32)
            dv_tail = tl.zeros((tail, block_e), tl.float32)
        for block in range(0, n, block_q):
            queries = block + tl.arange(0, block_q)
            q, grad, sums, delta = read_queries(
                q_base, out_base, grad_base, lse_base, queries, window, token_stride,
                n, layout, inner, width, block_e, n % block_q != 0,
            )  # fmt: skip
            dq = tl.zeros((block_q, block_e), tl.float32)
            if full > 0:
                dq, dk, dv, slope = _step(
                    dq, dk, dv, q, k, v, grad, sums, delta, queries, 0, window, bias_base,
                    temperature, first_word, second_word, threshold, upscale,
                    n, layout, masked, biased, dropped, block_k, False,
                )  # fmt: skip
                if held:
                    held_full += slope
                elif sloped:
                    add_to(part, slope, queries[None, :], keys[:, None], step > 0, n)
            if tail > 0:
                dq, dk_tail, dv_tail, slope = _step(
                    dq, dk_tail, dv_tail, q, k_tail, v_tail, grad, sums, delta, queries,
                    full * block_k, window, bias_base, temperature, first_word, second_word,
                    threshold, upscale, n, layout, masked, biased, dropped, tail, True,
                )  # fmt: skip
                if held:
                    held_tail += slope
                elif sloped:
                    add_to(part, slope, queries[None, :], keys_tail[:, None], step > 0, n)
            if tempered:
                warmth += tl.sum(q.to(tl.float32) * dq, 1)
            write(dq_base, dq * natural, queries, window, 3 * inner, n, layout, width, block_e)
        if full > 0:
            base = dq_base + inner
            write(base, dk * natural, keys, window, 3 * inner, n, layout, width, block_e)
            write(base + inner, dv, keys, window, 3 * inner, n, layout, width, block_e)
        if tail > 0:
            base = dq_base + inner
            write(base, dk_tail * natural, keys_tail, window, 3 * inner, n, layout, width, block_e)
            write(base + inner, dv_tail, keys_tail, window, 3 * inner, n, layout, width, block_e)
        if sloped and not held:
            # What this map added may be read by other threads for the next one.
            tl.debug_barrier()

    if held:
        queries = tl.arange(0, block_q)
        if full > 0:
            add_to(part, held_full, queries[None, :], keys[:, None], False, n)
        if tail > 0:
            add_to(part, held_tail, queries[None, :], keys_tail[:, None], False, n)
    if tempered:
        tl.store(temperature_parts + tl.program_id(0), tl.sum(warmth, 0) * scale)
