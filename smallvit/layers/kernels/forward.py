"""The forward program of fused attention."""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

import triton
import triton.language as tl

from smallvit.layers.kernels.parts import LOG2E, kept, keys_of, read, scores_of, write


@triton.jit
def _step(
    mixed,
    highest,
    total,
    q,
    k,
    v,
    queries,
    start,
    window,
    bias,
    temperature,
    first_word,
    second_word,
    threshold,
    n: tl.constexpr,
    layout: tl.constexpr,
    masked: tl.constexpr,
    biased: tl.constexpr,
    dropped: tl.constexpr,
    block: tl.constexpr,
    padded: tl.constexpr,
):
    """Takes one tile of keys into the softmax of a block of queries."""
    keys = start + tl.arange(0, block)
    scores = scores_of(
        tl.dot(q, tl.trans(k), input_precision="ieee"),
        queries[:, None],
        keys[None, :],
        window,
        bias,
        temperature,
        n,
        layout,
        masked,
        biased,
        padded,
    )
    higher = tl.maximum(highest, tl.max(scores, 1))
    # A tile may hold nothing a query may see: then there is nothing to subtract.
    level = tl.where(higher == float("-inf"), 0.0, higher)
    weight = tl.exp2(scores - level[:, None])
    shrink = tl.exp2(highest - level)
    total = total * shrink + tl.sum(weight, 1)
    if dropped:
        keep = kept(first_word, second_word, queries[:, None], keys[None, :], threshold, n)
        weight = tl.where(keep, weight, 0.0)
    mixed = tl.dot(weight.to(v.dtype), v, mixed * shrink[:, None], input_precision="ieee")
    return mixed, higher, total


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
    bias_base = bias + head * n * n
    temperature = scale * LOG2E
    if tempered:
        temperature *= tl.load(temperatures + head).to(tl.float32)
    first_word, second_word = 0, 0
    if dropped:
        first_word, second_word = keys_of(tl.load(seeds), number)

    # A head that fits one tile is read once for all blocks of queries.
    if full == 1:
        places = tl.arange(0, block_k)
        k = read(k_base, places, window, token_stride, n, layout, width, block_e, False)
        v = read(v_base, places, window, token_stride, n, layout, width, block_e, False)
    if tail > 0:
        places = full * block_k + tl.arange(0, tail)
        k_tail = read(k_base, places, window, token_stride, n, layout, width, block_e, True)
        v_tail = read(v_base, places, window, token_stride, n, layout, width, block_e, True)

    first = tl.program_id(1) * rows
    for block in range(0, rows, block_q):
        queries = first + block + tl.arange(0, block_q)
        q = read(
            q_base, queries, window, token_stride, n, layout, width, block_e, n % block_q != 0
        )
        mixed = tl.zeros((block_q, block_e), tl.float32)
        highest = tl.full((block_q,), float("-inf"), tl.float32)
        total = tl.zeros((block_q,), tl.float32)
        if full == 1:
            mixed, highest, total = _step(
                mixed, highest, total, q, k, v, queries, 0, window, bias_base, temperature,
                first_word, second_word, threshold, n, layout, masked, biased, dropped, block_k, False,
            )  # fmt: skip
        if full > 1:
            for start in range(0, full * block_k, block_k):
                places = start + tl.arange(0, block_k)
                k = read(k_base, places, window, token_stride, n, layout, width, block_e, False)
                v = read(v_base, places, window, token_stride, n, layout, width, block_e, False)
                mixed, highest, total = _step(
                    mixed, highest, total, q, k, v, queries, start, window, bias_base,
                    temperature, first_word, second_word, threshold, n, layout, masked, biased, dropped,
                    block_k, False,
                )  # fmt: skip
        if tail > 0:
            mixed, highest, total = _step(
                mixed, highest, total, q, k_tail, v_tail, queries, full * block_k, window,
                bias_base, temperature, first_word, second_word, threshold, n, layout, masked, biased,
                dropped, tail, True,
            )  # fmt: skip
        mixed = mixed * (upscale / total)[:, None]
        write(out_base, mixed, queries, window, inner, n, layout, width, block_e)
        tl.store(lse_base + queries, highest + tl.log2(total), queries < n)
