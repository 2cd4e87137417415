import gzip
import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smallvit.data import Dataset, load_data
from smallvit.data.named import NAMED

Save = Callable[..., Path]
RANDOM = np.random.default_rng(0)


def counts(dataset: Dataset) -> dict[str, int]:
    return {name: len(items) for name, items in dataset.splits.items()}


def test_fashion_mini_is_embedded() -> None:
    dataset = load_data("fashion-mini")
    assert counts(dataset) == {"train": 3600, "val": 400, "test": 1000}
    assert counts(load_data("fashion-mini", val=0)) == {"train": 4000, "test": 1000}
    assert dataset.classes[9] == "Ankle boot"
    assert dataset.official
    assert dataset.channels == 1
    assert dataset.image_size == (28, 28)
    for split, each in (("train", 360), ("val", 40), ("test", 100)):
        assert np.bincount(dataset.labels(split)).tolist() == [each] * 10
    digests = np.concatenate([items.survey.digests for items in dataset.splits.values()])
    assert len(np.unique(digests, axis=0)) == 5000


def test_what_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    for name in set(NAMED) - {"fashion-mini"}:
        with pytest.raises(ValueError, match=f"{name} is not in .*download=True"):
            load_data(name, root=tmp_path)
    assert list(tmp_path.glob("*")) in ([], [tmp_path / "cache of smallvit"])


def test_the_root_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMALLVIT_DATA", str(tmp_path / "here"))
    with pytest.raises(ValueError, match="here"):
        load_data("mnist")


def test_a_name_goes_before_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, save: Save
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        save(tmp_path / "fashion-mini" / "ab"[number % 2] / f"{number}.png", number)
    with caplog.at_level(logging.WARNING):
        assert len(load_data("fashion-mini").classes) == 10
    assert "the folder is ./fashion-mini" in caplog.text
    assert load_data("./fashion-mini").classes == ("a", "b")


