"""One image, one answer: a file, Pillow's image of it, its pixels, and the script beside ONNX."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from smallvit import export
from smallvit.data import read_image
from smallvit.data.images import UnreadableError, as_decoded
from smallvit.inference import Predictor, predict
from tests.untrained import CLASSES, photo, untrained

#: Modes of Pillow's and the formats that hold them; "array" where the bare pixels are enough.
KINDS: dict[str, tuple[str, str, bool]] = {
    "grey": ("L", "PNG", True),
    "colour": ("RGB", "PNG", True),
    "jpeg": ("RGB", "JPEG", True),
    "grey jpeg": ("L", "JPEG", True),
    "webp": ("RGB", "WEBP", True),
    "bmp": ("RGB", "BMP", True),
    "tiff": ("RGB", "TIFF", True),
    "black and white": ("1", "PNG", True),
    "16 bits": ("I;16", "PNG", True),
    "16 bits in a tiff": ("I;16", "TIFF", True),
    "palette": ("P", "PNG", False),
    "gif": ("P", "GIF", False),
    "palette with a transparent colour": ("P+", "PNG", False),
    "grey with a transparent value": ("L+", "PNG", False),
    "alpha": ("RGBA", "PNG", False),
    "grey alpha": ("LA", "PNG", False),
    "alpha in webp": ("RGBA", "WEBP", False),
    "inks": ("CMYK", "JPEG", False),
    "inks in a tiff": ("CMYK", "TIFF", False),
}


def drawn(kind: str, seed: int) -> tuple[Image.Image, dict[str, Any]]:
    """An image of a kind, and what its file is saved with."""
    mode, image, options = KINDS[kind][0], photo(seed), {}
    if mode == "I;16":
        wide = np.asarray(image.convert("L")).astype(np.uint16) * 256
        noise = np.random.default_rng(seed).integers(0, 256, wide.shape)
        return Image.fromarray(wide + noise.astype(np.uint16)), {}
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    if mode.endswith("+"):
        options["transparency"] = 3 if mode == "P+" else 128
    return image.convert(mode.removesuffix("+")), options


def save(folder: Path, kind: str, seed: int, turn: int) -> Path:
    image, options = drawn(kind, seed)
    if turn != 1 and KINDS[kind][1] not in ("BMP", "GIF"):
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = turn
    if KINDS[kind][1] == "TIFF":
        options["compression"] = "tiff_lzw"  # Pillow mixes up sides where it maps a turned TIFF
    path = folder / f"{kind}.{KINDS[kind][1].lower()}"
    image.save(path, KINDS[kind][1], **options)
    return path


@pytest.fixture(scope="module")
def predictors(tmp_path_factory: pytest.TempPathFactory) -> list[Predictor]:
    """A model of colour and one of grey images."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [untrained(folder / str(n), channels=n, fit="crop") for n in (3, 1)]
    return [Predictor.open(run, "cpu") for run in runs]


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 10_000),
    turn=st.integers(1, 8),
)
def test_every_way_in_gives_the_same_answer(
    predictors: list[Predictor], tmp_path: Path, kind: str, seed: int, turn: int
) -> None:
    path = save(tmp_path, kind, seed, turn)
    for predictor in predictors:
        (row,) = predict(predictor, path, top=len(CLASSES))
        expected = dict(zip(row.classes, row.probabilities, strict=True))
        with Image.open(path) as lazy:
            loaded = lazy.copy()
            ways: list[Any] = [lazy, read_image(path)]
            before = loaded.mode, loaded.tobytes(), loaded.info.keys()
            # A copy has lost what its file says of it, but not what it shows.
            ways += [loaded] if "16" not in kind else []
            if KINDS[kind][2] and (turn == 1 or lazy.getexif().get(0x0112, 1) == 1):
                ways.append(np.asarray(lazy))
            answers = predictor.predict(ways)
            assert (loaded.mode, loaded.tobytes(), loaded.info.keys()) == before
        for answer in answers:
            assert dict(zip(CLASSES, answer.tolist(), strict=True)) == pytest.approx(
                expected, abs=1e-6
            )


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_numbers_from_0_to_1_are_bytes(predictors: list[Predictor], kind: type) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    np.testing.assert_array_equal(as_decoded((every / 255).astype(kind))[..., 0], every)
    pixels = np.asarray(photo(3))
    one, two = predictors[0].predict([pixels, pixels / 255])
    np.testing.assert_array_equal(one, two)


def test_wide_values_of_either_byte_order_and_colour(predictors: list[Predictor]) -> None:
    pixels = np.asarray(photo(3))
    wide = pixels.astype(np.uint16) * 256 + 17
    one, two, three = predictors[0].predict([pixels, wide, wide.astype(">u2")])
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)


def many_channels() -> Image.Image:
    """A TIFF of which Pillow shows three channels of four."""
    file = io.BytesIO()
    pixels = np.zeros((9, 9, 4), np.uint8)
    tifffile.imwrite(file, pixels, photometric="rgb", extrasamples=["unspecified"])
    return Image.open(file)


