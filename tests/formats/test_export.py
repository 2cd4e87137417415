"""Exported graphs give the outputs of the run, and nothing is written that does not."""

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
from smallvit.formats import Shipped, export, pt2
from smallvit.inference import Predictor
from smallvit.runs import Run
from tests.models.shrunk import FAMILIES
from tests.untrained import CLASSES, photo, untrained

pytestmark = pytest.mark.compiled

FAST = {"cct_2_3x2": ("letterbox", 1), "vit_9_p4+spt+lsa": ("crop", 3)}
FITS = ("letterbox", "stretch", "crop", "imagenet")
CASES = [
    *FAST,
    *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name not in FAST),
]
SHAPES = [(1, 33, 21), (2, 64, 64), (5, 17, 130), (3, 32, 32), (1, 1, 1), (1, 300, 7)]


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of each family, exported to both graphs."""
    name = request.param
    fit, channels = FAST.get(name, (FITS[len(name) % 4], 3))
    new = untrained(tmp_path_factory.mktemp("run") / "run", name, fit=fit, channels=channels)
    assert export(new) == new.folder / "model.onnx"
    assert export(new, format="pt2") == new.folder / "model.pt2"
    return new


def graphs(run: Run):
    """Both graphs as functions of images."""
    import onnxruntime

    session = onnxruntime.InferenceSession(run.folder / "model.onnx")
    module = torch.export.load(run.folder / "model.pt2").module()
    yield lambda images: session.run(["logits", "probabilities"], {"images": images})
    yield lambda images: [part.detach().numpy() for part in module(torch.from_numpy(images))]


def test_images_of_any_size_in_batches_of_any_size(run: Run) -> None:
    shipped = Shipped(run.model(), run.card)
    random = np.random.default_rng(0)
    batches = [random.integers(0, 256, (*shape, 3), np.uint8) for shape in SHAPES]
    batches += [np.array(photo(seed))[None] for seed in range(6)]
    for outputs in graphs(run):
        for images in batches:
            with torch.no_grad():
                expected = shipped(torch.from_numpy(images))
            for ours, theirs in zip(expected, outputs(images), strict=True):
                np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(outputs(images)[1].sum(1), 1, atol=1e-5)


def test_the_first_class_is_that_of_the_cached_path(run: Run, photos: Path) -> None:
    card = run.card
    data = load_data(
        photos, image_size=card.image_size, fit=card.fit, channels=card.channels, val=0, test=0
    )
    cached = logits_of(run.model(), data.pixels("train"), mean=card.mean, std=card.std)
    files = [photos / name for name in data.split("train").names]
    assert len(files) == 200
    assert len(set(cached.argmax(1))) > 1
    for outputs in graphs(run):
        logits = np.concatenate([outputs(np.array(read_image(file))[None])[0] for file in files])
        assert (logits.argmax(1) == cached.argmax(1)).mean() >= 0.99
        # Pixels are the same to the byte, so more than the first class is.
        np.testing.assert_allclose(logits, cached, rtol=1e-4, atol=1e-4)


def test_one_interface_for_all_files(run: Run) -> None:
    images = [np.array(photo(seed)) for seed in range(9)]
    expected = Predictor.open(run, "cpu").predict(images, flip=True)
    for name in ("model.onnx", "model.pt2"):
        predictor = Predictor.open(run.folder / name, "cpu", trust=True)
        assert predictor.card.classes == CLASSES
        assert predictor.card.image_size == run.image_size
        np.testing.assert_allclose(predictor.predict(images, flip=True), expected, atol=1e-4)


def test_metadata(run: Run) -> None:
    import onnx

    model = onnx.load(run.folder / "model.onnx")
    onnx.checker.check_model(model)
    (images,) = model.graph.input
    sides = images.type.tensor_type.shape.dim
    assert images.name == "images"
    assert [side.dim_param or side.dim_value for side in sides] == ["batch", "height", "width", 3]
    assert [output.name for output in model.graph.output] == ["logits", "probabilities"]
    about = json.loads({item.key: item.value for item in model.metadata_props}["smallvit"])
    assert about["classes"] == list(CLASSES)
    assert about["temperature"] == run.card.temperature
    assert about["config"]["data"]["fit"] == about["fit"] == run.card.fit
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
    assert len(script.read_text().splitlines()) <= 50
    image = photo(4)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    image.save(tmp_path / "a.png")
    code = "import runpy; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    done = blocked({"torch", "smallvit"}, code, script, tmp_path / "a.png")
    assert done.returncode == 0, done.stderr
    path, *predictions = done.stdout.rstrip("\n").split("\t")
    shares = Predictor.open(run, "cpu").predict([read_image(tmp_path / "a.png")])[0]
    expected = [f"{CLASSES[k]} {100 * shares[k]:.1f} %" for k in np.argsort(-shares)]
    assert path == str(tmp_path / "a.png")
    assert predictions == expected
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not an image")
    done = blocked({"torch", "smallvit"}, code, script, broken, tmp_path / "a.png")
    assert done.returncode == 1, done.stderr
    first, second = done.stdout.splitlines()
    assert first.split("\t") == [str(broken), "error: cannot identify image file"]
    assert second.split("\t")[1:] == expected


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
        Predictor.open(newer, trust=True)


def test_nothing_that_disagrees_is_written(
    plain: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = pt2.traced

    def slightly_wrong(shipped: Shipped):
        shipped.temperature += 0.01
        program = traced(shipped)
        shipped.temperature -= 0.01
        return program

    monkeypatch.setattr(pt2, "traced", slightly_wrong)
    with pytest.raises(ValueError, match=r"a\.pt2 was not written: .* its probabilities differ"):
        export(plain, tmp_path / "a.pt2", format="pt2")
    assert not list(tmp_path.iterdir())


def test_the_commands(plain: Run, tmp_path: Path) -> None:
    out = tmp_path / "a.pt2"
    done = CliRunner().invoke(app, ["export", str(plain.folder), "--format", "pt2", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(f"wrote {out}\n")
    done = CliRunner().invoke(app, ["info", str(out)])
    assert f"torch {torch.__version__}" in done.stdout
    assert "cct_2_3x2" in done.stdout
