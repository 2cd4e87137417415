import json
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from typer.testing import CliRunner

from smallvit.cli import app
from smallvit.data import Audit, audit, load_data
from smallvit.data.similar import families, flip_loss, near_duplicates, perceptual_hash
from smallvit.data.survey import survey_array

Save = Callable[..., Path]
HERE = Path(__file__).parent


def levels(report: Audit) -> dict[str, str]:
    return {finding.code: finding.level for finding in report.findings}


def message(report: Audit, code: str) -> str:
    return next(finding.message for finding in report.findings if finding.code == code)


@pytest.fixture
def three(tmp_path: Path, save: Save) -> Path:
    """Two classes in three splits, twelve different images each."""
    for number in range(72):
        split, label = ("train", "val", "test")[number % 3], ("cats", "dogs")[number % 2]
        save(tmp_path / "three" / split / label / f"{number}.png", number)
    return tmp_path / "three"


def test_clean_data_has_no_findings(three: Path) -> None:
    report = audit(load_data(three))
    assert report.findings == ()
    report.check()
    assert report.counts == {split: {"cats": 12, "dogs": 12} for split in ("train", "val", "test")}
    assert report.sizes == {"height": (24, 24, 24), "width": (32, 32, 32), "aspect": (4 / 3,) * 3}


def test_leaks_are_errors_unless_allowed(three: Path) -> None:
    copy = three / "test" / "cats" / "copy.png"
    copy.write_bytes((three / "train" / "cats" / "0.png").read_bytes())
    report = audit(load_data(three))
    assert levels(report) == {"leaks": "error"}
    with pytest.raises(ValueError, match=r"train: train/cats/0\.png = test: test/cats/copy\.png"):
        report.check()
    report.check(allow=["leaks"])
    with pytest.raises(ValueError, match="allow holds tricks"):
        report.check(allow=["tricks"])
    assert report.findings[0].items == (("train: train/cats/0.png", "test: test/cats/copy.png"),)


