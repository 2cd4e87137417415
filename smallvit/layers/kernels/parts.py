"""What the attention programs share: addresses, scores and the dropout mask.

Scores are kept in base 2, because exp2 is one instruction: each is multiplied with log2(e) on
the way. Query and key places come as arrays that broadcast against each other, so the same code
serves queries × keys and keys × queries.

Names: a `group` is what attends within itself, an image or a window of one; a `map` is the
scores of one group and head; `n` counts the tokens of a group; `layout` holds the rows and columns
of an image's tokens, those of a window, and the shift.
"""
# Triton reads the source of these functions: their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

import triton
import triton.language as tl

#: Whether Python interprets the programs, as on machines without a GPU.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LOG2E = tl.constexpr(1.4426950408889634)
#: What the scores between tokens of a rolled window that are no neighbours get, in base 2.
APART = tl.constexpr(-100.0 * 1.4426950408889634)


@triton.jit
def row_of(local, window, layout: tl.constexpr):
    """The row of a window's place in the rolled image."""
    return window // (layout[1] // layout[3]) * layout[2] + local // layout[3]


@triton.jit
def column_of(local, window, layout: tl.constexpr):
    """The column of a window's place in the rolled image."""
    return window % (layout[1] // layout[3]) * layout[3] + local % layout[3]


@triton.jit
def token_of(local, window, layout: tl.constexpr):
    """Where a place of a window lies among the tokens of its image."""
    token = local
    if layout[0] != layout[2] or layout[1] != layout[3]:
        row = (row_of(local, window, layout) + layout[4]) % layout[0]
        token = row * layout[1] + (column_of(local, window, layout) + layout[5]) % layout[1]
    return token


@triton.jit
def band_of(local, window, layout: tl.constexpr):
    """Which part of the rolled image a place lies in; different parts are no neighbours."""
    band = local * 0
    if layout[4] > 0:
        row = row_of(local, window, layout)
        band += 3 * (row >= layout[0] - layout[2]).to(tl.int32)
        band += 3 * (row >= layout[0] - layout[4]).to(tl.int32)
    if layout[5] > 0:
        column = column_of(local, window, layout)
        band += (column >= layout[1] - layout[3]).to(tl.int32)
        band += (column >= layout[1] - layout[5]).to(tl.int32)
    return band


@triton.jit
def read(
    base,
    places,
    window,
    stride,
    n: tl.constexpr,
    layout: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    padded: tl.constexpr,
):
    """One head of some tokens, (places, block); zeros beyond n and beyond the head's width."""
    column = tl.arange(0, block)
    address = base + token_of(places, window, layout)[:, None] * stride + column[None, :]
    if padded:
        tile = tl.load(address, (places[:, None] < n) & (column[None, :] < width), 0.0)
    elif block > width:
        tile = tl.load(address, column[None, :] < width, 0.0)
    else:
        tile = tl.load(address)
    return tile


@triton.jit
def write(
    base,
    value,
    places,
    window,
    stride,
    n: tl.constexpr,
    layout: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    """Writes a tile to where `read` reads it."""
    column = tl.arange(0, block)
    address = base + token_of(places, window, layout)[:, None] * stride + column[None, :]
    inside = (places[:, None] < n) & (column[None, :] < width)
    tl.store(address, narrow(value, base.dtype.element_ty), inside)


@triton.jit
def dot(a, b, total=None, exact: tl.constexpr = False):
    """Product of two matrices, added to a third; sums in float32.

    Float32 goes through the matrix units as three products of tf32, which depend in the last bits
    on which matrix comes first. What must be the same forward and backward is `exact` instead.
    """
    if INTERPRETED:
        # NumPy has no bfloat16, and its float32 sums depend on the CPU and on which matrix comes
        # first; scores must be the same forward and backward.
        product = tl.dot(a.to(tl.float64), b.to(tl.float64)).to(tl.float32)
        if total is not None:
            product += total
    elif exact and a.dtype == tl.float32:
        product = tl.dot(a, b, total, input_precision="ieee")
    else:
        product = tl.dot(a, b, total, input_precision="tf32x3")
    return product


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """A float32 array in another precision, rounded to the nearest."""
    if INTERPRETED and dtype == tl.bfloat16:  # the interpreter would cut
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = bits.to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def add_to(part, value, query, key, again, n: tl.constexpr):
    """Adds a tile to a program's own (n, n) numbers; the first time it only writes them."""
    inside = (query < n) & (key < n)
    address = part + query * n + key
    before = tl.load(address, inside & again, 0.0)
    tl.store(address, before + value, inside)


@triton.jit
def scores_of(
    products,
    query,
    key,
    place,
    n: tl.constexpr,
    layout: tl.constexpr,
    kind: tl.constexpr,
    padded: tl.constexpr,
):
    """Scores in base 2 from q kᵀ: temperature, bias, bands, diagonal and padding.

    Args:
        products: The tile q kᵀ, or its transpose.
        query: Places of the queries, shaped to broadcast over the tile; those beyond n get
            numbers that harm nothing.
        key: Places of the keys, likewise; those beyond n get −∞.
        place: The window's number in its image, the head's (n, n) bias, and what the products
            are multiplied with, log2(e) included.
        n: Tokens of a group.
        layout: Image, window and shift.
        kind: Whether the diagonal is hidden, and whether there is a bias.
        padded: Some of the keys may lie beyond n.
    """
    scores = products * place[2]
    if kind[1]:
        inside = (query < n) & (key < n)
        scores += tl.load(place[1] + query * n + key, inside, 0.0).to(tl.float32) * LOG2E
    if layout[4] > 0 or layout[5] > 0:
        same = band_of(query, place[0], layout) == band_of(key, place[0], layout)
        scores += tl.where(same, 0.0, APART)
    if kind[0]:
        scores = tl.where(query == key, float("-inf"), scores)
    if padded:
        scores = tl.where(key < n, scores, float("-inf"))
    return scores


@triton.jit
def lot_of(seeds, number, threshold, upscale, dropped: tl.constexpr):
    """What dropout of a map needs: two random words from Philox, threshold and scale."""
    lot = (threshold, threshold, threshold, upscale)
    if dropped:
        first, second, _, _ = tl.philox(tl.load(seeds), number, 0, 0, 0)
        lot = (first, second, threshold, upscale)
    return lot


@triton.jit
def kept(lot, query, key, n: tl.constexpr):
    """The dropout mask of a tile: whether each weight's hash reaches the threshold.

    The mask depends on the map's words and the places in it, never on the blocks a launch chose.
    Philox for each weight would cost more than all else here; this hash is a quarter of it.

    Args:
        lot: Where the map's counter starts; what is stirred in half way, so that maps whose
            counters overlap differ; the threshold, from −2³¹, which keeps all, to 2³¹.
        query: Places of the queries, shaped to broadcast over the tile.
        key: Places of the keys, likewise.
        n: Tokens of a group.
    """
    x = (query * n + key).to(tl.uint32) * 0x9E3779B9 + lot[0]
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15) ^ lot[1]) * 0x846CA68B
    return x.to(tl.int32, bitcast=True) >= lot[2]
