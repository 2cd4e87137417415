"""Folders of class folders, with or without train/ val/ test/ above them."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from smallvit.data.images import SUFFIXES
from smallvit.data.samples import Found, class_order, split_name
from smallvit.text import counted, shown, some

_LAYOUT = (
    "expected a folder for each class with its images inside, as in DATA/cats/1.jpg and "
    "DATA/dogs/2.jpg, if you like below train/, val/ and test/"
)


def read_folder(root: Path) -> Found:
    """Finds the images of a folder."""
    if (root / "wnids.txt").is_file() and (root / "val" / "val_annotations.txt").is_file():
        return read_tiny_imagenet(root)
    walk = _Walk(root)
    folders = walk.folders(root)
    splits = _split_folders(walk, folders)
    pairs = [(split, folder) for split, above in splits.items() for folder in walk.folders(above)]
    if not splits:
        pairs = [("", folder) for folder in folders]
    for above in (root, *splits.values()):
        walk.leave_out(above)
    found = [(path, folder.name, split) for split, folder in pairs for path in walk.images(folder)]
    if not found:
        loose = sum(walk.loose.values())
        what = f"{counted(loose, 'image')} without class folders" if loose else "no images"
        raise ValueError(f"{shown(root)} holds {what}: {_LAYOUT}")
    return Found(
        images=tuple(path for path, _, _ in found),
        names=[path.relative_to(root).as_posix() for path, _, _ in found],
        labels=[shown(label) for _, label, _ in found],
        splits=[split for _, _, split in found],
        classes=class_order(shown(folder.name) for _, folder in pairs),
        notes=walk.notes(),
    )


def read_tiny_imagenet(root: Path) -> Found:
    """Tiny-ImageNet as it is published: the labels of val/ stand in a text file.

    Its val/ is the test split of every paper, for the labels of its test/ were never published.
    """
    walk = _Walk(root)
    words = dict(
        line.split("\t", 1)
        for line in (root / "words.txt").read_text("utf-8").splitlines()
        if "\t" in line
    )
    identifiers = (root / "wnids.txt").read_text("utf-8").split()
    short = {key: words.get(key, key).split(",")[0].strip() for key in identifiers}
    twice = {name for name, count in Counter(short.values()).items() if count > 1}
    names = {key: f"{name} ({key})" if name in twice else name for key, name in short.items()}

    found = [
        (path, names[key], "train")
        for key in identifiers
        for path in walk.images(root / "train" / key)
    ]
    for line in (root / "val" / "val_annotations.txt").read_text("utf-8").splitlines():
        file, key, *_ = line.split("\t")
        if key not in names:
            raise ValueError(f"val_annotations.txt names a class {key!r} that wnids.txt lacks")
        found.append((root / "val" / "images" / file, names[key], "test"))
    return Found(
        images=tuple(path for path, _, _ in found),
        names=[path.relative_to(root).as_posix() for path, _, _ in found],
        labels=[label for _, label, _ in found],
        splits=[split for _, _, split in found],
        classes=tuple(names.values()),
        notes=(
            "the published val/ is the test split; test/ has no labels and is left out",
            *walk.notes(),
        ),
        official=True,
    )


def _split_folders(walk: "_Walk", folders: list[Path]) -> dict[str, Path]:
    """train, val and test, if that is what the folders are; a class may be called "train" too."""
    splits: dict[str, Path] = {}
    named = [folder for folder in folders if split_name(folder.name)]
    if not any(walk.folders(folder) for folder in named):
        return splits
    rest = [folder for folder in folders if folder not in named]
    others = [folder for folder in rest if any(_Walk(walk.root).images(folder))]
    if others:
        raise ValueError(
            f"{shown(walk.root)} holds {some(f.name for f in named)} and also images in "
            f"{some(f.name for f in others)}: if these are classes, rename the class called "
            f"{shown(named[0].name)}; if they are not, move them out of the folder"
        )
    for folder in named:
        split = split_name(folder.name) or ""
        if split in splits:
            raise ValueError(
                f"{shown(walk.root)} holds both {splits[split].name} and {folder.name}: "
                f"which is the {split} split? Rename or move one"
            )
        splits[split] = folder
    return splits


class _Walk:
    """Lists folders, and counts what it passes by."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.loose: Counter[str] = Counter()
        self.foreign: Counter[str] = Counter()
        self.loops: list[str] = []

    def folders(self, folder: Path) -> list[Path]:
        """The visible folders inside."""
        return [Path(entry) for entry in _listed(folder) if _is_folder(entry)]

    def leave_out(self, folder: Path) -> None:
        """Counts images that lie where no class is."""
        count = sum(_is_image(entry) for entry in _listed(folder))
        if count:
            self.loose[shown(folder)] += count

    def images(self, folder: Path) -> Iterator[Path]:
        """Every image at any depth, links followed, each folder in order of names."""
        yield from self._below(folder, frozenset([_identity(self.root), _identity(folder)]))

    def _below(self, folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
        for entry in _listed(folder):
            path = Path(entry)
            if _is_folder(entry):
                if (identity := _identity(path)) in above:
                    self.loops.append(shown(path.relative_to(self.root)))
                else:
                    yield from self._below(path, above | {identity})
            elif _is_image(entry):
                yield path
            else:
                self.foreign[path.suffix.lower() or "no suffix"] += 1

    def notes(self) -> tuple[str, ...]:
        """What was passed by, a sentence each."""
        notes = [
            f"{counted(count, 'image lies', 'images lie')} in {folder} itself, outside every "
            "class folder, and left out"
            for folder, count in self.loose.items()
        ]
        if self.loops:
            notes.append(f"{some(self.loops)}: a link back to a folder above it, not followed")
        if self.foreign:
            kinds = ", ".join(
                f"{count} {shown(kind)}" for kind, count in self.foreign.most_common(5)
            )
            notes.append(f"files that are no images by their name are left out: {kinds}")
        return tuple(notes)


def _listed(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            visible = [e for e in entries if not e.name.startswith((".", "__MACOSX"))]
    except OSError as error:
        raise OSError(
            error.errno, f"the folder {shown(folder)} cannot be listed: {error.strerror}"
        ) from error
    return sorted(visible, key=lambda entry: entry.name)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_image(entry: "os.DirEntry[str]") -> bool:
    return os.path.splitext(entry.name)[1].lower() in SUFFIXES and not _is_folder(entry)


def _identity(folder: Path) -> tuple[int, int]:
    stat = folder.stat()
    return stat.st_dev, stat.st_ino