def test_copies_with_other_labels_conflict(three: Path) -> None:
    copy = three / "train" / "dogs" / "copy.png"
    copy.write_bytes((three / "train" / "cats" / "0.png").read_bytes())
    report = audit(load_data(three))
    assert levels(report) == {"conflicts": "error", "duplicates": "warning"}
    assert "cats/0.png (cats) = train: train/dogs/copy.png (dogs)" in message(report, "conflicts")
    report.check(allow=["conflicts"])


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "resaved": lambda image: image,
    "halved": lambda image: image.resize((image.width // 2, image.height // 2)),
    "brightened": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "greyed": lambda image: image.convert("L"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_near_duplicates_across_splits_are_reported(
    three: Path, photo: Path, change: str, save: Save
) -> None:
    (three / "train" / "cats" / "photo.jpg").write_bytes(photo.read_bytes())
    changed = CHANGES[change](Image.open(photo))
    changed.save(three / "test" / "dogs" / "photo.jpg", quality=60)
    report = audit(load_data(three))
    assert levels(report) == {"near-leaks": "warning", "near-conflicts": "warning"}
    assert "train/cats/photo.jpg = test: test/dogs/photo.jpg" in message(report, "near-leaks")


def test_splits_that_are_made_keep_duplicates_together(
    tmp_path: Path, photos: tuple[np.ndarray, np.ndarray], save: Save
) -> None:
    for index, (image, label) in enumerate(zip(*photos, strict=True)):
        if label < 3:
            save(tmp_path / "data" / str(label) / f"{index}.png", pixels=image)
            if index % 2:
                save(tmp_path / "data" / str(label) / f"{index}b.png", pixels=image)
                bright = np.clip(image * 1.05 + 3, 0, 255).astype(np.uint8)
                save(tmp_path / "data" / str(label) / f"{index}c.png", pixels=bright)
    for seed in range(3):
        report = audit(load_data(tmp_path / "data", seed=seed))
        assert "leaks" not in levels(report)
        assert "near-leaks" not in levels(report)
        assert sum(report.counts["test"].values()) in range(40, 57)


def test_near_duplicates_are_found_whatever_the_order(
    photos: tuple[np.ndarray, np.ndarray],
) -> None:
    images = photos[0][:100]
    noisy = np.clip(images + np.random.default_rng(0).normal(0, 4, images.shape), 0, 255)
    thumbs = survey_array(np.concatenate([images, noisy.astype(np.uint8)])).thumbs
    pairs = {tuple(pair) for pair in near_duplicates(thumbs).tolist()}
    assert {(k, k + 100) for k in range(100)} <= pairs
    order = np.random.default_rng(1).permutation(200)
    shuffled = {
        tuple(sorted(order[list(pair)])) for pair in near_duplicates(thumbs[order]).tolist()
    }
    assert shuffled == pairs


def test_near_duplicates_agree_with_all_pairs(photos: tuple[np.ndarray, np.ndarray]) -> None:
    thumbs = survey_array(photos[0]).thumbs
    codes = perceptual_hash(thumbs)
    flat = thumbs.reshape(len(thumbs), -1).astype(float)
    likeness = np.corrcoef(flat)
    fifth = np.median(1 - np.sort(likeness, axis=1)[:, -6])
    close = 1 - likeness <= np.clip(fifth / 20, 0.002, 0.02)
    bits = np.array([[(int(a) ^ int(b)).bit_count() for b in codes] for a in codes])
    expected = np.argwhere(np.triu(close & (bits <= 7), 1))
    assert near_duplicates(thumbs).tolist() == expected.tolist()
    assert len(expected) < 10


def test_families_are_the_connected_ones(photos: tuple[np.ndarray, np.ndarray]) -> None:
    base = photos[0][:30]
    images = np.concatenate([base, np.clip(base * 1.02, 0, 255).astype(np.uint8), base[:5]])
    survey = survey_array(images)
    groups = [row.tobytes() for row in families(survey.digests, survey.thumbs)]
    assert groups[:30] == groups[30:60]
    assert groups[:5] == groups[60:]
    assert len(set(groups)) >= 28


def test_many_equal_images_take_little_memory(photos: tuple[np.ndarray, np.ndarray]) -> None:
    """Each of the many pairs has two vectors of a kilobyte."""
    survey = survey_array(np.concatenate([photos[0][:30], photos[0][:1].repeat(350, 0)]))
    tracemalloc.start()
    groups = [row.tobytes() for row in families(survey.digests, survey.thumbs)]
    few = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    pairs = near_duplicates(survey.thumbs)
    many = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {*groups[30:]} == {groups[0]}
    assert len({*groups}) > 20
    assert len(pairs) >= 351 * 350 // 2
    assert few < 50e6
    assert many < 100e6


def test_a_camera_that_stands_still_takes_little_memory() -> None:
    """Two thousand images of one scene have two million pairs; another stays apart."""
    random = np.random.default_rng(0)
    scenes = random.integers(0, 256, (2, 16, 16)).repeat([2000, 10], axis=0)
    thumbs = np.clip(scenes + random.integers(-1, 2, scenes.shape), 0, 255).astype(np.uint8)
    digests = random.integers(0, 256, (2010, 16), np.uint8)
    tracemalloc.start()
    groups = [row.tobytes() for row in families(digests, thumbs)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert groups == [groups[0]] * 2000 + [groups[-1]] * 10
    assert groups[0] != groups[-1]
    assert peak < 100e6


def test_digits_do_not_look_like_duplicates(digits: tuple[np.ndarray, np.ndarray]) -> None:
    assert len(near_duplicates(survey_array(digits[0][..., None]).thumbs)) <= 2


def test_flips_change_digits_and_not_photos(
    digits: tuple[np.ndarray, np.ndarray], photos: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    assert flip_loss(survey_array(digits[0][..., None]).thumbs, digits[1]) > 0.15
    assert flip_loss(survey_array(photos[0]).thumbs, photos[1]) < 0.05
    for name, (images, labels) in {"digits": digits, "photos": photos}.items():
        np.savez(tmp_path / f"{name}.npz", images=images, labels=labels)
    report = audit(load_data(tmp_path / "digits.npz"))
    assert report.flips_matter
    assert "more of the images" in message(report, "flip")
    assert "--set augment.flip=0" in message(report, "flip")
    report = audit(load_data(tmp_path / "photos.npz"))
    assert not report.flips_matter


def test_flips_change_what_is_called_by_a_letter(tmp_path: Path, save: Save) -> None:
    for number in range(40):
        save(tmp_path / "data" / "bd"[number % 2] / f"{number}.png", number)
    assert "single digits or letters" in message(audit(load_data(tmp_path / "data")), "flip")


def test_flips_do_not_matter_where_numbers_stand_for_names(
    tmp_path: Path, photos: tuple[np.ndarray, np.ndarray]
) -> None:
    np.savez(tmp_path / "a.npz", images=photos[0], labels=photos[1])
    assert not audit(load_data(tmp_path / "a.npz")).flips_matter
    np.savez(tmp_path / "b.npz", images=photos[0], labels=photos[1], classes=list("0123456789"))
    assert audit(load_data(tmp_path / "b.npz")).flips_matter


def test_imbalance_constants_frames_and_long_images(three: Path, save: Save) -> None:
    for number in range(150):
        save(three / "train" / "cats" / f"more{number}.png", 1000 + number)
    save(three / "train" / "dogs" / "flat.png", pixels=np.full((24, 32, 3), 7, np.uint8))
    # Equally bright and yet two colours: no constant image.
    two = np.zeros((24, 32, 3), np.uint8)
    two[:, :16], two[:, 16:] = (100, 0, 0), (0, 51, 0)
    save(three / "train" / "dogs" / "two.png", pixels=two)
    save(
        three / "val" / "dogs" / "long.png",
        pixels=np.random.default_rng(0).integers(0, 255, (10, 90, 3), np.uint8),
    )
    frames = [
        Image.fromarray(np.random.default_rng(k).integers(0, 255, (9, 9, 3), np.uint8))
        for k in (1, 2)
    ]
    frames[0].save(three / "val" / "cats" / "film.gif", save_all=True, append_images=frames[1:])
    report = audit(load_data(three))
    assert levels(report) == {
        "imbalance": "warning",
        "constant": "warning",
        "long": "hint",
        "frames": "hint",
    }
    assert "cats has 162 training images and dogs 14" in message(report, "imbalance")
    assert "1 image of a single colour: train: train/dogs/flat.png" in message(report, "constant")


def test_benchmarks_are_reported_and_not_refused(three: Path) -> None:
    image = next((three / "train" / "cats").iterdir())
    shutil.copy(image, three / "test" / "cats" / "leaked.png")
    shutil.copy(image, three / "train" / "dogs" / "conflicting.png")
    own = load_data(three)
    with pytest.raises(ValueError, match="leaks"):
        audit(own).check()
    report = audit(replace(own, official=True))
    report.check()
    levels = {finding.code: finding.level for finding in report.findings}
    assert levels["leaks"] == levels["conflicts"] == "warning"


def test_json_holds_everything(three: Path) -> None:
    (three / "test" / "cats" / "empty.png").touch()
    report = audit(load_data(three))
    plain = json.loads(report.to_json())
    assert plain["counts"]["train"] == {"cats": 12, "dogs": 12}
    assert plain["findings"][0]["code"] == "unreadable"
    assert plain["findings"][0]["items"] == [["test: test/cats/empty.png (the file is empty)"]]
    assert plain["sizes"]["width"] == [32, 32, 32]


def test_the_table_shows_names_literally(three: Path, save: Save) -> None:
    save(three / "train" / "[bold]not bold" / "1.png", 900)
    text = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["audit", str(three)]).output
    assert "[bold]not bold" in text
    assert "warning" in text
    assert "2 classes" not in text
    assert "3 classes" in text
    assert "height: 24 to 24, median 24" in text
    assert "hint" in CliRunner().invoke(app, ["audit", str(HERE / "digits.npz")]).output
