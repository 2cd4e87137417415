import csv
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smallvit.data import Dataset, load_data, survey

Save = Callable[..., Path]


def counts(dataset: Dataset) -> dict[str, int]:
    return {name: len(items) for name, items in dataset.splits.items()}


def test_a_folder_of_class_folders(folder: Path) -> None:
    dataset = load_data(folder)
    assert dataset.classes == ("cats", "dogs")
    assert counts(dataset) == {"train": 14, "val": 2, "test": 4}
    assert dataset.held_out == {"test": 0.2, "val": 0.1}
    for items in dataset.splits.values():
        for name, label in zip(items.names, items.labels, strict=True):
            assert name.startswith(dataset.classes[label])
    names = [name for items in dataset.splits.values() for name in items.names]
    assert len(set(names)) == len(names) == 20


def test_folders_inside_class_folders_and_capital_suffixes(folder: Path, save: Save) -> None:
    save(folder / "cats" / "indoors" / "deep" / "X.JPG", 99)
    (folder / "cats" / ".hidden.png").write_bytes(b"")
    dataset = load_data(folder, val=0, test=0)
    assert "cats/indoors/deep/X.JPG" in dataset.splits["train"].names
    assert counts(dataset) == {"train": 21}


@pytest.mark.parametrize("validation", ["val", "valid", "validation"])
def test_a_folder_of_splits(tmp_path: Path, save: Save, validation: str) -> None:
    for number, split in enumerate(("train", validation, "test")):
        for label in ("a", "b"):
            for k in range(3):
                save(tmp_path / split / label / f"{k}.png", 100 * number + 10 * k + ord(label))
    dataset = load_data(tmp_path)
    assert counts(dataset) == {"train": 6, "val": 6, "test": 6}
    assert dataset.held_out == {}


