"""Folders of class folders, with or without train/ val/ test/ above them."""

import errno
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from smallvit.data.samples import Source, class_order
from smallvit.data.sources import by_split, split_name
from smallvit.files import UNREAD_SUFFIXES, is_folder, is_image, listed, walk
from smallvit.text import counted, shown, some

UNLABELLED = "image"
"""The one class of images whose classes nobody knows."""

_LAYOUT = (
    "expected is one folder per class with its images inside, as in DATA/cats/1.jpg and "
    "DATA/dogs/2.jpg, optionally below train/, val/ and test/"
)


def read_folder(root: Path, *, unlabelled: bool = False) -> Source:
    """Reads a folder.

    Args:
        root: The folder.
        unlabelled: Whether images without class folders are welcome: they are of one class then.
    """
    if (root / "wnids.txt").is_file() and (root / "val" / "val_annotations.txt").is_file():
        return read_tiny_imagenet(root)
    tree = _Tree(root)
    folders, tree.unclassed[root] = _listed(root)
    splits = _split_folders(root, folders)
    pairs = [] if splits else [("", folder) for folder in folders]
    for split, above in splits.items():
        folders, tree.unclassed[above] = _listed(above)
        pairs += [(split, folder) for folder in folders]
    rows = [
        (path, shown(folder.name), split) for split, folder in pairs for path in tree.images(folder)
    ]
    if not rows and unlabelled:
        files = [Path(file.path) for file in walk(root) if file.error is None]
        if rows := [(path, UNLABELLED, "") for path in files if is_image(path.name)]:
            return replace(Source.of_files(rows, root), classes=(UNLABELLED,), named=False)
    if not rows:
        loose = sum(tree.unclassed.values())
        what = f"{counted(loose, 'image')} without class folders" if loose else "no images"
        if not loose and tree.not_images:
            what += f" by their names, but {tree.others()}"
        raise ValueError(f"{shown(root)} holds {what}: {_LAYOUT}")
    return replace(
        Source.of_files(rows, root),
        classes=class_order(shown(folder.name) for _, folder in pairs),
        notes=tree.notes(),
    )


def read_tiny_imagenet(root: Path) -> Source:
    """Reads Tiny-ImageNet as it is published: the labels of val/ are in a text file.

    Its val/ is the test split of every paper, for the labels of its test/ were never published.
    """
    tree = _Tree(root)
    words = dict(
        line.split("\t", 1)
        for line in (root / "words.txt").read_text("utf-8").splitlines()
        if "\t" in line
    )
    identifiers = (root / "wnids.txt").read_text("utf-8").split()
    short = {key: words.get(key, key).split(",")[0].strip() for key in identifiers}
    twice = {name for name, count in Counter(short.values()).items() if count > 1}
    names = {key: f"{name} ({key})" if name in twice else name for key, name in short.items()}

    rows = [
        (path, names[key], "train")
        for key in identifiers
        for path in tree.images(root / "train" / key)
    ]
    for line in (root / "val" / "val_annotations.txt").read_text("utf-8").splitlines():
        file, key, *_ = line.split("\t")
        if key not in names:
            raise ValueError(f"val_annotations.txt has a class {key!r} that wnids.txt lacks")
        rows.append((root / "val" / "images" / file, names[key], "test"))
    return replace(
        Source.of_files(rows, root),
        classes=tuple(names.values()),
        notes=(
            "the published val/ is the test split; test/ has no labels and is left out",
            *tree.notes(),
        ),
        official=True,
    )


def _split_folders(root: Path, folders: list[Path]) -> dict[str, Path]:
    """train, val and test, if that is what the folders are; a class may be called "train" too."""
    named = [folder for folder in folders if split_name(folder.name)]
    rest = [folder for folder in folders if folder not in named]
    if rest and not any(_listed(folder)[0] for folder in named):
        return {}
    others = [folder for folder in rest if any(_Tree(root).images(folder))]
    if others:
        raise ValueError(
            f"{shown(root)} holds {some(f.name for f in named)} and also images in "
            f"{some(f.name for f in others)}: if these are classes, rename the class called "
            f"{shown(named[0].name)}; if they are not, move them out of the folder"
        )
    return by_split(named, root)


class _Tree:
    """Lists the images below a folder, and counts what is left out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unclassed: dict[Path, int] = {}
        self.not_images: Counter[str] = Counter()
        self.loops: list[str] = []

    def images(self, folder: Path) -> Iterator[Path]:
        """Every image at any depth; links are followed, but not in circles."""
        for file in walk(folder, above=[self.root]):
            path = Path(file.path)
            if file.error is None:
                if is_image(path.name):
                    yield path
                else:
                    self.not_images[path.suffix.lower() or "no suffix"] += 1
            elif file.error.errno == errno.ELOOP:
                self.loops.append(shown(path.relative_to(self.root)))
            else:
                raise _unlisted(path, file.error)

    def notes(self) -> tuple[str, ...]:
        """What was left out, one sentence each."""
        notes = [
            f"{counted(count, 'image lies', 'images lie')} in {shown(folder)} itself, outside "
            "every class folder, and left out"
            for folder, count in self.unclassed.items()
            if count
        ]
        if self.loops:
            notes.append(f"{some(self.loops)}: a link back to a folder above it, not followed")
        if self.not_images:
            notes.append(f"files that are not images by their name are left out: {self.others()}")
        return tuple(notes)

    def others(self) -> str:
        """What the files are that are not images by their names."""
        most = self.not_images.most_common(5)
        kinds = ", ".join(f"{count} {shown(kind)}" for kind, count in most)
        unread = sorted(UNREAD_SUFFIXES & {kind for kind, _ in most})
        return kinds + (f" (convert {some(unread)} to JPEG or PNG)" if unread else "")


def _listed(folder: Path) -> tuple[list[Path], int]:
    """The visible folders inside, and how many images lie beside them."""
    try:
        entries = listed(folder)
    except OSError as error:
        raise _unlisted(folder, error) from error
    folders = [Path(entry) for entry in entries if is_folder(entry)]
    loose = sum(is_image(entry.name) and not is_folder(entry) for entry in entries)
    return folders, loose


def _unlisted(folder: Path, error: OSError) -> OSError:
    return OSError(error.errno, f"the folder {shown(folder)} cannot be listed: {error.strerror}")
