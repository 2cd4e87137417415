"""Bad input: a clear sentence each time, and nothing lost."""

import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from smallvit.data import audit, load_data
from smallvit.text import shown

Save = Callable[..., Path]


def codes(folder: Path, **options: object) -> dict[str, str]:
    return {
        finding.code: finding.message for finding in audit(load_data(folder, **options)).findings
    }


def test_empty_folder(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="holds no images: expected is one folder per class"):
        load_data(empty)


def test_split_folders_without_class_folders(tmp_path: Path, save: Save) -> None:
    """They were two classes, called train and test."""
    for number, split in enumerate(("train", "train", "test", "test")):
        save(tmp_path / "data" / split / f"{number}.png", number)
    with pytest.raises(ValueError, match="holds 4 images without class folders"):
        load_data(tmp_path / "data")
    dataset = load_data(tmp_path / "data", unlabelled=True, val=0)
    assert (dataset.classes, len(dataset.split("train"))) == (("image",), 4)


def test_images_without_class_folders(tmp_path: Path, save: Save, folder: Path) -> None:
    save(tmp_path / "flat" / "1.png")
    with pytest.raises(ValueError, match="holds 1 image without class folders"):
        load_data(tmp_path / "flat")
    save(folder / "loose.png")
    (folder / "cats" / "notes.txt").touch()
    (folder / "cats" / "photo.heic").touch()
    notes = load_data(folder).notes
    assert "1 image lies in" in notes[0]
    assert "outside every class folder" in notes[0]
    assert "left out: 1 .heic, 1 .txt" in notes[1] or "left out: 1 .txt, 1 .heic" in notes[1]
    assert notes[1].endswith("(convert .heic to JPEG or PNG)")
    (tmp_path / "phone" / "cats").mkdir(parents=True)
    (tmp_path / "phone" / "cats" / "photo.HEIC").touch()
    with pytest.raises(ValueError, match=r"no images by their names, but 1 \.heic \(convert"):
        load_data(tmp_path / "phone")


def test_one_class(tmp_path: Path, save: Save) -> None:
    for number in range(4):
        save(tmp_path / "data" / "cats" / f"{number}.png", number)
    report = audit(load_data(tmp_path / "data"))
    with pytest.raises(ValueError, match="only one class, cats: a classifier needs at least two"):
        report.check()


def test_one_image_in_a_class(folder: Path, save: Save) -> None:
    save(folder / "rare" / "1.png", 99)
    dataset = load_data(folder)
    assert "rare/1.png" in dataset.splits["train"].names
    report = audit(dataset)
    report.check()
    messages = [finding.message for finding in report.findings if finding.code == "too-few"]
    assert len(messages) == 2
    for split, text in zip(("val", "test"), messages, strict=True):
        assert f"1 class has no image in {split}" in text


def test_an_empty_class_folder(folder: Path) -> None:
    (folder / "birds").mkdir()
    dataset = load_data(folder)
    assert dataset.classes == ("birds", "cats", "dogs")
    result = audit(dataset)
    result.check()
    found = [(f.level, f.items) for f in result.findings if f.code == "empty-class"]
    assert found == [("warning", (("birds",),))]
    for image in (folder / "cats").iterdir():
        image.unlink()
    (folder / "cats" / "photo.heic").touch()
    with pytest.raises(ValueError, match=r"(?s)no images at all: birds, cats.*left out: 1 \.heic"):
        audit(load_data(folder)).check()