PIXELS = np.zeros((9, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (PIXELS.astype(np.float32) + 2, "float32, from 2 to 2: expected are bytes"),
        (PIXELS - np.nan, "float64, from nan to nan"),
        (PIXELS.astype(np.int64), "int64, from 0 to 0: expected are bytes"),
        (PIXELS.astype(np.int8), "int8"),
        (PIXELS.astype(np.uint32), "uint32"),
        (PIXELS.astype(complex), "its values are complex128: expected are bytes"),
        (PIXELS.astype(object), "its values are object"),
        (PIXELS.astype(str), "its values are <U"),
        (PIXELS[:0], r"its shape is \(0, 8, 3\): it has no pixels"),
        (PIXELS[..., :0], "it has no pixels"),
        (PIXELS[0, 0], r"its shape is \(3,\): expected are rows and columns"),
        (PIXELS[None, None], "expected are rows and columns"),
        (PIXELS.transpose(2, 0, 1), "8 channels where 3 are expected"),
        (np.zeros((9, 8, 4), np.uint8), "4 channels where 3 are expected; pass Pillow's image"),
        (np.zeros((9, 8, 2), np.uint8), "2 channels where 3 are expected; pass Pillow's image"),
        (Image.new("I", (4, 4)), "32-bit values without a fixed range"),
        (Image.new("F", (4, 4)), "32-bit values without a fixed range"),
        (Image.new("L", (0, 4)), "no pixels"),
        (many_channels(), "Pillow leaves out some of its channels"),
    ],
)
def test_what_has_no_one_meaning_is_refused(
    predictors: list[Predictor], image: Any, words: str
) -> None:
    with pytest.raises(UnreadableError, match=f"image 1: .*{words}"):
        predictors[0].predict([PIXELS, image])


@pytest.mark.parametrize(
    "images",
    [
        *(PIXELS, PIXELS[0], photo(1), "a.jpg", b"bytes", Path("a.jpg"), None, 3),
        *(["a.jpg"], [None], [[[1, 2], [3, 4]]], [b"bytes"], {"a": PIXELS}, iter([PIXELS])),
    ],
    ids=lambda images: type(images).__name__,
)
def test_what_is_no_list_of_images_is_refused(predictors: list[Predictor], images: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"expected is (a list|Pillow's)"):
        predictors[0].predict(images)


def test_one_array_of_several_images(predictors: list[Predictor]) -> None:
    batch = np.stack([np.asarray(photo(seed).resize((20, 30))) for seed in range(3)])
    np.testing.assert_array_equal(predictors[0].predict(batch), predictors[0].predict([*batch]))
    assert predictors[0].predict(batch[:0]).shape == (0, len(CLASSES))


@pytest.mark.compiled
@pytest.mark.parametrize("channels", [3, 1])
def test_the_script_agrees_or_refuses(tmp_path: Path, channels: int) -> None:
    run = untrained(tmp_path / "run", channels=channels)
    script = export(run, tmp_path / "model.onnx").with_suffix(".py")
    (tmp_path / "images").mkdir()
    paths = [save(tmp_path / "images", kind, 7, turn=6) for kind in KINDS]
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(7).save(tmp_path / "images" / "mapped.tif", exif=exif)
    paths.append(tmp_path / "images" / "mapped.tif")
    wide = np.zeros((9, 9), np.int32)
    for name, image in {
        "32 bits.tiff": Image.fromarray(wide),
        "numbers.tiff": Image.fromarray(wide.astype(np.float32)),
    }.items():
        image.save(tmp_path / "images" / name)
        paths.append(tmp_path / "images" / name)
    tifffile.imwrite(
        tmp_path / "images" / "more.tif",
        np.full((9, 9, 4), 77, np.uint8),
        photometric="rgb",
        extrasamples=["unspecified"],
    )
    (tmp_path / "images" / "text.jpg").write_text("no image")
    (tmp_path / "images" / "drawing.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n")
    paths += [tmp_path / "images" / name for name in ("more.tif", "text.jpg", "drawing.jpg")]
    done = subprocess.run(
        [sys.executable, "-W", "error", script, *paths], capture_output=True, text=True
    )
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [Path(line[0]) for line in lines] == paths, done.stderr
    expected = {row.path: row for row in predict(run, paths, top=4, device="cpu")}
    for path, first, *_ in lines:
        row = expected[path]
        if row.error or "16 bits" in path:
            assert first.startswith("error: "), (path, first)
        else:
            assert first == f"{row.classes[0]} {100 * row.probabilities[0]:.1f} %", path
    refused = {Path(path).stem for path, first, *_ in lines if first.startswith("error: ")}
    assert refused == {
        *("16 bits", "16 bits in a tiff", "32 bits", "numbers", "more", "text", "drawing")
    }
    assert done.returncode == 1
