"""Splits that the source does not have: stratified, seeded, and a function of the images alone.

An image's split follows from the seed and its own bytes, not from its name or its position in a
list. So a split is the same on every machine, hardly changes when images are added, and does not
separate identical images, nor nearly identical ones unless a class consists of little else.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int64, UInt8, UInt64

from smallvit.data.sources import SPLITS

SHARES = {"test": 0.2, "val": 0.1}
"""What is held out for splits that a source does not have."""


def assign(
    labels: Int64[np.ndarray, " N"],
    digests: UInt8[np.ndarray, "N digest"],
    families: UInt8[np.ndarray, "N digest"],
    published: Sequence[str],
    shares: Mapping[str, float | int | None],
    seed: int,
) -> tuple[dict[str, Int64[np.ndarray, " _"]], dict[str, float], list[str]]:
    """Gives every image its split.

    Args:
        labels: The class of each image.
        digests: A hash of each image.
        families: A hash that nearly identical images share.
        published: The split of each image in the source; "" means training, from which others are
            held out.
        shares: What to hold out of the training images for each split the source does not have;
            None for the default, 0 to have no such split even if the source has it.
        seed: Seed of the choice.

    Returns:
        The images of each split, the shares of the splits that were held out, and notes.
    """
    splits = np.array([name or "train" for name in published])
    training = int((splits == "train").sum())
    held_out: dict[str, float] = {}
    notes: list[str] = []
    for name, default in SHARES.items():
        members, share = splits == name, shares[name]
        if members.any():
            if share:
                raise ValueError(
                    f"the source has its own {name} split of {members.sum():,} images, and {name} "
                    f"is {share}: leave {name} out, or give 0 to have no such split"
                )
            if share == 0:
                notes.append(
                    f"the source's own {name} split, {members.sum():,} images, is left out"
                )
                splits[members] = ""
        elif training and share != 0:
            share = default if share is None else float(share)
            left = np.flatnonzero(splits == "train")
            # A share is one of all training images, also of those that are already held out.
            fraction = share * training / len(left)
            if share < 1 <= fraction:
                raise ValueError(
                    f"{name} is {share:g} of {training:,} images, of which {len(left):,} are left "
                    f"beside the other splits: something must be left to train on, so choose less "
                    "for one of them (--val, --test)"
                )
            chosen = hold_out(
                labels[left],
                (families[left], digests[left]),
                fraction=fraction,
                seed=seed,
                split=name,
            )
            splits[left[chosen]] = name
            held_out[name] = share
    indices = {name: np.flatnonzero(splits == name) for name in SPLITS}
    return {name: each for name, each in indices.items() if len(each)}, held_out, notes


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
            cannot be divided well by the first grouping, the next is used.
        fraction: How much to hold out.
        seed: Seed of the choice.
        split: Its name; splits of different names choose differently with the same seed.
    """
    if not 0 <= fraction < 1:
        raise ValueError(
            f"{split} would hold out {fraction:.0%} of the images left for training: allowed is a "
            "share from 0 up to below 1"
        )
    chosen = np.zeros(len(labels), bool)
    keys = _keys(seed, split, groupings)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        wanted = max(1, int(len(members) * fraction + 0.5))
        for grouping in keys:
            order = members[np.argsort(grouping[members], kind="stable")]
            # The nearest cut, of two the larger, that separates no group and leaves one.
            cuts = np.append(np.flatnonzero(np.diff(grouping[order]))[::-1] + 1, 0)
            cut = cuts[np.abs(cuts - wanted).argmin()]
            if 0 < cut <= 2 * wanted:
                break
        chosen[order[:cut]] = True
    # Equal images may have several labels, and stay together all the same: in training.
    kept = np.unique(keys[-1][~chosen])
    return chosen & ~np.isin(keys[-1], kept)


def keep(
    labels: Int64[np.ndarray, " N"],
    groupings: Sequence[UInt8[np.ndarray, "N digest"]],
    *,
    fraction: float,
    seed: int,
) -> Bool[np.ndarray, " N"]:
    """Chooses some of the images to go on with: what a larger fraction keeps holds them all.

    Every class keeps `fraction` of its images, as nearly as its groups allow, and at least one.

    Args:
        labels: The class of each image.
        groupings: As in `hold_out`.
        fraction: How much to keep, above 0 and up to 1.
        seed: Seed of the choice.
    """
    kept = np.zeros(len(labels), bool)
    keys = _keys(seed, "keep", groupings)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        # One grouping for all fractions, or the smaller choice would not lie in the larger one.
        divided = [len(np.unique(grouping[members])) for grouping in keys]
        grouping = keys[0] if 4 * divided[0] >= len(members) else keys[-1]
        order = members[np.argsort(grouping[members], kind="stable")]
        ends = np.append(np.flatnonzero(np.diff(grouping[order])) + 1, len(order))
        kept[order[: ends[np.abs(ends - fraction * len(order)).argmin()]]] = True
    return kept


def deal(
    labels: Int64[np.ndarray, " N"],
    groupings: Sequence[UInt8[np.ndarray, "N digest"]],
    *,
    folds: int,
    seed: int,
) -> Int64[np.ndarray, " N"]:
    """The fold of each image: every class is spread over all folds as evenly as it divides.

    Args:
        groupings: As in `hold_out`; the next is used where the first leaves a fold without images
            of a class that has enough, or with twice as many as it should have.
    """
    if not 2 <= folds <= len(labels):
        raise ValueError(f"folds is {folds}: allowed is 2 up to the {len(labels):,} images")
    assigned = np.zeros(len(labels), np.int64)
    keys = _keys(seed, "fold", groupings)
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
        # Classes begin with different folds, so that no fold gets the remainders of all classes.
        assigned[order] = (fold + label) % folds
    # Equal images may have several labels: all of them go where those of the first label go.
    order = np.lexsort((labels, keys[-1]))
    _, first, group = np.unique(keys[-1][order], return_index=True, return_inverse=True)
    assigned[order] = assigned[order][first][group]
    return assigned


def _keys(
    seed: int, split: str, groupings: Sequence[UInt8[np.ndarray, "N digest"]]
) -> list[UInt64[np.ndarray, " N"]]:
    """For each grouping a random number per image, the same for those with the same hash."""
    start, keys = f"{seed} {split} ".encode(), []
    for digests in groupings:
        hashes = (hashlib.blake2b(start + row.tobytes(), digest_size=8) for row in digests)
        drawn = np.frombuffer(b"".join(each.digest() for each in hashes), ">u8")
        keys.append(drawn.astype(np.uint64))
    return keys