def test_one_image_per_class(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "three.npz", images=images, labels=np.arange(3))
    with pytest.raises(ValueError, match="no class has more than one training image"):
        audit(load_data(tmp_path / "three.npz")).check()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[: len(data) // 2], "truncated"),
        (lambda data: b"", "the file is empty"),
        (lambda data: b"these are words\n" * 20, "none of JPEG, PNG"),
    ],
)
def test_damaged_files(
    folder: Path, damage: Callable[[bytes], bytes], reason: str, photo: Path
) -> None:
    bad = folder / "cats" / "bad.jpg"
    bad.write_bytes(damage(photo.read_bytes()))
    dataset = load_data(folder)
    assert sum(map(len, dataset.splits.values())) == 21
    report = audit(dataset)
    with pytest.raises(ValueError, match=r"1 file cannot be read: .*cats/bad.jpg \(.*" + reason):
        report.check()
    report.check(allow=["unreadable"])
    bad_split = next(name for name, items in dataset.splits.items() if items.survey.errors)
    with pytest.raises(
        ValueError,
        match=r"1 image of .* cannot be read: cats/bad\.jpg.*`smallvit train --allow unreadable`",
    ):
        dataset.pixels(bad_split)
    rest = dataset.readable()
    assert rest.dropped == ("cats/bad.jpg",)
    assert rest.record()["dropped"] == ["cats/bad.jpg"]
    assert "1 file that cannot be read is left out: cats/bad.jpg" in rest.notes
    assert sum(len(rest.pixels(split)) for split in rest.splits) == 20


def test_all_files_damaged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "1.png").touch()
    with pytest.raises(ValueError, match="2 files cannot be read"):
        audit(load_data(tmp_path / "data")).check()


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_of_which_nothing_can_be_read(tmp_path: Path, save: Save, split: str) -> None:
    for number in range(18):
        name, label = ("train", "val", "test")[number % 3], ("cats", "dogs")[number % 2]
        save(tmp_path / "data" / name / label / f"{number}.png", number)
    for path in (tmp_path / "data" / split).rglob("*.png"):
        path.write_bytes(b"")
    dataset = load_data(tmp_path / "data")
    if split == "train":
        with pytest.raises(ValueError, match=r"no image of the train split .* can be read"):
            dataset.readable()
        return
    rest = dataset.readable()
    assert set(rest.splits) == {"train", "val", "test"} - {split}
    assert len(rest.dropped) == 6
    notes = [finding.message for finding in audit(rest).findings if finding.code == "note"]
    assert any(f"none of the 6 images of {split} can be read" in note for note in notes)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root reads everything, so root becomes nobody for a while."""
    if not hasattr(os, "geteuid"):
        pytest.skip("no Unix permissions here")
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(65534)
    except OSError:
        pytest.skip("runs as root and may not drop privileges")
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder(folder: Path) -> Iterator[Path]:
    """The folder where everyone may look: pytest's own is closed to others."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        shutil.copytree(folder, root / "data")
        yield root / "data"


def test_unreadable_permissions(open_folder: Path) -> None:
    closed = open_folder / "cats" / "0.png"
    closed.chmod(0)
    with unprivileged():
        report = audit(load_data(open_folder))
        with pytest.raises(ValueError, match=r"1 file .*cats/0.png \(Permission denied\)"):
            report.check()
    closed.chmod(0o644)
    (open_folder / "dogs").chmod(0)
    with unprivileged(), pytest.raises(OSError, match=r"dogs cannot be listed: Permission denied"):
        load_data(open_folder)
    (open_folder / "dogs").chmod(0o755)


def test_symlink_loops(folder: Path) -> None:
    (folder / "cats" / "again").symlink_to(folder, target_is_directory=True)
    (folder / "cats" / "self").symlink_to(folder / "cats", target_is_directory=True)
    (folder / "dogs" / "ring.png").symlink_to("ring.png")
    (folder / "dogs" / "gone.png").symlink_to("nowhere.png")
    dataset = load_data(folder)
    assert "cats/again, cats/self: a link back to a folder above it" in " ".join(dataset.notes)
    messages = codes(folder)
    assert "2 files cannot be read" in messages["unreadable"]
    assert "dogs/gone.png (No such file" in messages["unreadable"]
    assert len(dataset.readable().splits["train"]) >= 14


def test_links_that_are_no_loops_are_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    for name in ("cats", "dogs"):
        (tmp_path / "linked" / name).symlink_to(folder / name, target_is_directory=True)
    assert load_data(tmp_path / "linked").fingerprint == load_data(folder).fingerprint


def test_a_pipe_is_not_an_image(folder: Path) -> None:
    os.mkfifo(folder / "cats" / "pipe.png")
    assert "pipe.png (it is not a regular file)" in codes(folder)["unreadable"]


