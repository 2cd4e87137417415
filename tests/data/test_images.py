import io
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from smallvit.data import UnreadableError, read_image, to_channels
from smallvit.data.images import (
    MAX_PIXELS,
    NoImageError,
    TooManyPixelsError,
    as_array,
    decode,
    glance,
)
from tests.untrained import mutated, photo_bytes

HERE = Path(__file__).parent


def encoded(image: Image.Image, form: str, **how: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **how)
    return file.getvalue()


@pytest.fixture
def colours(noise: Callable[..., np.ndarray]) -> np.ndarray:
    return noise(1)


@pytest.mark.parametrize(
    ("form", "how"),
    [
        ("PNG", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {"lossless": True}),
        ("JPEG", {"quality": 100, "subsampling": 0}),
    ],
)
def test_formats_keep_their_pixels(colours: np.ndarray, form: str, how: dict[str, object]) -> None:
    pixels = read_image(encoded(Image.fromarray(colours), form, **how))
    assert abs(pixels.astype(int) - colours).max() <= (6 if form == "JPEG" else 0)


def test_grey_has_one_channel(colours: np.ndarray) -> None:
    grey = colours[..., 0]
    assert (read_image(encoded(Image.fromarray(grey), "PNG"))[..., 0] == grey).all()
    assert (
        read_image(encoded(Image.fromarray(grey > 128), "PNG"))[..., 0] == (grey > 128) * 255
    ).all()


def test_palette_is_looked_up(colours: np.ndarray) -> None:
    palette = Image.fromarray(colours).quantize(64, dither=Image.Dither.NONE)
    assert (read_image(encoded(palette, "PNG")) == np.asarray(palette.convert("RGB"))).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_images_lie_on_white(mode: str) -> None:
    image = Image.new(mode, (4, 4), (0, 0, 0, 0) if mode == "RGBA" else (0, 0))
    image.putpixel((1, 2), (10, 20, 30, 255) if mode == "RGBA" else (10, 255))
    image.putpixel((3, 3), (0, 0, 0, 51) if mode == "RGBA" else (0, 51))
    pixels = read_image(encoded(image, "PNG"))
    assert pixels.shape == (4, 4, 3 if mode == "RGBA" else 1)
    assert (pixels[0, 0] == 255).all()
    assert pixels[2, 1].tolist() == ([10, 20, 30] if mode == "RGBA" else [10])
    assert (pixels[3, 3] == 204).all()


def test_grey_that_is_multiplied_with_its_transparency_lies_on_white() -> None:
    stored, file = np.array([[[0, 0], [100, 255], [50, 127]]], np.uint8), io.BytesIO()
    tifffile.imwrite(file, stored, photometric="minisblack", extrasamples=["assocalpha"])
    assert read_image(file.getvalue())[0, :, 0].tolist() == pytest.approx([255, 100, 178], abs=1)


def test_transparent_palette_lies_on_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.putpixel((1, 0), 1)
    for form in ("PNG", "GIF"):
        pixels = read_image(encoded(image, form, transparency=0))
        assert pixels[0].tolist() == [[255, 255, 255], [200, 100, 50]], form


def test_sixteen_bits_keep_the_high_byte() -> None:
    values = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    for data in (encoded(Image.fromarray(values), "PNG"), encoded(Image.fromarray(values), "TIFF")):
        assert read_image(data)[0, :, 0].tolist() == [0, 0, 1, 128, 255]


def test_values_without_a_range_are_refused() -> None:
    for values in (np.zeros((4, 4), np.float32), np.zeros((4, 4), np.int32)):
        with pytest.raises(UnreadableError, match="save 8 or 16 bits"):
            read_image(encoded(Image.fromarray(values), "TIFF"))


def test_cmyk_comes_out_in_its_colours() -> None:
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    for form in ("JPEG", "TIFF"):
        pixels = read_image(encoded(red, form))
        assert abs(pixels.astype(int) - [255, 0, 0]).max() <= 4, form


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_exif_turns_images_upright(orientation: int, form: str) -> None:
    stored = np.zeros((20, 40, 3), np.uint8)
    stored[:10, :20] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(stored), form, exif=exif)
    pixels = read_image(data)
    turned = orientation >= 5
    assert pixels.shape == ((40, 20, 3) if turned else (20, 40, 3))
    assert glance(data).size == pixels.shape[:2]
    corners = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (0, -1), 7: (-1, -1)}
    bright = corners.get(orientation, (-1, 0))
    assert pixels[bright].min() > 200
    for other in {(0, 0), (0, -1), (-1, 0), (-1, -1)} - {bright}:
        assert pixels[other].max() < 50
    assert abs(int(glance(data).thumb[bright]) - int(pixels[bright].mean())) < 60


