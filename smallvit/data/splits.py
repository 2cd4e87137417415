"""Splits that the source does not have: stratified, seeded, and a function of the images alone.

An image's place follows from the seed and its own bytes, not from its name or its place in a
list. So a split is the same on every machine, hardly changes when images are added, and does not
separate identical images, nor nearly identical ones unless a class consists of little else.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int64, UInt8, UInt64

from smallvit.data.samples import SPLITS

SHARES = {"test": 0.2, "val": 0.1}
"""What is held out for splits that a source does not have."""


def assign(
    labels: Int64[np.ndarray, " N"],
    digests: UInt8[np.ndarray, "N digest"],
    families: UInt8[np.ndarray, "N digest"],
    given: Sequence[str],
    shares: Mapping[str, float | int | None],
    seed: int,
) -> tuple[dict[str, Int64[np.ndarray, " _"]], dict[str, float], list[str]]:
    """Gives every image its split.

    Args:
        labels: The class of each image.
        digests: A hash of each image.
        families: The same for images that are nearly the same.
        given: The split the source gives it; "" means training, from which others are made.
        shares: What to hold out of the training images for each split the source does not have;
            None for the usual, 0 to do without the split even if the source has it.
        seed: Of the choice.

    Returns:
        The images of each split, the shares of the splits that were made, and notes.
    """
    place = np.array([name or "train" for name in given])
    training = int((place == "train").sum())
    made: dict[str, float] = {}
    notes: list[str] = []
    for name, usual in SHARES.items():
        own, share = place == name, shares[name]
        if own.any():
            if share:
                raise ValueError(
                    f"the source has its own {name} split of {own.sum():,} images, and {name} "
                    f"is {share}: leave it out, or give 0 to do without that split"
                )
            if share == 0:
                notes.append(f"the source has its own {name} split, not used as {name} is 0")
                place[own] = ""
        elif training and share != 0:
            share = usual if share is None else float(share)
            left = np.flatnonzero(place == "train")
            # A share is one of all training images, those held out before it included.
            fraction = share * training / len(left)
            chosen = hold_out(
                labels[left],
                (families[left], digests[left]),
                fraction=fraction,
                seed=seed,
                split=name,
            )
            place[left[chosen]] = name
            made[name] = share
    found = {name: np.flatnonzero(place == name) for name in SPLITS}
    return {name: indices for name, indices in found.items() if len(indices)}, made, notes


def hold_out(
    labels: Int64[np.ndarray, " N"],
    groupings: Sequence[UInt8[np.ndarray, "N digest"]],
    *,
    fraction: float,
    seed: int,
    split: str,
) -> Bool[np.ndarray, " N"]:
    """Chooses the images of a new split.

    Every class gives `fraction` of its images, rounded, but at least one if it has two different
    ones, and never all of them.

    Args:
        labels: The class of each image.
        groupings: Hashes of the images; those with the same hash stay together. Where a class
            cannot be divided well by the first grouping the next is taken.
        fraction: How much to hold out.
        seed: Another seed, another choice.
        split: Its name; two splits with one seed choose differently.
    """
    if not 0 <= fraction < 1:
        raise ValueError(
            f"a {split} split of {fraction:.0%} of the images left for training is asked for: "
            "allowed is a share from 0 up to below 1, and something must be left to train on"
        )
    chosen = np.zeros(len(labels), bool)
    keys = [np.array([_key(seed, split, row.tobytes()) for row in g], np.uint64) for g in groupings]
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        wanted = max(1, int(len(members) * fraction + 0.5))
        for grouping in keys:
            order = members[np.argsort(grouping[members], kind="stable")]
            cut = _whole(grouping[order], wanted)
            if 0 < cut <= 2 * wanted:
                break
        chosen[order[:cut]] = True
    return chosen


def deal(
    labels: Int64[np.ndarray, " N"],
    groupings: Sequence[UInt8[np.ndarray, "N digest"]],
    *,
    folds: int,
    seed: int,
) -> Int64[np.ndarray, " N"]:
    """The fold of each image: every class is spread over all folds as evenly as it divides.

    Args:
        groupings: As in `hold_out`; the next is taken where the first leaves a fold of a class
            empty that need not be, or twice as large as it should be.
    """
    if not 2 <= folds <= len(labels):
        raise ValueError(f"folds is {folds}: allowed is 2 up to the {len(labels):,} images")
    places = np.zeros(len(labels), np.int64)
    keys = [
        np.array([_key(seed, "fold", row.tobytes()) for row in g], np.uint64) for g in groupings
    ]
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        for grouping in keys:
            order = members[np.argsort(grouping[members], kind="stable")]
            ordered = grouping[order]
            first = np.searchsorted(ordered, ordered)  # a group goes where its first member goes
            fold = first * folds // len(order)
            sizes = np.bincount(fold, minlength=folds)
            if sizes.max() <= max(1, 2 * len(order) / folds) and (sizes > 0).sum() >= min(
                folds, len(order)
            ):
                break
        # Classes begin with different folds, so that none gets what is left over of all.
        places[order] = (fold + label) % folds
    return places


def _whole(keys: UInt64[np.ndarray, " n"], wanted: int) -> int:
    """The cut nearest to `wanted` that parts no equal neighbours and leaves some behind it."""
    cuts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist()]
    return int(min(cuts, key=lambda cut: (abs(cut - wanted), -cut)))


def _key(seed: int, split: str, digest: bytes) -> int:
    text = f"{seed} {split} ".encode() + digest
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