def test_names_that_are_no_utf8(folder: Path, save: Save) -> None:
    root = os.fsencode(folder)
    os.mkdir(root + b"/caf\xe9")
    for number in range(3):
        plain = save(folder / f"{number}.png", 50 + number)
        os.rename(os.fsencode(plain), root + b"/caf\xe9/\xff" + str(number).encode() + b".png")
    (folder / "cats" / "tab\tand\x1b[31mred.png").write_bytes(b"")
    dataset = load_data(folder, val=0)
    assert dataset.classes == ("caf\\xe9", "cats", "dogs")
    report = audit(dataset)
    text = report.to_json()
    text.encode("utf-8")
    assert "tab\\\\tand\\\\x1b[31mred.png" in text
    assert dataset.readable().pixels("train").shape[0] + len(dataset.splits["test"]) == 23


def test_shown_names_are_printable() -> None:
    assert shown("plain ünïcode 日本") == "plain ünïcode 日本"
    assert shown("a\nb\udcff\u202e") == "a\\nb\\xff\\u202e"


@pytest.mark.parametrize("other", ["Cats", "CATS", "ｃats"])
def test_class_names_differing_only_in_case(folder: Path, save: Save, other: str) -> None:
    save(folder / other / "1.png", 70)
    save(folder / other / "2.png", 71)
    report = audit(load_data(folder))
    if other == "ｃats":  # a letter of another width is another letter
        report.check()
        return
    with pytest.raises(ValueError, match=f"differ only in case .*: {other} = cats"):
        report.check()
    report.check(allow=["case"])


def test_class_names_differing_only_in_unicode_form(folder: Path, save: Save) -> None:
    for number, name in enumerate(("caf\u00e9", "cafe\u0301")):
        save(folder / name / "1.png", 80 + number)
    assert "how an accent is written" in codes(folder)["case"]


def table(folder: Path, text: str) -> Path:
    path = folder / "list.csv"
    path.write_text(text)
    return path


