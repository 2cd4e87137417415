"""Images that look alike: a perceptual hash, near duplicates, and what a mirror does to classes.

Everything works on the small grey thumbnails of a survey.
"""

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt8, UInt64

BITS = 7
"""Two hashes of 64 bits that differ in more are different images."""

_RARE = 20  # how much closer than its fifth neighbour a typical image's near duplicate must be
_CLOSEST, _WIDEST = 0.002, 0.02
_FLAT = 2.0
_VOTERS = 1000
_NEIGHBOURS = 5


def perceptual_hash(thumbs: UInt8[np.ndarray, "N T T"]) -> UInt64[np.ndarray, " N"]:
    """Signs of the 64 lowest cosine frequencies against their median."""
    side = thumbs.shape[1]
    frequency, place = np.arange(8)[:, None], np.arange(side)[None]
    basis = np.cos(np.pi * (2 * place + 1) * frequency / (2 * side))
    waves = (basis @ thumbs.astype(np.float64) @ basis.T).reshape(len(thumbs), 64)
    bits = waves > np.median(waves[:, 1:], axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(np.uint64).reshape(len(thumbs))


def near_duplicates(thumbs: UInt8[np.ndarray, "N T T"]) -> Int64[np.ndarray, "M 2"]:
    """Pairs of images that are nearly the same, resaved, resized or brightened, say.

    Their hashes differ in at most `BITS` bits and their thumbnails correlate. How much they have
    to depends on the set: where all images look alike, as digits do, only what is far closer
    than neighbours usually are is a duplicate.
    """
    seen = np.flatnonzero(thumbs.std(axis=(1, 2)) > _FLAT)
    if len(seen) < 2:
        return np.empty((0, 2), np.int64)
    vectors = _normalised(thumbs[seen])
    codes, limit = perceptual_hash(thumbs[seen]), 1 - _reach(vectors)
    pairs = [_alike(codes, vectors, limit, *bucket) for bucket in _buckets(codes)]
    found = np.concatenate([np.empty((0, 2), np.int64), *pairs])
    ordered: np.ndarray = seen[found[np.lexsort((found[:, 1], found[:, 0]))]]
    return ordered


def families(
    digests: UInt8[np.ndarray, "N digest"], thumbs: UInt8[np.ndarray, "N T T"]
) -> UInt8[np.ndarray, "N digest"]:
    """The digest of the first of each image's near duplicates, theirs included; its own if none.

    Two images with the same result belong together.
    """
    above = np.arange(len(digests))

    def head(index: int) -> int:
        while above[index] != index:
            index = int(above[index])
        return index

    for one, other in near_duplicates(thumbs).tolist():
        a, b = head(one), head(other)
        first, second = (a, b) if digests[a].tobytes() < digests[b].tobytes() else (b, a)
        above[second] = first
    return digests[[head(index) for index in range(len(digests))]]


def flip_loss(thumbs: UInt8[np.ndarray, "N T T"], labels: Int64[np.ndarray, " N"]) -> float:
    """How many more images a vote of neighbours takes for another class when they are mirrored.

    A share of all images. Three of the five nearest must agree, or the vote is void: mirrored
    photos have no clear neighbours, mirrored digits do. 0 where the loss could be chance, which is
    less than two standard errors of the changed votes.
    """
    chosen = np.random.default_rng(0).permutation(len(thumbs))[:_VOTERS]
    thumbs, labels = thumbs[chosen], labels[chosen]
    if len(labels) <= _NEIGHBOURS:
        return 0.0
    known = _normalised(thumbs)
    plain = _mistaken(known, known, labels)
    mirrored = _mistaken(_normalised(thumbs[:, :, ::-1]), known, labels)
    lost, changed = int(mirrored.sum()) - int(plain.sum()), int((plain != mirrored).sum())
    return lost / len(labels) if lost > 2 * changed**0.5 else 0.0


def _normalised(thumbs: UInt8[np.ndarray, "N T T"]) -> Float32[np.ndarray, "N TT"]:
    """Vectors whose inner product is the correlation."""
    flat = thumbs.reshape(len(thumbs), -1).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
    return flat


def _reach(vectors: Float32[np.ndarray, "N TT"]) -> float:
    """The distance, one minus the correlation, below which two images are duplicates."""
    sample = vectors[np.random.default_rng(0).permutation(len(vectors))[:1000]]
    likeness = np.sort(sample @ sample.T, axis=1)[:, ::-1]
    fifth = np.median(1 - likeness[:, min(_NEIGHBOURS, len(sample) - 1)])
    return float(np.clip(fifth / _RARE, _CLOSEST, _WIDEST))


def _buckets(codes: UInt64[np.ndarray, " N"]) -> list[tuple[int, Int64[np.ndarray, " n"]]]:
    """Groups that share a byte, and which: hashes that differ in 7 bits share one of their 8."""
    found = []
    for place, column in enumerate(codes.view(np.uint8).reshape(len(codes), 8).T):
        order = np.argsort(column, kind="stable")
        cuts = np.flatnonzero(np.diff(column[order])) + 1
        found += [(place, members) for members in np.split(order, cuts) if len(members) > 1]
    return found


def _alike(
    codes: UInt64[np.ndarray, " N"],
    vectors: Float32[np.ndarray, "N TT"],
    limit: float,
    place: int,
    members: Int64[np.ndarray, " n"],
) -> Int64[np.ndarray, "m 2"]:
    """The pairs of a bucket, smaller index first; each pair only in the first byte it shares."""
    found = []
    for start in range(0, len(members), 256):
        rows, columns = members[start : start + 256], members[start:]
        apart = codes[rows, None] ^ codes[None, columns]
        i, j = np.nonzero(np.bitwise_count(apart) <= BITS)
        i, j = i[i < j], j[i < j]
        shared = apart[i, j][:, None].view(np.uint8) == 0
        first = shared.argmax(axis=1) == place
        one, other = rows[i[first]], columns[j[first]]
        same = np.einsum("nd,nd->n", vectors[one], vectors[other]) >= limit
        found.append(np.stack([one[same], other[same]], axis=1))
    return np.concatenate(found)


def _mistaken(
    asked: Float32[np.ndarray, "N TT"],
    known: Float32[np.ndarray, "N TT"],
    labels: Int64[np.ndarray, " N"],
) -> Bool[np.ndarray, " N"]:
    """Which images most of their neighbours, themselves left out, take for another class."""
    likeness = asked @ known.T
    np.fill_diagonal(likeness, -np.inf)
    nearest = np.argpartition(-likeness, _NEIGHBOURS - 1, axis=1)[:, :_NEIGHBOURS]
    votes = np.sort(labels[nearest], axis=1)
    middle = _NEIGHBOURS // 2
    elected = votes[:, middle]  # a majority holds the middle of the sorted votes
    clear = (votes == elected[:, None]).sum(axis=1) > middle
    return np.asarray(clear & (elected != labels))