def test_splits_that_are_missing_are_made_of_training_images(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.move(folder, root / "train")
    assert load_data(root).held_out == {"test": 0.2, "val": 0.1}
    shutil.copytree(root / "train", root / "test")
    dataset = load_data(root)
    assert counts(dataset) == {"train": 18, "val": 2, "test": 20}
    assert load_data(root, val=0).held_out == {}
    shutil.rmtree(root / "train")
    assert counts(load_data(root)) == {"test": 20}


def test_val_0_leaves_a_given_validation_split_alone(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "valid"):
        shutil.copytree(folder, tmp_path / "both" / split)
    dataset = load_data(tmp_path / "both", val=0, test=0)
    assert counts(dataset) == {"train": 20}
    assert "own val split, 20 images, is left out" in dataset.notes[0]
    with pytest.raises(ValueError, match=r"its own val split of 20 images, and val is 0\.5"):
        load_data(tmp_path / "both", val=0.5)


def test_a_class_may_be_called_train(tmp_path: Path, save: Save) -> None:
    for number, name in enumerate(("car", "train", "plane")):
        save(tmp_path / name / "1.png", number)
    assert load_data(tmp_path).classes == ("car", "plane", "train")
    save(tmp_path / "train" / "steam" / "2.png", 7)
    with pytest.raises(ValueError, match="rename the class called train"):
        load_data(tmp_path)


def test_both_val_and_valid_is_no_layout(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "val", "valid"):
        shutil.copytree(folder, tmp_path / "odd" / split)
    with pytest.raises(ValueError, match="both val and valid"):
        load_data(tmp_path / "odd")


def test_numbered_classes_are_in_order(tmp_path: Path, save: Save) -> None:
    for number in (0, 2, 10, 9):
        save(tmp_path / str(number) / "1.png", number)
    assert load_data(tmp_path).classes == ("0", "2", "9", "10")


def table(path: Path, rows: list[dict[str, object]], delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv(folder: Path, delimiter: str) -> None:
    rows = [
        {"Path": path.relative_to(folder), "label": path.parent.name, "split": split}
        for path, split in zip(
            sorted(folder.rglob("*.png")), ["train", "valid", "test", ""] * 5, strict=True
        )
    ]
    dataset = load_data(table(folder / "list.csv", rows, delimiter))
    assert dataset.classes == ("cats", "dogs")
    assert counts(dataset) == {"train": 10, "val": 5, "test": 5}


def test_csv_with_spaces_before_quotes(folder: Path) -> None:
    rows = "".join(f'"{path.parent.name}/{path.name}", "cat, or dog {len(path.name)}"\n'
                   for path in sorted(folder.rglob("*.png")))  # fmt: skip
    (folder / "list.csv").write_text(f'"path", "label"\n{rows}')
    assert load_data(folder / "list.csv").classes == ("cat, or dog 5", "cat, or dog 6")


def test_csv_with_absolute_paths_and_no_split(folder: Path, tmp_path: Path) -> None:
    rows = [{"path": path, "label": len(path.name)} for path in sorted(folder.rglob("*.png"))]
    dataset = load_data(table(tmp_path / "list.csv", rows))
    assert dataset.classes == ("5", "6")
    assert counts(dataset) == {"train": 14, "val": 2, "test": 4}


def test_parquet(folder: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    paths = sorted(folder.rglob("*.png"))
    columns = {
        "path": [str(path.relative_to(folder)) for path in paths],
        "label": [float(path.parent.name == "dogs") for path in paths],
        "split": ["train"] * 15 + [None] * 5,
    }
    parquet.write_table(arrow.table(columns), folder / "list.parquet")
    dataset = load_data(folder / "list.parquet")
    assert dataset.classes == ("0", "1")
    assert counts(dataset) == {"train": 14, "val": 2, "test": 4}
    as_bytes = {
        "path": [os.fsencode(path) for path in columns["path"]],
        "label": [b"\xc3\xa4", b"b"] * 10,
    }
    parquet.write_table(arrow.table(as_bytes), folder / "bytes.parquet")
    assert load_data(folder / "bytes.parquet").classes == ("b", "ä")
    (folder / "no.parquet").write_text("path,label")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        load_data(folder / "no.parquet")


def test_without_pyarrow_the_command_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "list.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"reading Parquet needs pyarrow: pip install '.\["):
        load_data(folder / "list.parquet")


def arrays(count: int = 30, **more: object) -> dict[str, np.ndarray]:
    random = np.random.default_rng(count)
    return {
        "images": random.integers(0, 256, (count, 12, 10, 3), np.uint8),
        "labels": np.arange(count) % 3,
        **{name: np.asarray(value) for name, value in more.items()},
    }


def test_npz(tmp_path: Path) -> None:
    stored = arrays(classes=["x", "y", "z"], split=["train", "val", "test"] * 10)
    np.savez(tmp_path / "a.npz", **stored)
    dataset = load_data(tmp_path / "a.npz")
    assert dataset.classes == ("x", "y", "z")
    assert dataset.named
    assert counts(dataset) == {"train": 10, "val": 10, "test": 10}
    assert dataset.image_size == (12, 10)
    assert dataset.channels == 3
    pixels = dataset.pixels("val")
    assert (pixels == stored["images"][1::3].transpose(0, 3, 1, 2)).all()
    assert dataset.splits["val"].names[0] == "a[1]"


def test_npz_of_grey_and_of_many_channels(tmp_path: Path) -> None:
    stored = arrays()
    np.savez(tmp_path / "grey.npz", images=stored["images"][..., 0], labels=stored["labels"])
    dataset = load_data(tmp_path / "grey.npz")
    assert dataset.channels == 1
    assert not dataset.named
    many = np.concatenate([stored["images"]] * 3, axis=3)
    np.savez(tmp_path / "many.npz", images=many, labels=stored["labels"])
    dataset = load_data(tmp_path / "many.npz", image_size=8)
    assert dataset.pixels("train").shape == (21, 9, 8, 8)


def test_npz_labels_by_name_and_from_one(tmp_path: Path) -> None:
    stored = arrays()
    np.savez(tmp_path / "a.npz", images=stored["images"], labels=np.array(["b", "a", "c"] * 10))
    assert load_data(tmp_path / "a.npz").classes == ("a", "b", "c")
    np.savez(tmp_path / "b.npz", images=stored["images"], labels=stored["labels"] + 1)
    assert load_data(tmp_path / "b.npz").classes == ("1", "2", "3")


def test_a_folder_of_npz(tmp_path: Path) -> None:
    for split, count in (("train", 30), ("valid", 9), ("test", 12)):
        np.savez_compressed(tmp_path / f"{split}.npz", **arrays(count))
    dataset = load_data(tmp_path)
    assert counts(dataset) == {"train": 30, "val": 9, "test": 12}
    assert dataset.splits["test"].names[0] == "test[0]"


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (np.array([0, 1] * 4, np.uint64), np.array([0, 1] * 4)),
        (np.array(["ä", "b"] * 4), np.array(["ä".encode(), b"b"] * 4)),
    ],
    ids=["numbers", "names"],
)
def test_a_folder_of_npz_with_labels_of_different_kinds(
    tmp_path: Path, train: np.ndarray, test: np.ndarray
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "train.npz", images=images[:8], labels=train)
    np.savez(tmp_path / "test.npz", images=images[8:], labels=test)
    dataset = load_data(tmp_path, val=0)
    assert len(dataset.classes) == 2
    assert (np.bincount(dataset.labels("test")) == 4).all()


def test_both_val_and_valid_are_no_folder_of_npz(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), np.uint8)
    for name in ("train", "val", "valid"):
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(8) % 2)
    with pytest.raises(ValueError, match=r"holds both val\.npz and valid\.npz"):
        load_data(tmp_path)