def test_csv_with_missing_files(folder: Path) -> None:
    rows = "".join(f"cats/{k}.png,cats\ndogs/1{k}.png,dogs\n" for k in range(9))
    dataset = load_data(table(folder, f"path,label\n{rows}cats/no.png,cats\n"))
    with pytest.raises(ValueError, match=r"1 file .*cats/no.png \(No such file or directory\)"):
        audit(dataset).check()
    assert len(dataset.readable().dropped) == 1
    with pytest.raises(
        ValueError, match=r"none of the 2 files .* exists, beginning with .*no\.png"
    ):
        load_data(table(folder, "path,label\nno.png,a\nno2.png,b\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "path,label\ncats/0.png,cats\ncats/1.png,\ncats/2.png,nan\n",
            "2 rows have no label .*row 2, 3",
        ),
        ("path,label\n,cats\n", "1 row has no path"),
        ("file,class\na,b\n", "has no column path and no column label, but file, class"),
        ("", "has no column path and no column label, but none"),
        ("path,label\n", "has no rows"),
        ("path,label,Label\ncats/0.png,cats,0\n", "several columns called label: keep one"),
        (f"path,label\n{'x' * 300}.png,cats\n", "none of the 1 files .* exists"),
        (
            "path,label,split\ncats/0.png,cats,dev\n",
            "row 1 .* has the split 'dev': allowed are train",
        ),
        (
            "path,label\ncats/0.png,cats,more\n",
            "row 1 .* has 3 fields and the header 2: put quotes",
        ),
        ("path,label\ncats/0.png\n", "row 1 .* has 1 field and the header 2: fill in"),
        ("path,label\ncats\\\\0.png,cats\n", "folders are separated by / here"),
        (
            f"path,label\ncats/0.png,cats\n{'x' * 140_000},dogs\n",
            r"line 3 of .*list\.csv cannot be read: field larger .* closing quote",
        ),
        (f"path,{'x' * 140_000}\n", r"line 1 of .*list\.csv cannot be read: field larger"),
        ('path,label\ncats/0.png,"cats\n' + 140_000 * "x,y\n", r"line \d+ of .*list\.csv cannot"),
        ("path,label\ncats/0.png,cats\ncats/\0.png,cats\n", r"row 2 of .*list\.csv.* a NUL byte"),
        ("p\0a\0t\0h\0,\0l\0a\0b\0e\0l\0\n\0", r"header of .*list\.csv has a NUL byte: .* UTF-16"),
    ],
)
def test_bad_tables(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_data(table(folder, text))


def test_unknown_labels(folder: Path) -> None:
    path = table(folder, "path,label\ncats/0.png,cats\ndogs/10.png,dgos\n")
    with pytest.raises(ValueError, match=r"2 classes .*: dgos; did you mean 'dogs'"):
        load_data(path, classes=["cats", "dogs"])
    rows = "path,label,split\n" + "".join(f"cats/{k}.png,{k % 2},train\n" for k in range(10))
    path = table(folder, rows + "dogs/10.png,7,test\n")
    with pytest.raises(ValueError, match=r"1 class has no training images, .*: 7"):
        audit(load_data(path)).check()


IMAGES, LABELS = np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": IMAGES.astype(np.float32), "labels": LABELS}, "float32; expected is uint8"),
        ({"images": IMAGES[0, 0], "labels": LABELS}, r"shape \(8, 3\): expected are the arrays"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, r"shape \(0, 8, 8, 3\)"),
        ({"images": IMAGES.transpose(0, 3, 1, 2), "labels": LABELS}, "channels first"),
        ({"images": IMAGES, "labels": LABELS[:3]}, r"labels .* \(3,\); .*\(4,\)"),
        ({"images": IMAGES, "labels": LABELS[:, None]}, r"labels .* \(4, 1\); .*\(4,\)"),
        ({"images": IMAGES, "labels": LABELS / 2}, "labels .* are float64; expected are whole"),
        ({"images": IMAGES, "labels": [0, 1, 1, np.nan]}, "float64 with NaN among them"),
        ({"images": IMAGES, "labels": ["a", "", "b", ""]}, "2 images .* an empty label"),
        (
            {"images": IMAGES, "labels": LABELS * 5, "classes": ["a", "b"]},
            "from 0 to 5, but classes has 2",
        ),
        ({"images": IMAGES, "labels": LABELS, "classes": ["a", "a"]}, "several classes called a"),
        ({"images": IMAGES, "labels": LABELS, "split": ["train", "x", "y", "z"]}, "split 'x'"),
        ({"x": IMAGES, "y": LABELS}, "has no images and no labels, but x, y"),
        (
            {"images": IMAGES, "labels": LABELS, "classes": "ab"},
            r"classes of .*bad\.npz has the shape \(\); expected is a list of names",
        ),
        ({"images": IMAGES, "labels": LABELS, "classes": [["a"], ["b"]]}, r"shape \(2, 1\)"),
        (
            {"images": IMAGES, "labels": np.array([0, "a", None, {}], object)},
            "holds Python objects",
        ),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "bad.npz", **{name: np.asarray(value) for name, value in arrays.items()})
    with pytest.raises(ValueError, match=message):
        load_data(tmp_path / "bad.npz")


