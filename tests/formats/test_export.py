"""Exported files say what the run says, and nothing is written that does not."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from smallvit.cli import app
from smallvit.data import load_data, read_image
from smallvit.evaluation import logits_of
from smallvit.formats import Shipped, export, writing
from smallvit.formats.checking import check
from smallvit.formats.shipped import grey
from smallvit.inference import Card, Predictor
from smallvit.runs import Run
from tests.models.shrunk import FAMILIES
from tests.untrained import CLASSES, photo, save_photos, untrained

pytestmark = pytest.mark.compiled

FAST = {"cct_2_3x2": ("letterbox", 1), "vit_9_p4+spt+lsa": ("crop", 3)}
FITS = ("letterbox", "stretch", "crop")
CASES = [
    *FAST,
    *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name not in FAST),
]
SHAPES = [(1, 33, 21), (2, 64, 64), (5, 17, 130), (3, 32, 32), (1, 1, 1), (1, 300, 7)]


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALLVIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_photos(tmp_path_factory.mktemp("photos"), 200)


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of each family, exported to both graphs."""
    name = request.param
    fit, channels = FAST.get(name, (FITS[len(name) % 3], 3))
    made = untrained(tmp_path_factory.mktemp("run") / "run", name, fit=fit, channels=channels)
    assert export(made) == made.folder / "model.onnx"
    assert export(made, format="pt2") == made.folder / "model.pt2"
    return made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return untrained(tmp_path_factory.mktemp("plain") / "run")


def graphs(run: Run):
    """Both graphs as functions of images."""
    import onnxruntime

    session = onnxruntime.InferenceSession(run.folder / "model.onnx")
    module = torch.export.load(run.folder / "model.pt2").module()
    yield lambda images: session.run(["logits", "probabilities"], {"images": images})
    yield lambda images: [part.detach().numpy() for part in module(torch.from_numpy(images))]


def test_images_of_any_size_in_batches_of_any_size(run: Run) -> None:
    shipped = Shipped(run.model(), Card.of(run))
    random = np.random.default_rng(0)
    batches = [random.integers(0, 256, (*shape, 3), np.uint8) for shape in SHAPES]
    batches += [np.array(photo(seed))[None] for seed in range(6)]
    for answer in graphs(run):
        for images in batches:
            with torch.no_grad():
                expected = shipped(torch.from_numpy(images))
            for ours, theirs in zip(expected, answer(images), strict=True):
                np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(answer(images)[1].sum(1), 1, atol=1e-5)


def test_the_first_class_is_that_of_the_cached_path(run: Run, photos: Path) -> None:
    data = load_data(
        photos, image_size=run.image_size, fit=run.fit, channels=run.channels, val=0.0, test=0.0
    )
    cached = logits_of(run.model(), data.pixels("train"), mean=run.mean, std=run.std)
    files = [photos / name for name in data.split("train").names]
    assert len(files) == 200
    assert len(set(cached.argmax(1))) > 1
    for answer in graphs(run):
        found = np.concatenate([answer(np.array(read_image(file))[None])[0] for file in files])
        assert (found.argmax(1) == cached.argmax(1)).mean() >= 0.99
        # Pixels are the same to the byte, so more than the first class is.
        np.testing.assert_allclose(found, cached, rtol=1e-4, atol=1e-4)


def test_one_interface_for_all_files(run: Run) -> None:
    images = [np.array(photo(seed)) for seed in range(9)]
    expected = Predictor.open(run, "cpu").predict(images, flip=True)
    for name in ("model.onnx", "model.pt2"):
        predictor = Predictor.open(run.folder / name, "cpu")
        assert predictor.classes == CLASSES
        assert predictor.image_size == run.image_size
        np.testing.assert_allclose(predictor.predict(images, flip=True), expected, atol=1e-4)


def test_metadata(run: Run) -> None:
    import onnx

    model = onnx.load(run.folder / "model.onnx")
    onnx.checker.check_model(model)
    (given,) = model.graph.input
    sides = given.type.tensor_type.shape.dim
    assert given.name == "images"
    assert [side.dim_param or side.dim_value for side in sides] == ["batch", "height", "width", 3]
    assert [output.name for output in model.graph.output] == ["logits", "probabilities"]
    about = json.loads({item.key: item.value for item in model.metadata_props}["smallvit"])
    assert about["classes"] == list(CLASSES)
    assert about["temperature"] == run.temperature
    assert about["config"]["data"]["fit"] == about["fit"] == run.fit
    assert about["versions"]["torch"] == torch.__version__
    assert about["model"] == run.info["model"]