@pytest.mark.parametrize("orientation", [0, 9, 99])
def test_an_orientation_that_does_not_exist_turns_nothing(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.new("RGB", (40, 20)), "JPEG", exif=exif)
    assert glance(data).size == read_image(data).shape[:2] == (20, 40)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_frame_counts(form: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    how = {"lossless": True} if form == "WEBP" else {}
    data = encoded(frames[0], form, save_all=True, append_images=frames[1:], **how)
    assert read_image(data)[0, 0].tolist() == [255, 0, 0]
    assert glance(data).animated
    assert not glance(encoded(frames[0], form, **how)).animated


@pytest.mark.parametrize("channels", [2, 4, 5, 13])
@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiff_keeps_its_channels(channels: int, planar: str, dtype: type) -> None:
    values = np.random.default_rng(0).integers(0, 256, (6, 7, channels), np.uint8)
    scaled = values.astype(dtype) * (257 if dtype is np.uint16 else 1)
    stored = scaled if planar == "contig" else np.moveaxis(scaled, 2, 0).copy()
    file = io.BytesIO()
    tifffile.imwrite(
        file,
        stored,
        photometric="minisblack",
        planarconfig=planar,
        extrasamples=[0] * (channels - 1),
    )
    assert (read_image(file.getvalue()) == values).all()
    assert glance(file.getvalue()).channels == channels


def test_a_fourth_channel_that_is_no_alpha_is_kept() -> None:
    values = np.random.default_rng(0).integers(0, 256, (6, 7, 4), np.uint8)
    file = io.BytesIO()
    tifffile.imwrite(file, values, photometric="rgb", extrasamples=["unspecified"])
    assert (read_image(file.getvalue()) == values).all()


def test_without_tifffile_the_reason_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    tifffile.imwrite(
        file, np.zeros((4, 4, 5), np.uint8), photometric="minisblack", planarconfig="contig"
    )
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(UnreadableError, match=r"needs tifffile: pip install '.\[tiff\]'"):
        read_image(file.getvalue())


def test_channels_change_between_grey_and_colour_only(colours: np.ndarray) -> None:
    luma = np.asarray(Image.fromarray(colours).convert("L"))[..., None]
    for image in (colours, Image.fromarray(colours)):
        grey = to_channels(image, 1)
        assert (as_array(grey) == luma).all()
        assert (as_array(to_channels(grey, 3)) == luma).all()
        assert to_channels(image, 3) is image
    with pytest.raises(UnreadableError, match="3 channels where 5 are expected"):
        to_channels(colours, 5)


def test_a_glance_sees_what_reading_sees(photo: Path) -> None:
    seen, pixels = glance(photo.read_bytes()), read_image(photo)
    assert seen.size == pixels.shape[:2]
    assert seen.channels == 3
    small = Image.fromarray(pixels).convert("L").resize((16, 16), Image.Resampling.BILINEAR)
    assert abs(seen.thumb.astype(int) - np.asarray(small)).mean() < 3


def bomb(side: int) -> bytes:
    """A PNG of a few bytes whose valid header promises side × side pixels."""
    data = bytearray(encoded(Image.new("L", (1, 1)), "PNG"))
    data[16:24] = side.to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


# Just above our limit, where Pillow warns, and where Pillow refuses.
@pytest.mark.parametrize("side", [9_434, 10_000, 60_000])
def test_bombs_are_refused_unread(side: int) -> None:
    assert side**2 > MAX_PIXELS
    for read in (read_image, glance):
        with pytest.raises(UnreadableError, match="more than 89,000,000 pixels"):
            read(bomb(side))


def test_a_tiff_bomb_of_many_channels_is_refused_unread() -> None:
    file = io.BytesIO()
    tifffile.imwrite(
        file, np.zeros((2, 2, 5), np.uint8), photometric="minisblack", planarconfig="contig"
    )
    data = bytearray(file.getvalue())
    with tifffile.TiffFile(io.BytesIO(data)) as tiff:
        offsets = [tiff.pages[0].tags[name].valueoffset for name in ("ImageWidth", "ImageLength")]
    for offset in offsets:
        data[offset : offset + 2] = (40_000).to_bytes(2, "little")
    with pytest.raises(UnreadableError, match="more than 89,000,000 pixels"):
        read_image(bytes(data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello, I am a text\n" * 9, "none of JPEG, PNG"),
        (b"II*\0 no TIFF at all", "damaged"),
        ((HERE / "photos" / "wide.jpg").read_bytes()[:5000], "truncated"),
    ],
)
def test_what_is_not_an_image_says_why(data: bytes, reason: str) -> None:
    for read in (read_image, glance):
        with pytest.raises(UnreadableError, match=reason):
            read(data)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from(["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"]),
    position=st.floats(0, 1),
    byte=st.integers(0, 255),
    cut=st.booleans(),
)
@pytest.mark.filterwarnings("ignore")
def test_damage_is_either_survived_or_explained(
    colours: np.ndarray, form: str, position: float, byte: int, cut: bool
) -> None:
    data = bytearray(encoded(Image.fromarray(colours), form))
    where = int(position * (len(data) - 1))
    data[where] = byte
    for read in (read_image, glance):
        with suppress(UnreadableError):
            read(bytes(data[:where] if cut else data))


def test_the_reason_is_a_kind_of_error() -> None:
    data = photo_bytes(1, "PNG")
    image = Image.open(io.BytesIO(data))
    pixels = image.width * image.height
    assert decode(data, pixels).size == image.size
    with pytest.raises(TooManyPixelsError, match=f"more than {pixels - 1:,} pixels"):
        decode(data, pixels - 1)
    with pytest.raises(NoImageError):
        decode(b"words")
    many = io.BytesIO()
    zeros = np.zeros((8, 8, 500), np.uint8)
    tifffile.imwrite(many, zeros, compression="zlib", photometric="minisblack", planarconfig=1)
    assert decode(many.getvalue()).shape == (8, 8, 500)
    with pytest.raises(TooManyPixelsError):
        decode(many.getvalue(), 7999)


def test_a_tiff_of_no_width_is_damaged() -> None:
    with pytest.raises(UnreadableError, match="it has no pixels"):
        decode(mutated(34))