def test_files_that_are_not_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", IMAGES)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"is not an .npz file"):
        load_data(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", images=IMAGES, labels=LABELS)
    (tmp_path / "b.npz").write_bytes((tmp_path / "b.npz").read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"b.npz (is not an|cannot be read as) .npz"):
        load_data(tmp_path / "b.npz")


def promising(path: Path, size: int, *, honest: bool) -> Path:
    """An .npz file of four images whose header promises others, in a small file."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': (4, {size}, 3)}}\n".encode()
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", data + bytes(768))
        if not honest:  # the table of contents agrees with the header
            archive.filelist[0].file_size = len(data) + 12 * size
        labels = io.BytesIO()
        np.save(labels, LABELS)
        archive.writestr("labels.npy", labels.getvalue())
    return path


@pytest.mark.parametrize(
    ("size", "honest", "message"),
    [
        (
            225_000_000_000,
            True,
            r"images of .*d\.npz is damaged: its header says 2,700,000,000,000",
        ),
        (63, True, r"damaged: its header says 756 bytes, shaped \(4, 63, 3\), and 768 are there"),
        (
            225_000_000_000,
            False,
            r"images of .*d\.npz needs 2,700\.0 GB of memory, and there is not",
        ),
        (100, False, r"d\.npz (cannot be read as \.npz|is damaged)"),
    ],
)
def test_arrays_that_promise_too_much(
    tmp_path: Path, size: int, honest: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_data(promising(tmp_path / "d.npz", size, honest=honest))


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (b"", r"labels of .*d\.npz is not an array of NumPy's"),
        (b"garbage", r"labels of .*d\.npz is not an array of NumPy's"),
        (b"\x93NUMPY\x01\x00\xff\xff{", r"labels of .*d\.npz is damaged"),
        (b"\x93NUMPY\x01\x00\x09\x00{'descr':", r"labels of .*d\.npz is damaged"),
        (b"\x93NUMPY\x09\x09\x09\x00{'descr':", r"labels of .*d\.npz is damaged"),
    ],
)
def test_members_that_are_garbage(tmp_path: Path, member: bytes, message: str) -> None:
    np.savez(tmp_path / "d.npz", images=IMAGES)
    with zipfile.ZipFile(tmp_path / "d.npz", "a") as archive:
        archive.writestr("labels.npy", member)
        archive.writestr("notes.txt", "not an array, and nobody asks for it")
    with pytest.raises(ValueError, match=message):
        load_data(tmp_path / "d.npz")


@pytest.mark.parametrize("shape", ["(-4, 8, -8, 3)", "(4, 8, 8, 3, -1, -1)"])
def test_arrays_of_less_than_nothing(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(768)
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("images.npy", data)
    with pytest.raises(ValueError, match=r"images of .*d\.npz is damaged"):
        load_data(tmp_path / "d.npz")


def test_a_member_whose_compression_is_damaged(tmp_path: Path) -> None:
    lzma = pytest.importorskip("lzma")
    assert lzma
    path = tmp_path / "d.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("images.npy", bytes(1000))
    data = bytearray(path.read_bytes())
    data[30 + len("images.npy") + 9] = 255  # the first byte after the two headers must be 0
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"d\.npz cannot be read as \.npz"):
        load_data(path)


def test_names_as_bytes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = [name.encode() for name in ("Löwe", "Wolf")] * 10 + [b"\xff"] * 10
    images = random.integers(0, 256, (30, 8, 8, 3), np.uint8)
    splits = np.array([b"train", b"val", b"test"] * 10)
    np.savez(tmp_path / "d.npz", images=images, labels=np.array(labels), split=splits)
    dataset = load_data(tmp_path / "d.npz")
    assert dataset.classes == ("Löwe", "Wolf", "\\xff")
    assert set(dataset.splits) == {"train", "val", "test"}


def test_npz_of_different_shapes(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", images=IMAGES, labels=LABELS)
    np.savez(tmp_path / "test.npz", images=IMAGES[:, :4], labels=LABELS)
    with pytest.raises(ValueError, match=r"test have the shape \(4, 8, 3\), others \(8, 8, 3\)"):
        load_data(tmp_path)


def test_images_smaller_than_a_patch(
    folder: Path, save: Save, noise: Callable[..., np.ndarray]
) -> None:
    save(folder / "cats" / "tiny.png", pixels=noise(5, 3, 50))
    save(folder / "cats" / "dot.png", pixels=noise(6, 1, 1))
    report = audit(load_data(folder), patch_size=4)
    message = next(finding.message for finding in report.findings if finding.code == "tiny")
    assert "2 images smaller than a patch of 4 pixels" in message
    dataset = load_data(folder, image_size=16, val=0, test=0)
    assert dataset.pixels("train").shape == (22, 3, 16, 16)


def test_images_of_other_channels(folder: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    many = np.random.default_rng(0).integers(0, 255, (24, 32, 5), np.uint8)
    tifffile.imwrite(
        folder / "cats" / "many.tif", many, photometric="minisblack", planarconfig="contig"
    )
    with pytest.raises(ValueError, match="not all images have 5 channels, 20 are of another"):
        audit(load_data(folder)).check()
