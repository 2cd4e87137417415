"""The backward program of heads too long for one tile of keys.

Each program owns one tile of tokens. First it takes them as keys and walks over all queries,
then as queries and walks over all keys: products are formed twice, but nothing is shared between
programs.
"""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

import triton
import triton.language as tl

from smallvit.layers.kernels.parts import LOG2E, kept, keys_of, read, scores_of, write
from smallvit.layers.kernels.slopes import add_to, read_queries, slopes


@triton.jit
def _to_keys(
    dk,
    dv,
    k,
    v,
    q_base,
    out_base,
    grad_base,
    lse_base,
    keys,
    start,
    window,
    bias,
    temperature,
    token_stride,
    first_word,
    second_word,
    threshold,
    upscale,
    options: tl.constexpr,
    block: tl.constexpr,
    padded: tl.constexpr,
    keys_padded: tl.constexpr,
):
    """Adds what a block of queries gives to the gradients of some keys and values."""
    n: tl.constexpr = options[0]
    layout: tl.constexpr = options[4]
    queries = start + tl.arange(0, block)
    q, grad, lse, delta = read_queries(
        q_base, out_base, grad_base, lse_base, queries, window, token_stride,
        n, layout, options[1], options[2], options[3], padded,
    )  # fmt: skip
    scores = scores_of(
        tl.dot(k, tl.trans(q), input_precision="ieee"),
        queries[None, :], keys[:, None], window, bias, temperature,
        n, layout, options[5], options[6], keys_padded,
    )  # fmt: skip
    keep = scores
    if options[7]:
        keep = kept(first_word, second_word, queries[None, :], keys[:, None], threshold, n)
    pull = tl.dot(v, tl.trans(grad), input_precision="ieee")
    met, slope = slopes(scores, lse[None, :], delta[None, :], pull, keep, upscale, options[7])
    dv = tl.dot(met.to(v.dtype), grad, dv, input_precision="ieee")
    dk = tl.dot(slope.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit
def _to_queries(
    dq,
    q,
    grad,
    lse,
    delta,
    k_base,
    queries,
    start,
    window,
    bias,
    part,
    again,
    temperature,
    token_stride,
    first_word,
    second_word,
    threshold,
    upscale,
    options: tl.constexpr,
    block: tl.constexpr,
    padded: tl.constexpr,
):
    """Adds what a tile of keys gives to the gradient of some queries, and to the bias's."""
    n: tl.constexpr = options[0]
    inner: tl.constexpr = options[1]
    layout: tl.constexpr = options[4]
    keys = start + tl.arange(0, block)
    k = read(k_base, keys, window, token_stride, n, layout, options[2], options[3], padded)
    v = read(k_base + inner, keys, window, token_stride, n, layout, options[2], options[3], padded)
    scores = scores_of(
        tl.dot(q, tl.trans(k), input_precision="ieee"),
        queries[:, None], keys[None, :], window, bias, temperature,
        n, layout, options[5], options[6], padded,
    )  # fmt: skip
    keep = scores
    if options[7]:
        keep = kept(first_word, second_word, queries[:, None], keys[None, :], threshold, n)
    pull = tl.dot(grad, tl.trans(v), input_precision="ieee")
    _, slope = slopes(scores, lse[:, None], delta[:, None], pull, keep, upscale, options[7])
    if options[8]:
        add_to(part, slope, queries[:, None], keys[None, :], again, n)
    return tl.dot(slope.to(k.dtype), k, dq, input_precision="ieee")


@triton.jit
def _own(
    q_base,
    out_base,
    grad_base,
    lse_base,
    dq_base,
    start,
    window,
    bias,
    part,
    again,
    natural,
    token_stride,
    first_word,
    second_word,
    threshold,
    upscale,
    options: tl.constexpr,
    block: tl.constexpr,
    tail: tl.constexpr,
    size: tl.constexpr,
    padded: tl.constexpr,
):
    """Both walks of a tile of `size` tokens of one map; returns the temperature's share."""
    n: tl.constexpr = options[0]
    inner: tl.constexpr = options[1]
    width: tl.constexpr = options[2]
    block_e: tl.constexpr = options[3]
    layout: tl.constexpr = options[4]
    whole: tl.constexpr = n // block * block
    temperature = natural * LOG2E
    places = start + tl.arange(0, size)

    k_base = q_base + inner
    k = read(k_base, places, window, token_stride, n, layout, width, block_e, padded)
    v = read(k_base + inner, places, window, token_stride, n, layout, width, block_e, padded)
    dk = tl.zeros((size, block_e), tl.float32)
    dv = tl.zeros((size, block_e), tl.float32)
    for at in range(0, whole, block):
        dk, dv = _to_keys(
            dk, dv, k, v, q_base, out_base, grad_base, lse_base, places, at, window,
            bias, temperature, token_stride, first_word, second_word, threshold, upscale,
            options, block, False, padded,
        )  # fmt: skip
    if tail > 0:
        dk, dv = _to_keys(
            dk, dv, k, v, q_base, out_base, grad_base, lse_base, places, whole, window,
            bias, temperature, token_stride, first_word, second_word, threshold, upscale,
            options, tail, True, padded,
        )  # fmt: skip
    stride: tl.constexpr = 3 * inner
    write(dq_base + inner, dk * natural, places, window, stride, n, layout, width, block_e)
    write(dq_base + 2 * inner, dv, places, window, stride, n, layout, width, block_e)

    q, grad, lse, delta = read_queries(
        q_base, out_base, grad_base, lse_base, places, window, token_stride,
        n, layout, inner, width, block_e, padded,
    )  # fmt: skip
    dq = tl.zeros((size, block_e), tl.float32)
    for at in range(0, whole, block):
        dq = _to_queries(
            dq, q, grad, lse, delta, k_base, places, at, window, bias, part, again, temperature,
            token_stride, first_word, second_word, threshold, upscale, options, block, False,
        )  # fmt: skip
    if tail > 0:
        dq = _to_queries(
            dq, q, grad, lse, delta, k_base, places, whole, window, bias, part, again,
            temperature, token_stride, first_word, second_word, threshold, upscale, options, tail, True,
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

    The arguments mean what they do in `backward`; parts of temperatures are (turn, heads, tile).
    """
    head = tl.program_id(0) % heads
    turn = tl.program_id(0) // heads
    tile = tl.program_id(1)
    windows: tl.constexpr = (layout[0] // layout[2]) * (layout[1] // layout[3])
    inner: tl.constexpr = heads * width
    options: tl.constexpr = (n, inner, width, block_e, layout, masked, biased, dropped, sloped)
    bias_base = bias + head * n * n
    part = bias_parts + tl.program_id(0).to(tl.int64) * (n * n)
    natural = scale
    if tempered:
        natural *= tl.load(temperatures + head).to(tl.float32)
    warmth = 0.0
    first = turn * repeat
    for step in range(0, repeat):
        group = first + step
        number = group * heads + head
        image = (group // windows).to(tl.int64)
        q_base = qkv + image * image_stride + head * width
        dq_base = dqkv + image * (3 * n * windows * inner) + head * width
        out_base = out + image * (n * windows * inner) + head * width
        grad_base = grads + image * (n * windows * inner) + head * width
        first_word, second_word = 0, 0
        if dropped:
            first_word, second_word = keys_of(tl.load(seeds), number)
        lse_base = lse + number.to(tl.int64) * n
        again = step > 0
        if tile < n // block:
            warmth += _own(
                q_base, out_base, grad_base, lse_base, dq_base, tile * block, group % windows,
                bias_base, part, again, natural, token_stride, first_word, second_word, threshold, upscale,
                options, block, tail, block, False,
            )  # fmt: skip
        elif tail > 0:
            warmth += _own(
                q_base, out_base, grad_base, lse_base, dq_base, tile * block, group % windows,
                bias_base, part, again, natural, token_stride, first_word, second_word, threshold, upscale,
                options, block, tail, tail, True,
            )  # fmt: skip
        if sloped:
            # What this map added may be read by other threads for the next one.
            tl.debug_barrier()
    if tempered:
        at = tl.program_id(0) * tl.num_programs(1) + tile
        tl.store(temperature_parts + at, warmth * scale)
