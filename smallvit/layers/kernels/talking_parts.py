"""What the programs of talking heads share: all heads of some tokens, and maps that are mixed.

The maps of all heads are held at once, as a tuple of tiles: so the mixings before and after the
softmax are sums in registers. `before` holds scales and temperatures too. Names and bases are those
of `parts`.
"""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,assignment"

import triton
import triton.language as tl

from smallvit.layers.kernels.parts import LOG2E, dot, kept, lot_of, narrow, read


@triton.jit
def read_heads(
    base,
    places,
    stride,
    n: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    padded: tl.constexpr,
):
    """Each head of some tokens, (places, block); zeros beyond n and beyond the head's width."""
    layout: tl.constexpr = (1, n, 1, n, 0, 0)
    tiles = ()
    for head in tl.static_range(heads):
        tiles += (read(base + head * width, places, 0, stride, n, layout, width, block, padded),)
    return tiles


@triton.jit
def load_rows(base, places, n: tl.constexpr, heads: tl.constexpr):
    """One number for each head and place, of (heads, n)."""
    rows = ()
    for head in tl.static_range(heads):
        rows += (tl.load(base + head * n + places, places < n, 0.0),)
    return rows


@triton.jit
def zeros_of(heads: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    """A tile of zeros for each head."""
    tiles = ()
    for _ in tl.static_range(heads):
        tiles += (tl.zeros((rows, columns), tl.float32),)
    return tiles


@triton.jit
def products_of(rows, columns, heads: tl.constexpr):
    """Each head's rows times its columns, transposed."""
    maps = ()
    for head in tl.static_range(heads):
        maps += (dot(rows[head], tl.trans(columns[head]), exact=True),)
    return maps


@triton.jit
def mix(maps, matrix, factor, heads: tl.constexpr, back: tl.constexpr):
    """New map g is factor times the sum over old maps h of matrix[h, g] · map h.

    Args:
        maps: A tile of each.
        matrix: (heads, heads), in float32.
        factor: Any number.
        heads: Number of heads.
        back: Takes the transpose, as gradients do.
    """
    # From one new map to the next, and from one old map to the next.
    along: tl.constexpr = heads if back else 1
    across: tl.constexpr = 1 if back else heads
    mixed = ()
    for new in tl.static_range(heads):
        total = maps[0] * (tl.load(matrix + new * along) * factor)
        for old in tl.static_range(1, heads):
            total += maps[old] * (tl.load(matrix + new * along + old * across) * factor)
        mixed += (total,)
    return mixed


@triton.jit
def mixed_scores(
    products,
    before,
    query,
    key,
    n: tl.constexpr,
    heads: tl.constexpr,
    masked: tl.constexpr,
    padded: tl.constexpr,
):
    """Scores in base 2 after the first mixing: −∞ on the diagonal and for keys beyond n."""
    mixed = mix(products, before, LOG2E, heads, False)
    scores = ()
    for head in tl.static_range(heads):
        score = mixed[head]
        if masked:
            score = tl.where(query == key, float("-inf"), score)
        if padded:
            score = tl.where(key < n, score, float("-inf"))
        scores += (score,)
    return scores


@triton.jit
def lots_of(seeds, image, threshold, upscale, heads: tl.constexpr, dropped: tl.constexpr):
    """What dropout of each map of an image needs."""
    lots = ()
    for head in tl.static_range(heads):
        lots += (lot_of(seeds, image * heads + head, threshold, upscale, dropped),)
    return lots


@triton.jit
def drop(maps, lots, query, key, n: tl.constexpr, heads: tl.constexpr, dropped: tl.constexpr):
    """Zeros where weights are dropped; the rest is scaled up."""
    left = maps
    if dropped:
        left = ()
        for head in tl.static_range(heads):
            keep = kept(lots[head], query, key, n)
            left += (tl.where(keep, maps[head] * lots[head][3], 0.0),)
    return left


@triton.jit
def weights_of(
    products,
    before,
    lse,
    query,
    key,
    n: tl.constexpr,
    heads: tl.constexpr,
    masked: tl.constexpr,
    padded: tl.constexpr,
):
    """Each softmax's weights, between the two mixings."""
    scores = mixed_scores(products, before, query, key, n, heads, masked, padded)
    weights = ()
    for head in tl.static_range(heads):
        weights += (tl.exp2((scores[head] - lse[head]).to(tl.float32)),)
    return weights


@triton.jit
def accumulated(sums, rows, columns, heads: tl.constexpr):
    """Adds each head's rows, as narrow as its columns, times these to its sum."""
    more = ()
    for head in tl.static_range(heads):
        more += (dot(narrow(rows[head], columns[head].dtype), columns[head], sums[head]),)
    return more
