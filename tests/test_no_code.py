"""Nothing that is read runs code: weights, configs, arrays, tables, exports, images, names.

Each attempt is one row: what is tried, and the sentence that refuses it, or nothing where it is
harmless. None may leave its canary behind. The payloads themselves work: where something else reads
them, they do leave it.
"""

import contextlib
import csv
import io
import json
import pickle
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from PIL import Image, PngImagePlugin
from typer.testing import CliRunner

import smallvit
from smallvit.cli import app
from smallvit.data import load_data, read_image
from smallvit.data.survey import survey_files
from smallvit.evaluation import measure
from smallvit.formats import format_of
from smallvit.inference import Card, Predictor, Row, predict, write_rows
from smallvit.models.build import make_model
from smallvit.runs import Run, RunConfig
from smallvit.runs.changes import changes_of, read_changes
from smallvit.server import Limits
from smallvit.transfer.start import start_from
from tests import hostile
from tests.hostile import Payload, command, source
from tests.untrained import photo, save_photos, untrained

SIZES: dict[str, Any] = {"num_classes": 3, "image_size": 32, "in_channels": 3}


class Ground(NamedTuple):
    """Where an attempt takes place.

    Attributes:
        folder: An empty folder.
        canary: A file that must not come to be.
        run: The folder of a run of its own.
    """

    folder: Path
    canary: Path
    run: Path

    def write(self, name: str, data: bytes | str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    def edit(self, name: str, **changes: Any) -> None:
        """Changes keys of a JSON file of the run; a dict changes the keys below."""
        path = self.run / name
        data = json.loads(path.read_text())
        for key, value in changes.items():
            data[key] = {**data[key], **value} if isinstance(value, dict) else value
        path.write_text(json.dumps(data))


Attempt = Callable[[Ground], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("run") / "run").folder


@pytest.fixture
def ground(tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("SMALLVIT_CACHE", str(tmp_path / "cache"))
    ground = Ground(tmp_path / "here", tmp_path / "canary", tmp_path / "run")
    shutil.copytree(original, ground.run)
    yield ground
    assert not ground.canary.exists()


def checkpoint(name: str, payload: Callable[[Path], bytes], model: str) -> Attempt:
    """Weights for fine-tuning: ours by a reference's layout, or timm's."""
    return lambda at: start_from(at.write(name, payload(at.canary)), name=model, **SIZES)


def config_tag(text: str) -> Attempt:
    """A config file with a tag of Python's."""
    return lambda at: read_changes(at.write("c.yaml", text.format(*at)))


def own_config(at: Ground) -> object:
    text = f"optim: !!python/object/apply:os.mkdir [{at.canary}]\n"
    (at.run / "config.yaml").write_text(text)
    return Run.open(at.run)


def array(name: str, payload: Callable[[Path], bytes]) -> Attempt:
    """An .npz file one of whose members is no plain array."""
    return lambda at: load_data(
        hostile.npz(at.folder / "d.npz", **{name: payload(at.canary)}), image_size=8
    )


def poisoned_survey(at: Ground) -> object:
    """What was kept of a folder of images is replaced by arrays of objects."""
    paths = sorted(save_photos(at.folder / "photos", 8).glob("*/*.jpg"))
    before = survey_files(paths, clock=lambda: 10**20).digests
    (kept,) = (at.folder.parent / "cache").rglob("*.npz")
    objects = np.array([Payload(at.canary)], object)
    np.savez(kept, allow_pickle=True, **{name: objects for name in np.load(kept).files})
    np.testing.assert_array_equal(survey_files(paths).digests, before)
    return None


def poisoned_pixels(at: Ground) -> object:
    """Decoded images in the cache are replaced by an array of objects."""
    dataset = load_data(save_photos(at.folder / "photos", 8), image_size=16)
    expected = dataset.pixels("train").copy()
    kept = list((at.folder.parent / "cache").rglob("*.npy"))
    assert kept
    for path in kept:
        path.write_bytes(hostile.npy(at.canary))
    with contextlib.suppress(ValueError):
        np.testing.assert_array_equal(dataset.pixels("train"), expected)
    return None


def table(cell: str) -> Attempt:
    """A table whose paths and labels are commands and formulas."""

    def attempt(at: Ground) -> object:
        photo(1).save(at.folder / "a.png")
        text = cell.format(*at)
        with (at.folder / "t.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["path", "label"], ["a.png", text], [text, "b"]])
        return load_data(at.folder / "t.csv", val=0, test=0).pixels("train")

    return attempt


def parquet(at: Ground) -> object:
    for number in range(4):
        photo(number).save(at.folder / f"{number}.png")
    rows = {"path": [f"{i}.png" for i in range(4)], "label": ["a", "b", "a", "b"]}
    return load_data(hostile.parquet(at.folder / "t.parquet", at.canary, rows), image_size=16)


def cifar(at: Ground) -> object:
    """A named dataset whose published files are pickles."""
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"]:
        at.write(f"cifar-10-batches-py/{name}", hostile.pickled(at.canary))
    return load_data("cifar10", root=at.folder)


def shipped_card(changes: dict[str, Any]) -> Attempt:
    """A .safetensors file whose card says how the model is built."""

    def attempt(at: Ground) -> object:
        card = json.loads(Run.open(at.run).card.to_json())
        weights = at.write("evil.pth", hostile.torch_zip(at.canary))
        text = json.dumps({**card, "model": {**card["model"], **changes}})
        text = text.replace("EVIL", str(weights)).replace("FOLDER", str(at.folder))
        data = hostile.safetensors({"a": torch.zeros(2)}, smallvit=text)
        return Predictor.open(at.write("m.safetensors", data), "cpu")

    return attempt


def timm_folder(at: Ground) -> object:
    """A folder of timm's whose weights are a pickle beside the tensors."""
    folder = smallvit.export(at.run, at.folder / "timm", format="timm")
    for name in ("pytorch_model.bin", "model.bin", "hubconf.py"):
        (folder / name).write_bytes(hostile.torch_zip(at.canary))
    (folder / "model.safetensors").write_bytes(hostile.torch_zip(at.canary))
    return Predictor.open(folder, "cpu")


def timm_model(name: str, **options: Any) -> Attempt:
    def attempt(at: Ground) -> object:
        weights = at.write("evil.pth", hostile.torch_zip(at.canary))
        about = {"architecture": "resnet18", "num_classes": 3, "pretrained_cfg": {}}
        at.write("config.json", json.dumps(about))
        at.write("pytorch_model.bin", hostile.torch_zip(at.canary))
        found = {
            key: str(weights) if value == "EVIL" else {"file": str(weights)}
            for key, value in options.items()
        }
        return make_model(name.format(*at), **SIZES, options=found)

    return attempt


def run_options(at: Ground) -> object:
    weights = at.write("evil.pth", hostile.torch_zip(at.canary))
    about = {"name": "resnet18", "options": {"checkpoint_path": str(weights)}}
    at.edit("run.json", model=about)
    return Predictor.open(at.run, "cpu")


def run_weights(at: Ground) -> object:
    (at.run / "weights.safetensors").write_bytes(hostile.torch_zip(at.canary))
    return Predictor.open(at.run, "cpu")


def image(data: Callable[[Ground], bytes], name: str = "a.jpg") -> Attempt:
    return lambda at: read_image(at.write(name, data(at)))


def postscript(at: Ground) -> bytes:
    """Pillow hands these to another program."""
    program = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%{command(at.canary)}) "
    return program.encode() + b"(w) file closefile showpage\n%%EOF\n"


def chatty_png(at: Ground) -> bytes:
    """Text in every place that an image has for it."""
    about = PngImagePlugin.PngInfo()
    for key in ("Software", "eval", "XML:com.adobe.xmp"):
        about.add_itxt(key, f"{source(at.canary)} $({command(at.canary)})")
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = f"$({command(at.canary)})"
    photo(1).save(file, "PNG", pnginfo=about, exif=exif)
    return file.getvalue()


def chatty_tiff(at: Ground) -> bytes:
    import tifffile

    file = io.BytesIO()
    pixels = np.zeros((9, 9, 5), np.uint8)
    text = f'{{"shape": [9, 9, 5], "x": {source(at.canary)}}}\nImageJ=1\n{source(at.canary)}'
    options: dict[str, Any] = {"photometric": "minisblack", "planarconfig": 1, "metadata": None}
    tifffile.imwrite(file, pixels, description=text, software=source(at.canary), **options)
    return file.getvalue()


def onnx_file(at: Ground, **changes: Any) -> Path:
    """A graph with a card, and one initializer or node that should not be there."""
    import onnx
    from onnx import TensorProto, helper

    weight = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=changes.get("location", ""))
    operator, domain = changes.get("operator", ("Add", ""))
    node = helper.make_node(operator, ["x", "w"], ["y"], domain=domain)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    versions = [helper.make_opsetid("", 18), helper.make_opsetid(domain or "other", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=9)
    model.metadata_props.add(key="smallvit", value=Run.open(at.run).card.to_json())
    return at.write("m/m.onnx", model.SerializeToString())


def external(location: str) -> Attempt:
    def attempt(at: Ground) -> object:
        at.write("secret.bin", bytes(16))
        return Predictor.open(onnx_file(at, location=location.format(*at)), "cpu")

    return attempt


def operator(name: str, domain: str) -> Attempt:
    def attempt(at: Ground) -> object:
        path = onnx_file(at, operator=(name, domain), location="near.bin")
        at.write("m/near.bin", bytes(16))
        return Predictor.open(path, "cpu")

    return attempt


def printed(name: str) -> Attempt:
    """Names on the terminal cannot give it commands."""

    def attempt(at: Ground) -> object:
        path = at.folder / f"{name}.png"
        photo(1).save(path)
        done = CliRunner().invoke(app, ["predict", str(at.run), str(path)])
        assert done.exit_code == 0, done.output
        assert "\x1b" not in done.output
        assert "\x07" not in done.output
        return None

    return attempt


def spreadsheet(text: str) -> Attempt:
    """No cell of a table of predictions is a formula."""

    def attempt(at: Ground) -> object:
        row = Row(path=text, classes=(text,), probabilities=(1.0,))
        write_rows([row, Row(path=text, error=text)], at.folder / "out.csv", top=1)
        cells = list(csv.reader((at.folder / "out.csv").open(newline="")))
        assert len(cells) == 3
        assert not [cell for line in cells for cell in line if cell[:1] in "=+-@\t\r" and cell]
        return None

    return attempt


OBJECT = "holds Python objects"
TENSORS = "holds more than tensors, and reading it could run code"
BROKEN = "could not be read as a checkpoint"
TAG = "could not determine a constructor for the tag"
LOADS = "is not an option of"
NAMES = ("$(touch canary)", "`touch canary`", "a; touch canary", "| touch canary", "-rf", "%n%s")

ATTEMPTS: dict[str, tuple[Attempt, str]] = {
    # Weights.
    "pickle as .pt": (checkpoint("a.pt", hostile.pickled, "vit_9_p4"), TENSORS),
    "pickle as .bin": (checkpoint("a.bin", hostile.pickled, "timm/resnet18"), TENSORS),
    "torch.save as .pth": (checkpoint("a.pth", hostile.torch_zip, "timm/resnet18"), TENSORS),
    "torch.save as .ckpt": (checkpoint("a.ckpt", hostile.torch_zip, "vit_9_p4"), TENSORS),
    "legacy torch.save": (checkpoint("a.pt", hostile.torch_legacy, "vit_9_p4"), TENSORS),
    "torch's tar files": (checkpoint("a.pt", hostile.torch_tar, "vit_9_p4"), "a.pt"),
    "TorchScript": (checkpoint("a.pt", hostile.torch_script, "vit_9_p4"), "a.pt"),
    "a pickle called .safetensors": (
        checkpoint("a.safetensors", hostile.pickled, "vit_9_p4"),
        BROKEN,
    ),
    "a pickle for load_reference": (
        lambda at: smallvit.load_reference(
            at.write("a.pth", hostile.torch_zip(at.canary)), model="vit_9_p4", image_size=32
        ),
        TENSORS,
    ),
    "a pickle in a run folder": (run_weights, "damaged or not a safetensors file"),
    "code in safetensors' metadata": (
        lambda at: Predictor.open(
            at.write(
                "a.safetensors",
                hostile.safetensors({"a": torch.zeros(1)}, smallvit=source(at.canary)),
            )
        ),
        "the description in .* cannot be used",
    ),
    "a card that names weights": (
        shipped_card({"name": "timm/resnet18", "options": {"checkpoint_path": "EVIL"}}),
        LOADS,
    ),
    "a card that names a folder": (
        shipped_card({"name": "timm/local-dir:FOLDER"}),
        "timm has no model",
    ),
    "a card that names Python": (
        shipped_card({"name": "__import__('os').system"}),
        "there is no model",
    ),
    "a card with a layer by name": (
        shipped_card({"name": "timm/resnet18", "options": {"act_layer": "os.system"}}),
        "timm could not build",
    ),
    "a pickle in a timm folder": (timm_folder, "damaged or not a safetensors file"),
    "a run that names weights": (run_options, LOADS),
    # Names and options of timm.
    "timm's local-dir": (timm_model("timm/local-dir:{0}"), "timm has no model"),
    "timm's hub": (timm_model("timm/hf-hub:some/body"), "timm has no model"),
    "timm's checkpoint_path": (timm_model("timm/resnet18", checkpoint_path="EVIL"), LOADS),
    "a baseline's checkpoint_path": (timm_model("resnet18", checkpoint_path="EVIL"), LOADS),
    "timm's pretrained_cfg": (timm_model("timm/resnet18", pretrained_cfg={}), LOADS),
    "timm's overlay": (timm_model("resnet18", pretrained_cfg_overlay={}), LOADS),
    "timm's pretrained": (timm_model("resnet18", pretrained="EVIL"), LOADS),
    # Configs.
    "YAML's apply": (config_tag("seed: !!python/object/apply:os.mkdir [{1}]"), TAG),
    "YAML's new": (
        config_tag("!!python/object/new:type\nargs: ['x', !!python/tuple [], {{'a': 1}}]"),
        TAG,
    ),
    "YAML's name": (config_tag("seed: !!python/name:os.system"), TAG),
    "YAML's module": (config_tag("seed: !!python/module:antigravity"), TAG),
    "YAML's object": (config_tag("!!python/object:subprocess.Popen {{args: touch {1}}}"), TAG),
    "YAML 20,000 levels deep": (
        lambda at: read_changes(at.write("c.yaml", "[" * 20_000)),
        "more than 50 levels deep",
    ),
    "YAML mappings 20,000 levels deep": (
        lambda at: read_changes(at.write("c.yaml", "{a: " * 20_000)),
        "more than 50 levels deep",
    ),
    "YAML that grows": (
        lambda at: read_changes(
            at.write(
                "c.yaml",
                "a: &a [x, x]\n"
                + "".join(
                    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
                ),
            )
        ),
        "no \\*alias is read",
    ),
    "a tag on the command line": (
        lambda at: changes_of([f"seed=!!python/object/apply:os.mkdir [{at.canary}]"]),
        TAG,
    ),
    "a tag in a run's config": (own_config, TAG),
    "an expression instead of a number": (
        lambda at: RunConfig.from_dict({"optim": {"lr": source(at.canary)}}),
        "expected a number",
    ),
    # Arrays.
    "objects as images": (array("images", hostile.npy), OBJECT),
    "objects as labels": (array("labels", hostile.npy), OBJECT),
    "objects as splits": (array("split", hostile.npy), OBJECT),
    "objects as classes": (array("classes", hostile.npy), OBJECT),
    "a pickle as a member": (array("labels", hostile.pickled), "labels .* is not an array"),
    "an expression as a header": (array("labels", hostile.npy_header), "labels .* damaged"),
    "a pickle called .npz": (
        lambda at: load_data(at.write("d.npz", hostile.pickled(at.canary))),
        "is not an .npz file",
    ),
    "an .npy file called .npz": (
        lambda at: load_data(at.write("d.npz", hostile.npy(at.canary))),
        "is not an .npz file",
    ),
    "objects in an unused member": (array("notes", hostile.npy), ""),
    "objects in the kept survey": (poisoned_survey, ""),
    "objects in the cache": (poisoned_pixels, ""),
    # Tables and named datasets.
    "a formula in a table": (table("=cmd|'/C touch {1}'!A0"), "cannot be read"),
    "a command in a table": (table("$(touch {1})"), "cannot be read"),
    "a pipe in a table": (table("|touch {1}"), "cannot be read"),
    "a pickled type in Parquet": (parquet, ""),
    "pickles as CIFAR-10": (cifar, "cifar10 is not in"),
    # Images.
    "PostScript called .jpg": (image(postscript), "none of JPEG, PNG"),
    "a script called .png": (
        image(lambda at: f"#!/bin/sh\n{command(at.canary)}\n".encode(), "a.png"),
        "none of JPEG, PNG",
    ),
    "SVG called .png": (
        image(lambda at: b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", "a.png"),
        "none of JPEG, PNG",
    ),
    "a pickle called .tiff": (
        image(lambda at: hostile.pickled(at.canary), "a.tiff"),
        "none of JPEG, PNG",
    ),
    "code in an image's texts": (image(chatty_png, "a.png"), ""),
    "code in a TIFF's texts": (image(chatty_tiff, "a.tif"), ""),
    # Names in the terminal and in spreadsheets.
    "terminal colours": (printed("\x1b[31mred"), ""),
    "a terminal's title": (printed("\x1b]0;title\x07"), ""),
    "a terminal's answer": (printed("\x9b6n"), ""),
    **{f"file {name}": (printed(name.replace("/", "")), "") for name in NAMES},
    **{
        f"cell {text!r}": (spreadsheet(text), "")
        for text in ("=1+1", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1")
    },
}

GRAPHS: dict[str, tuple[Attempt, str]] = {
    "external data above the model": (external("../secret.bin"), "damaged or not an ONNX model"),
    "external data by its full path": (external("{0}/secret.bin"), "not an ONNX model"),
    "external data of the system": (external("/etc/passwd"), "damaged or not an ONNX model"),
    "an unknown operator": (operator("Run", "evil"), "damaged or not an ONNX model"),
    "an operator of Python's": (operator("PythonOp", "com.microsoft"), "not an ONNX model"),
    "another's context": (operator("EPContext", "com.microsoft"), "not an ONNX model"),
    "a pickle called .onnx": (
        lambda at: Predictor.open(at.write("m.onnx", hostile.pickled(at.canary)), "cpu"),
        "damaged or not an ONNX model",
    ),
}

LIVE = ("formula", "sample_inputs", "weights", "guards", "constants")
"""Ways in which opening a .pt2 file runs code, today."""

DEAD = ("operator", "library")


def test_there_are_enough_attempts() -> None:
    assert len(ATTEMPTS) + len(GRAPHS) + len(LIVE) + len(DEAD) + len(PAGES) >= 80


def tried(attempt: Attempt, refusal: str, ground: Ground) -> None:
    if not refusal:
        attempt(ground)
        return
    with pytest.raises((ValueError, OSError), match=refusal):
        attempt(ground)


@pytest.mark.filterwarnings("ignore")  # of decoders
@pytest.mark.parametrize(("attempt", "refusal"), ATTEMPTS.values(), ids=ATTEMPTS)
def test_reading_runs_nothing(attempt: Attempt, refusal: str, ground: Ground) -> None:
    tried(attempt, refusal, ground)


@pytest.mark.compiled
@pytest.mark.parametrize(("attempt", "refusal"), GRAPHS.values(), ids=GRAPHS)
def test_onnx_files_run_nothing(attempt: Attempt, refusal: str, ground: Ground) -> None:
    tried(attempt, refusal, ground)


@pytest.fixture(scope="module")
def graph(original: Path) -> bytes:
    card = json.loads(Run.open(original).card.to_json())
    return hostile.exported(json.dumps({**card, "versions": {}}))


@pytest.mark.compiled
@pytest.mark.parametrize("way", [*LIVE, *DEAD])
def test_pt2_files_ask_for_trust(way: str, graph: bytes, ground: Ground) -> None:
    path = ground.write("m.pt2", getattr(hostile, f"pt2_{way}")(graph, ground.canary))
    image = ground.folder / "a.png"
    photo(1).save(image)
    with pytest.raises(ValueError, match=r"can hold code that runs .* --trust \(trust=True\)"):
        Predictor.open(path, "cpu")
    with pytest.raises(ValueError, match="--trust"):
        predict(path, image)
    with pytest.raises(ValueError, match="--trust"):
        smallvit.serve(path, port=0)
    for words in (["predict", str(path), str(image)], ["serve", str(path), "--port", "0"]):
        done = CliRunner().invoke(app, words)
        assert "--trust" in str(done.exception)
    # What it is can be said without opening the graph.
    assert format_of(path).code.read_card(path).classes  # type: ignore[union-attr]
    assert CliRunner().invoke(app, ["info", str(path)]).exit_code == 0


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", LIVE)
def test_trust_means_that_code_runs(way: str, graph: bytes, tmp_path: Path) -> None:
    """So the attempts above would have succeeded."""
    path = tmp_path / "m.pt2"
    path.write_bytes(getattr(hostile, f"pt2_{way}")(graph, tmp_path / "canary"))
    image = np.zeros((4, 5, 3), np.uint8)
    with contextlib.suppress(Exception):
        Predictor.open(path, "cpu", trust=True).forward(image[None])
    if way == "constants" and torch.__version__ < (2, 12):
        pytest.skip("torch 2.11 runs no code that it finds among constants")
    assert (tmp_path / "canary").exists()


@pytest.mark.compiled
def test_exported_graphs_hold_no_code(original: Path, tmp_path: Path) -> None:
    path = smallvit.export(original, tmp_path / "m.pt2", format="pt2")
    with zipfile.ZipFile(path) as archive:
        members = {
            item.filename.partition("/")[2]: archive.read(item) for item in archive.infolist()
        }
    assert members["data/sample_inputs/model.pt"] == b""
    assert not [name for name in members if name.endswith((".so", ".pkl"))]
    for name in (
        "data/weights/model_weights_config.json",
        "data/constants/model_constants_config.json",
    ):
        assert b'"use_pickle": true' not in members[name]
    graph = json.loads(members["models/model.json"])
    formulas: list[str] = []

    def collect(tree: Any) -> None:
        if isinstance(tree, dict):
            formulas.extend(v for k, v in tree.items() if k == "expr_str")
        for each in (
            tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
        ):
            collect(each)

    collect(graph)
    plain = r"(Add|Mul|Pow|FloorDiv|Integer|Symbol|s\d+|positive|integer|True|[-\d(),=' ])*"
    assert formulas
    assert all(re.fullmatch(plain, formula) for formula in formulas), formulas
    assert graph["guards_code"] == []
    # It opens where it is trusted, and gives what the run gives.
    image = [np.array(photo(3))]
    ours = Predictor.open(original, "cpu").predict(image)
    theirs = Predictor.open(path, "cpu", trust=True).predict(image)
    np.testing.assert_allclose(theirs, ours, atol=1e-4)


NAMES_ON_PAGES = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<svg><script href='data:,alert(1)'/></svg>",
    "</style></title></textarea><iframe src=javascript:alert(1)>",
    "\"'onmouseover='alert(1)' x=\"",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% for x in y %}",
    "${alert(1)}`alert(1)`",
    "--><!--<b>",
    "&lt;script&gt;&#60;b&#62;",
    "]]><![CDATA[<b>",
    "\u202e\u2066txt.exe",
)
PAGES = [(page, name) for page in ("report", "server") for name in NAMES_ON_PAGES]


class Skeleton(HTMLParser):
    """A page without its words: tags, and the names of their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.parts: list[tuple[str, ...]] = []
        self.scripts: list[str] = []
        self.links: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.append((tag, *(name for name, _ in attrs)))
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_endtag(self, tag: str) -> None:
        self.parts.append((f"/{tag}",))

    def handle_data(self, data: str) -> None:
        if self.parts and self.parts[-1][0] == "script":
            self.scripts.append(data)


def report_page(folder: Path, name: str) -> str:
    """The report of a run with a class, files and a data folder of that name."""
    classes = [name, "ash", "elm", "fir"]
    record = {
        "classes": classes,
        "image_size": [32, 32],
        "channels": 3,
        "fit": "letterbox",
        "source": f"data/{name}",
        "fingerprint": "0",
        "counts": {"train": 9, "test": 20},
    }
    run = untrained(folder / "run", data=record, source=f"data/{name}")
    run.note(notes=[name], command=f"smallvit train '{name}'", status=name)
    logits = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    names = [f"{name}/{number}.png" for number in range(20)]
    truth = np.arange(20) % 4
    run.save_evaluation(measure(logits, truth, classes, split="test", names=names))
    return smallvit.report(run.folder, device="cpu").read_text(encoding="utf-8")


def server_page(folder: Path, name: str) -> str:
    from starlette.testclient import TestClient

    from smallvit.server.app import make_app

    card = Card(
        classes=(name, "ash"),
        image_size=(8, 8),
        channels=1,
        fit="crop",
        mean=(0.5,),
        std=(0.5,),
        model={"name": name},
    )
    return TestClient(make_app(Predictor(card, lambda pixels: pixels), Limits())).get("/").text


MAKERS = {"report": report_page, "server": server_page}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Skeleton]:
    """The pages with a plain name."""
    folder = tmp_path_factory.mktemp("plain")
    return {page: Skeleton(make(folder, "plain")) for page, make in MAKERS.items()}


@pytest.mark.parametrize(("page", "name"), PAGES)
def test_names_on_pages_are_words(
    page: str, name: str, tmp_path: Path, plain: dict[str, Skeleton]
) -> None:
    named = Skeleton(MAKERS[page](tmp_path, name))
    assert named.parts == plain[page].parts
    assert named.scripts == plain[page].scripts
    assert not [link for link in named.links if link.startswith("javascript:")]


READERS: dict[str, Callable[[Path], object]] = {
    "pickle": lambda canary: pickle.loads(hostile.pickled(canary)),
    "torch": lambda canary: torch.load(io.BytesIO(hostile.torch_zip(canary)), weights_only=False),
    "legacy": lambda canary: torch.load(
        io.BytesIO(hostile.torch_legacy(canary)), weights_only=False
    ),
    "numpy": lambda canary: np.load(io.BytesIO(hostile.npy(canary)), allow_pickle=True),
    "yaml": lambda canary: yaml.unsafe_load(f"!!python/object/apply:os.mkdir [{canary}]"),
    "source": lambda canary: eval(source(canary)),
    "command": lambda canary: subprocess.run(command(canary), shell=True, check=True),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_the_payloads_work(read: Callable[[Path], object], tmp_path: Path) -> None:
    read(tmp_path / "canary")
    assert (tmp_path / "canary").exists()
