"""`load_data`: from a specification to splits of images."""

import os
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from smallvit.arguments import Seed, Width, checked
from smallvit.data.dataset import Dataset
from smallvit.data.folders import UNLABELLED
from smallvit.data.samples import Samples, Source, class_order
from smallvit.data.sources import find
from smallvit.data.splits import assign
from smallvit.data.survey import survey_array, survey_files
from smallvit.sizes import Fit, Size, as_size
from smallvit.text import nearest, shown, some


@checked
def load_data(
    spec: str | os.PathLike[str],
    *,
    image_size: int | Size | None = None,
    fit: Fit = "letterbox",
    channels: Width | None = None,
    classes: Sequence[str] | None = None,
    val: float | int | None = None,
    test: float | int | None = None,
    seed: Seed = 0,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
    unlabelled: bool = False,
    progress: bool = False,
) -> Dataset:
    """Finds images and labels, whatever form they have.

    Args:
        spec: A folder of images, a table of paths, an .npz file or the name of a public dataset;
            `smallvit.data.sources` lists the forms, `smallvit.data.named` the names.
        image_size: One number, or (height, width). None takes the size that all images share;
            if they have several, `Dataset.sized` chooses one later.
        fit: How other shapes come to that size: the whole image with bars (letterbox), the whole
            image squeezed (stretch), or its middle (crop).
        channels: 1 or 3 to have all images grey or coloured; None follows the images.
        classes: The only classes allowed, in this order: those of a trained model.
        val: Share of the training images held out for validation where the source has no such
            split; 0 for no validation split, even if the source has one. None means a tenth.
        test: The same for the test split; None means a fifth.
        seed: Seed of the splits that are held out.
        root: The folder of named datasets; see `smallvit.data.named.default_root`.
        download: Whether a named dataset may be downloaded.
        unlabelled: Whether a folder without class folders is welcome: its images are of one class,
            and no test split is made of them.
        progress: Whether to show a bar.

    Raises:
        ValueError: The source does not exist, is not laid out as expected, or has unknown labels.
    """
    size = None if image_size is None else as_size(image_size)
    source = find(spec, root=root, download=download, unlabelled=unlabelled)
    if unlabelled and source.classes == (UNLABELLED,) and test is None:
        test = 0.0
    names = _classes(source, classes, spec)
    number = {name: i for i, name in enumerate(names)}
    survey = (
        survey_files(source.images, progress=progress)
        if isinstance(source.images, tuple)
        else survey_array(source.images)
    )
    pool = Samples(
        images=source.images,
        names=tuple(source.names),
        labels=np.array([number[label] for label in source.labels], np.int64),
        survey=survey,
    )
    together, digests = pool.groupings(source.official)
    shares = {"test": test, "val": val}
    indices, held_out, notes = assign(pool.labels, digests, together, source.splits, shares, seed)
    return Dataset(
        source=os.fspath(spec),
        classes=names,
        splits=MappingProxyType({name: pool.select(each) for name, each in indices.items()}),
        # Colour where grey and colour are mixed, or where nothing can be read.
        channels=channels or int(survey.channels.max(initial=0)) or 3,
        chosen_size=size,
        fit=fit,
        seed=seed,
        held_out=MappingProxyType(held_out),
        named=source.named,
        official=source.official,
        notes=(*source.notes, *notes),
    )


def _classes(
    source: Source, allowed: Sequence[str] | None, spec: str | os.PathLike[str]
) -> tuple[str, ...]:
    """Class names in order; refuses labels that are none of them."""
    names = tuple(allowed or source.classes or class_order(source.labels))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{shown(spec)} has several classes called {some(twice)}: rename them")
    unknown = sorted(set(source.labels) - set(names))
    if unknown:
        raise ValueError(
            f"{shown(spec)} has labels that are none of the {len(names)} classes "
            f"({some(names, 6)}): {some(unknown)}{nearest(unknown[0], names)}"
        )
    return names
