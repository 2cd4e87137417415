"""Images that look alike: a perceptual hash, near duplicates, and whether flips change classes.

Everything works on the small grey thumbnails of a survey.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt8, UInt64

BITS = 7
"""Images whose hashes of 64 bits differ in more bits than this are different."""

_RARE = 20  # how much closer than its fifth neighbour a typical image's near duplicate must be
_CLOSEST, _WIDEST = 0.002, 0.02  # distances, one minus the correlation
_FLAT = 2.0
_VOTERS = 1000
_NEIGHBOURS = 5
_PAIRS = 2**15  # that are compared at a time
_BLOCK = 2**17  # pairs whose hashes are
_MANY = 100_000  # pairs, after which only those count that connect what was not connected


def perceptual_hash(thumbs: UInt8[np.ndarray, "N T T"]) -> UInt64[np.ndarray, " N"]:
    """Signs of the 64 lowest cosine frequencies against their median."""
    side = thumbs.shape[1]
    frequency, pixel = np.arange(8)[:, None], np.arange(side)[None]
    basis = np.cos(np.pi * (2 * pixel + 1) * frequency / (2 * side))
    waves = (basis @ thumbs.astype(np.float64) @ basis.T).reshape(len(thumbs), 64)
    bits = waves > np.median(waves[:, 1:], axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(np.uint64).reshape(len(thumbs))


def near_duplicates(
    thumbs: UInt8[np.ndarray, "N T T"], *, among: Int64[np.ndarray, " n"] | None = None
) -> Int64[np.ndarray, "M 2"]:
    """Pairs of images that are nearly the same: resaved, resized or brightened, say.

    Their hashes differ in at most `BITS` bits and their thumbnails correlate. How much depends on
    the dataset: where all images look alike, as digits do, duplicates must be far closer than
    neighbours usually are. Where there are very many, as from a camera that stands still, only
    those count in the end that connect images which others do not.

    Args:
        thumbs: Of all images.
        among: Indices of those that are paired; all by default.
    """
    varied = np.flatnonzero(thumbs.std(axis=(1, 2)) > _FLAT)
    if len(varied) < 2:
        return np.empty((0, 2), np.int64)
    vectors = _normalised(thumbs[varied])
    sample = vectors[np.random.default_rng(0).permutation(len(vectors))[:1000]]
    likeness = np.sort(sample @ sample.T, axis=1)[:, ::-1]
    fifth = np.median(1 - likeness[:, min(_NEIGHBOURS, len(sample) - 1)])
    limit = 1 - float(np.clip(fifth / _RARE, _CLOSEST, _WIDEST))
    if among is not None:
        chosen = np.isin(varied, among)
        varied, vectors = varied[chosen], vectors[chosen]
    codes = perceptual_hash(thumbs[varied])
    parts, found, joined = [np.empty((0, 2), np.int64)], 0, 0
    groups = np.arange(len(codes))  # of images that are connected, once there are many
    # Hashes that differ in 7 bits share at least one of their 8 bytes.
    for byte, column in enumerate(codes.view(np.uint8).reshape(len(codes), 8).T):
        order = np.argsort(column, kind="stable")
        buckets = np.split(order, np.flatnonzero(np.diff(column[order])) + 1)
        for bucket in buckets:
            for part in _alike(codes, vectors, limit, byte, bucket, groups):
                parts.append(part)
                found += len(part)
                if found > _MANY:
                    _join(groups, np.concatenate(parts[joined:]))
                    joined = len(parts)
    pairs = np.concatenate(parts)
    ordered: np.ndarray = varied[pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]]
    return ordered


def families(
    digests: UInt8[np.ndarray, "N digest"], thumbs: UInt8[np.ndarray, "N T T"]
) -> UInt8[np.ndarray, "N digest"]:
    """One digest per image, the same for all images that near duplicates connect.

    It is the smallest digest of the connected images; without near duplicates, the image's own.
    """
    rows = [digest.tobytes() for digest in digests]
    first = {row: index for index, row in reversed(list(enumerate(rows)))}  # one of equal images
    parents = np.arange(len(digests))

    def root(index: int) -> int:
        while parents[index] != index:
            parents[index] = parents[parents[index]]  # so that ways stay short
            index = int(parents[index])
        return index

    among = np.array(list(first.values()), np.int64)
    for one, other in near_duplicates(thumbs, among=among).tolist():
        a, b = root(one), root(other)
        smaller, larger = (a, b) if rows[a] < rows[b] else (b, a)
        parents[larger] = smaller
    return digests[[root(first[row]) for row in rows]]


def flip_loss(thumbs: UInt8[np.ndarray, "N T T"], labels: Int64[np.ndarray, " N"]) -> float:
    """How many more images a vote of neighbours takes for another class when they are mirrored.

    As a fraction of all images. Three of the five nearest neighbours must agree, or the vote does
    not count: mirrored photos have no clear neighbours, mirrored digits do. A loss within two
    standard errors of the changed votes could be chance, and is 0.
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


def _alike(
    codes: UInt64[np.ndarray, " N"],
    vectors: Float32[np.ndarray, "N TT"],
    limit: float,
    byte: int,
    members: Int64[np.ndarray, " n"],
    groups: Int64[np.ndarray, " N"],
) -> Iterator[Int64[np.ndarray, "m 2"]]:
    """The pairs among images that share a byte of their hash, each in the first that it shares.

    The smaller index is first. Pairs within a group are left out.
    """
    size = min(256, max(1, _BLOCK // len(members)))
    for start in range(0, len(members), size):
        rows, columns = members[start : start + size], members[start:]
        if (groups[columns] == groups[rows[0]]).all():
            return
        apart = codes[rows, None] ^ codes[None, columns]
        new = groups[rows, None] != groups[None, columns]
        i, j = np.nonzero(new & (np.bitwise_count(apart) <= BITS))
        i, j = i[i < j], j[i < j]
        shared = apart[i, j][:, None].view(np.uint8) == 0
        first = shared.argmax(axis=1) == byte
        one, other = rows[i[first]], columns[j[first]]
        same = np.zeros(len(one), bool)
        for at in range(0, len(one), _PAIRS):
            part = slice(at, at + _PAIRS)
            likeness = np.einsum("nd,nd->n", vectors[one[part]], vectors[other[part]])
            same[part] = likeness >= limit
        yield np.stack([one[same], other[same]], axis=1)


def _join(groups: Int64[np.ndarray, " N"], pairs: Int64[np.ndarray, "m 2"]) -> None:
    """Gives all images that pairs connect one number."""
    while len(ends := groups[pairs][np.ptp(groups[pairs], axis=1) > 0]):
        names = np.arange(len(groups))
        np.minimum.at(names, ends.max(axis=1), ends.min(axis=1))
        groups[:] = names[groups]


def _mistaken(
    queries: Float32[np.ndarray, "N TT"],
    known: Float32[np.ndarray, "N TT"],
    labels: Int64[np.ndarray, " N"],
) -> Bool[np.ndarray, " N"]:
    """Which images a clear majority of their neighbours, without themselves, misclassifies."""
    likeness = queries @ known.T
    np.fill_diagonal(likeness, -np.inf)
    nearest = np.argpartition(-likeness, _NEIGHBOURS - 1, axis=1)[:, :_NEIGHBOURS]
    votes = np.sort(labels[nearest], axis=1)
    middle = _NEIGHBOURS // 2
    winner = votes[:, middle]  # a majority includes the middle of the sorted votes
    clear = (votes == winner[:, None]).sum(axis=1) > middle
    return np.asarray(clear & (winner != labels))