@pytest.mark.parametrize(
    ("name", "subfolder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")]
)
def test_mnist(tmp_path: Path, name: str, subfolder: str) -> None:
    folder = tmp_path / subfolder / "raw"
    folder.mkdir(parents=True)
    for prefix, count in (("train", 40), ("t10k", 20)):
        images = RANDOM.integers(0, 256, (count, 28, 28), np.uint8)
        head = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in images.shape)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = (np.arange(count) % 10).astype(np.uint8)
        head = b"\0\0\x08\x01" + count.to_bytes(4, "big")
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    dataset = load_data(name, root=tmp_path)
    assert counts(dataset) == {"train": 30, "val": 10, "test": 20}
    assert dataset.classes[0] == ("0" if name == "mnist" else "T-shirt/top")
    assert (dataset.pixels("test")[:, 0] == images).all()
    assert (dataset.labels("test") == np.arange(20) % 10).all()


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar(tmp_path: Path, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets
    from torchvision.datasets import cifar

    # The files are made here, so their sums are not the published ones.
    monkeypatch.setattr(cifar, "check_integrity", lambda path, md5=None: Path(path).is_file())
    published = datasets.CIFAR10 if classes == 10 else datasets.CIFAR100
    folder = tmp_path / published.base_folder
    folder.mkdir()
    key = "labels" if classes == 10 else "fine_labels"
    names = [f"class {k}" for k in range(classes)]
    for file, _ in published.train_list + published.test_list:
        data = RANDOM.integers(0, 256, (200, 3072), np.uint8)
        stored = {"data": data, key: (np.arange(200) % classes).tolist()}
        (folder / file).write_bytes(pickle.dumps(stored))
    meta = {"label_names": names, "fine_label_names": names}
    (folder / published.meta["filename"]).write_bytes(pickle.dumps(meta))
    dataset = load_data(f"cifar{classes}", root=tmp_path, val=0)
    train = 200 * len(published.train_list)
    assert counts(dataset) == {"train": train, "test": 200}
    assert dataset.classes == tuple(names)
    assert (dataset.pixels("test") == data.reshape(200, 3, 32, 32)).all()


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = pytest.importorskip("scipy.io")
    from torchvision.datasets import svhn

    monkeypatch.setattr(svhn, "check_integrity", lambda path, md5=None: Path(path).is_file())
    for split in ("train", "test"):
        images = RANDOM.integers(0, 256, (32, 32, 3, 30), np.uint8)
        labels = np.arange(30) % 10 + 1  # ten stands for zero
        io.savemat(tmp_path / f"{split}_32x32.mat", {"X": images, "y": labels[:, None]})
    dataset = load_data("svhn", root=tmp_path)
    assert counts(dataset) == {"train": 20, "val": 10, "test": 30}
    assert dataset.labels("test")[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert (dataset.pixels("test")[4] == images[..., 4].transpose(2, 0, 1)).all()


def test_flowers_is_three_benchmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Save
) -> None:
    io = pytest.importorskip("scipy.io")
    from torchvision.datasets import flowers102

    monkeypatch.setattr(flowers102, "check_integrity", lambda path, md5=None: Path(path).is_file())
    folder = tmp_path / "flowers-102"
    for number in range(1, 61):
        save(folder / "jpg" / f"image_{number:05d}.jpg", number)
    io.savemat(folder / "imagelabels.mat", {"labels": np.arange(60) % 3 + 1})
    ids = {"trnid": range(1, 11), "valid": range(11, 21), "tstid": range(21, 61)}
    io.savemat(folder / "setid.mat", {name: np.array(list(i)) for name, i in ids.items()})
    expected = {
        "flowers102": {"train": 20, "test": 40},
        "flowers102:2040": {"train": 20, "test": 40},
        "flowers102:1020": {"train": 10, "test": 40},
    }
    for name, split in expected.items():
        dataset = load_data(name, root=tmp_path, val=0)
        assert counts(dataset) == split
        assert dataset.official
        assert "Flowers-102 is three benchmarks; this is" in dataset.notes[0]
    assert counts(load_data("flowers102:1020", root=tmp_path))["val"] == 10
    pooled = load_data("flowers102:6552", root=tmp_path)
    assert not pooled.official
    assert pooled.held_out == {"test": 0.2, "val": 0.1}
    assert len(dataset.classes) == 102
    assert dataset.classes[0] == "pink primrose"
    with pytest.raises(ValueError, match="no variant '6149': its variants are 1020, 2040, 6552"):
        load_data("flowers102:6149", root=tmp_path)
    with pytest.raises(ValueError, match="it has no variants"):
        load_data("mnist:2", root=tmp_path)


@pytest.fixture
def tiny(tmp_path: Path, save: Save) -> Path:
    """Tiny-ImageNet as it is published, smaller still."""
    root = tmp_path / "tiny-imagenet-200"
    wnids = ["n01", "n02", "n03"]
    for k, wnid in enumerate(wnids):
        for number in range(6):
            save(root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", 10 * k + number)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    lines = []
    for number in range(6):
        save(root / "val" / "images" / f"val_{number}.JPEG", 100 + number)
        lines.append(f"val_{number}.JPEG\t{wnids[number % 3]}\t0\t32\t44\t62\n")
    save(root / "test" / "images" / "test_0.JPEG", 200)
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(wnids))
    (root / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tcrane\nn03\tcrane\nn99\tcat\n")
    return root


def test_tiny_imagenet_as_published(tiny: Path) -> None:
    for spec in (str(tiny), "tiny-imagenet"):
        dataset = load_data(spec, root=tiny.parent)
        assert dataset.classes == ("goldfish", "crane (n02)", "crane (n03)")
        assert counts(dataset) == {"train": 15, "val": 3, "test": 6}
        assert dataset.labels("test").tolist() == [0, 1, 2, 0, 1, 2]
        assert dataset.official
        assert "the published val/ is the test split" in dataset.notes[0]


def test_tiny_imagenet_with_a_strange_label(tiny: Path) -> None:
    (tiny / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\t0\t0\t0\t0\n")
    with pytest.raises(ValueError, match=r"a class 'n77' that wnids\.txt lacks"):
        load_data(tiny)


def test_the_embedded_images_are_the_published_ones() -> None:
    source = Path("/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz")
    if not source.exists():
        pytest.skip("needs the Debian package dataset-fashion-mnist")
    published = np.frombuffer(gzip.decompress(source.read_bytes()), np.uint8, offset=16)
    known = {image.tobytes() for image in published.reshape(-1, 784)}
    assert all(image.tobytes() in known for image in load_data("fashion-mini").pixels("test"))