BLOCK = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
"""


def blocked(names: set[str], code: str, *args: object) -> subprocess.CompletedProcess:
    script = BLOCK.format(blocked=names) + code
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_onnx_needs_no_torch(run: Run, tmp_path: Path) -> None:
    names = {"torch", "torchvision", "timm", "safetensors", "yaml", "matplotlib", "jinja2", "onnx"}
    photo(0).save(tmp_path / "a.png")
    out = tmp_path / "out.csv"
    code = "from smallvit.cli import main; main()"
    done = blocked(names, code, "predict", run.folder / "model.onnx", tmp_path, "-o", out)
    assert done.returncode == 0, done.stderr
    assert len(out.read_text().splitlines()) == 2
    done = blocked(names, code, "info", run.folder / "model.onnx")
    assert done.returncode == 0, done.stderr
    assert f"{len(CLASSES)}: " in done.stdout


def test_the_script_beside_the_model(run: Run, tmp_path: Path) -> None:
    script = run.folder / "model.py"
    assert len(script.read_text().splitlines()) <= 45
    image = photo(4)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    image.save(tmp_path / "a.png")
    code = "import runpy; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    done = blocked({"torch", "smallvit"}, code, script, tmp_path / "a.png")
    assert done.returncode == 0, done.stderr
    path, *answers = done.stdout.rstrip("\n").split("\t")
    shares = Predictor.open(run, "cpu").predict([read_image(tmp_path / "a.png")])[0]
    expected = [f"{CLASSES[k]} {100 * shares[k]:.1f} %" for k in np.argsort(-shares)]
    assert path == str(tmp_path / "a.png")
    assert answers == expected


def test_an_older_torch_gets_a_sentence(run: Run, tmp_path: Path) -> None:
    newer = tmp_path / "newer.pt2"
    with zipfile.ZipFile(run.folder / "model.pt2") as old, zipfile.ZipFile(newer, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            if item.filename.endswith("extra/smallvit.json"):
                about = json.loads(data)
                about["versions"]["torch"] = "99.1.0"
                data = json.dumps(about).encode()
            new.writestr(item.filename, data)
    with pytest.raises(ValueError, match=r"exported with torch 99\.1\.0 and this is torch"):
        Predictor.open(newer)


def test_nothing_that_disagrees_is_written(
    plain: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = writing.traced

    def slightly_wrong(shipped: Shipped):
        shipped.temperature += 0.01
        program = traced(shipped)
        shipped.temperature -= 0.01
        return program

    monkeypatch.setattr(writing, "traced", slightly_wrong)
    with pytest.raises(ValueError, match=r"a\.pt2 was not written: .* its probabilities differ"):
        export(plain, tmp_path / "a.pt2", format="pt2")
    assert not list(tmp_path.iterdir())


def test_the_check(plain: Run) -> None:
    shipped = Shipped(plain.model(), Card.of(plain))
    shapes = []

    def answer(images, error=0.0):
        shapes.append(images.shape)
        logits, shares = shipped(torch.from_numpy(images))
        return logits.detach().numpy() + error, shares.detach().numpy()

    assert check(answer, shipped, plain, "it") == 0
    assert len(set(shapes)) > 5
    with pytest.raises(ValueError, match="its logits differ from the model's by inf"):
        check(lambda images: answer(images, np.nan), shipped, plain, "it")
    with pytest.raises(ValueError, match="it was not written"):
        check(lambda images: answer(images, 0.1), shipped, plain, "it")


def test_the_check_takes_the_runs_own_images(tmp_path: Path, photos: Path) -> None:
    data = load_data(photos, image_size=32)
    run = untrained(tmp_path / "run", data=data.record(), source=str(photos))
    run = Run.open(run.folder)
    from smallvit.formats.checking import samples

    shapes = {batch.shape[1:] for batch in samples(run, 3)}
    sizes = {read_image(path).shape for path in photos.glob("*/*.jpg")}
    assert len(shapes) > 4
    assert shapes <= sizes


def test_safetensors_and_timm(plain: Run, tmp_path: Path) -> None:
    import timm

    import smallvit.models.timm_names  # noqa: F401

    images = [np.array(photo(seed)) for seed in range(5)]
    ours = Predictor.open(plain, "cpu")
    file = export(plain, tmp_path / "a.safetensors", format="safetensors")
    np.testing.assert_array_equal(Predictor.open(file, "cpu").logits(images), ours.logits(images))

    folder = export(plain, tmp_path / "folder", format="timm")
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "model.safetensors", "README.md")
    }
    assert "import smallvit.models.timm_names" in (folder / "README.md").read_text()
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    pixels = np.stack([ours.prepare(image) for image in images]).transpose(0, 3, 1, 2)
    found = logits_of(model, pixels, mean=plain.mean, std=plain.std)
    np.testing.assert_allclose(found, ours.logits(images), atol=1e-5)
    assert model.pretrained_cfg["label_names"] == list(CLASSES)

    assert export(plain, folder, format="timm", force=True) == folder
    (folder / "mine.txt").touch()
    with pytest.raises(ValueError, match=r"holds mine\.txt, which no export wrote"):
        export(plain, folder, format="timm", force=True)
    assert (folder / "config.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "folder"]


@pytest.mark.parametrize("channels", [1, 5])
def test_timm_keeps_weights_of_other_channels(tmp_path: Path, channels: int) -> None:
    run = untrained(tmp_path / "run", channels=channels)
    export(run, tmp_path / "folder", format="timm")
    export(run, tmp_path / "a.safetensors", format="safetensors")


def test_bad_requests_are_sentences(plain: Run, tmp_path: Path) -> None:
    (tmp_path / "a.onnx").touch()
    (tmp_path / "b.pt2").mkdir()
    (tmp_path / "c.py").touch()
    for out, kind, said in [
        ("a.onnx", "onnx", "exists and is not overwritten"),
        ("c.onnx", "onnx", r"c\.py exists and is not overwritten"),
        ("a.bin", "onnx", r"must end with \.onnx"),
        ("a.onnx", "coreml", "format is 'coreml': allowed are onnx, pt2, safetensors, timm"),
        ("a.onnx", "timm", "exists and is not overwritten"),
    ]:
        with pytest.raises(ValueError, match=said):
            export(plain, tmp_path / out, format=kind)
    with pytest.raises(ValueError, match="is a folder"):
        export(plain, tmp_path / "b.pt2", format="pt2", force=True)
    with pytest.raises(ValueError, match="is no run folder"):
        export(tmp_path)
    assert (tmp_path / "a.onnx").read_bytes() == b""
    localized = {**plain.info["model"], "name": "timm/vit_tiny_patch16_224+spt"}
    run = Run(plain.folder, plain.config, {**plain.info, "model": localized})
    from smallvit.formats.timm_folder import config

    with pytest.raises(ValueError, match="no model that timm can build by a name"):
        config(Card.of(run))


def test_cards_of_other_versions(plain: Run) -> None:
    text = Card.of(plain, (0.5, 0.4, 0.6)).to_json()
    assert Card.from_json(text, "it").to_json() == text
    with pytest.raises(ValueError, match="format 9, and this smallvit reads up to 1"):
        Card.from_json(text.replace('"format": 1', '"format": 9'), "it")
    for broken in ("{}", "[]", "{", '{"format": 1}'):
        with pytest.raises(ValueError, match="the description in it cannot be used"):
            Card.from_json(broken, "it")
    with pytest.raises(ValueError, match="it was not exported by smallvit"):
        Card.from_json(None, "it")


def test_grey_is_pillows() -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (300, 400, 3), np.uint8)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    assert (grey(planes)[0, 0].numpy() == np.asarray(Image.fromarray(pixels).convert("L"))).all()


def test_the_commands(plain: Run, tmp_path: Path) -> None:
    out = tmp_path / "a.pt2"
    done = CliRunner().invoke(app, ["export", str(plain.folder), "--format", "pt2", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(f"wrote {out}\n")
    done = CliRunner().invoke(app, ["info", str(out)])
    assert f"torch {torch.__version__}" in done.stdout
    assert "cct_2_3x2" in done.stdout