def test_homes_and_numbers_that_nobody_has(folder: Path) -> None:
    with pytest.raises(ValueError, match="there is no file, folder or dataset ~nobody"):
        load_data("~nobody-of-this-name/photos")
    with pytest.raises(ValueError, match="seed is 1000"):
        load_data(folder, seed=10**400)


def test_classes_of_a_trained_model_are_kept(folder: Path) -> None:
    assert load_data(folder, classes=["dogs", "birds", "cats"]).classes[1] == "birds"
    with pytest.raises(ValueError, match=r"none of the 2 classes .*: dogs; did you mean 'dog'\?"):
        load_data(folder, classes=["cats", "dog"])


def test_what_is_there_under_no_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        load_data("cifar-10")
    (tmp_path / "a.zip").touch()
    with pytest.raises(ValueError, match="is not a source of images"):
        load_data(tmp_path / "a.zip")


def test_grey_folders_are_grey_and_mixed_ones_coloured(
    tmp_path: Path, save: Save, noise: Callable[..., np.ndarray]
) -> None:
    for number in range(6):
        grey = noise(number, channels=1)
        save(tmp_path / "data" / "ab"[number % 2] / f"{number}.png", pixels=grey)
    assert load_data(tmp_path / "data").channels == 1
    assert load_data(tmp_path / "data", channels=3).pixels("train").shape[1] == 3
    save(tmp_path / "data" / "a" / "colour.png", 77)
    assert load_data(tmp_path / "data").channels == 3


def test_images_that_do_not_share_a_size_wait_for_one(folder: Path, save: Save) -> None:
    assert load_data(folder).image_size == (24, 32)
    assert load_data(folder).chosen_size is None
    save(folder / "cats" / "other.png", pixels=np.zeros((30, 30, 3), np.uint8))
    dataset = load_data(folder)
    for use in (lambda: dataset.image_size, lambda: dataset.pixels("train"), dataset.record):
        with pytest.raises(ValueError, match=r"several sizes.*sized\(64\)"):
            use()
    sized = dataset.sized((20, 30), "crop")
    assert (sized.image_size, sized.chosen_size, sized.fit) == ((20, 30), (20, 30), "crop")
    assert sized.pixels("train").shape[2:] == (20, 30)
    assert sized.fingerprint == dataset.fingerprint == load_data(folder, image_size=8).fingerprint


def test_a_dataset_says_what_it_is(dataset: Dataset) -> None:
    record = dataset.record()
    assert record["counts"] == {"train": 14, "val": 2, "test": 4}
    assert record["fit"] == "letterbox"
    assert record["fill"] == 128
    assert record["seed"] == 0
    mean, std = dataset.statistics
    pixels = dataset.pixels("train") / 255
    assert np.allclose(mean, pixels.mean((0, 2, 3)))
    assert np.allclose(std, pixels.std((0, 2, 3)))


def test_the_fingerprint_follows_content(folder: Path, tmp_path: Path, save: Save) -> None:
    first = load_data(folder).fingerprint
    shutil.copytree(folder, tmp_path / "copy")
    assert load_data(tmp_path / "copy").fingerprint == first
    assert load_data(folder, seed=1).fingerprint != first
    save(folder / "cats" / "0.png", 1234)
    assert load_data(folder).fingerprint != first


def test_a_change_in_place_is_seen(
    folder: Path, save: Save, noise: Callable[..., np.ndarray]
) -> None:
    path = folder / "cats" / "0.bmp"
    save(path, 500)
    before = load_data(folder, val=0, test=0)
    stamp = path.stat()
    save(path, 501)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert path.stat().st_size == stamp.st_size
    index = before.splits["train"].names.index("cats/0.bmp")
    with pytest.raises(ValueError, match=r"cats/0.bmp \(it changed after"):
        before.pixels("train")
    after = load_data(folder, val=0, test=0)
    assert (after.pixels("train")[index].transpose(1, 2, 0) == noise(501)).all()


def test_surveys_are_kept_once_files_have_settled(
    folder: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(folder.rglob("*.png"))
    changed = max(path.stat().st_ctime_ns for path in paths)
    survey.survey_files(paths, clock=lambda: changed + 10**9)
    assert not list(cache_folder.glob("surveys/*.npz"))
    first = survey.survey_files(paths, clock=lambda: changed + 3 * 10**9)
    assert len(list(cache_folder.glob("surveys/*.npz"))) == 1

    def never(path: Path) -> None:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(survey, "read_bytes", never)
    again = survey.survey_files(paths)
    assert (again.digests == first.digests).all()
    assert (again.thumbs == first.thumbs).all()
