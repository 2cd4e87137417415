"""Exported files without graphs, the table of formats, and what every export is checked for."""

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
from smallvit.files import write_tensors
from smallvit.formats import FORMATS, Format, Shipped, export, timm_folder
from smallvit.formats.exporting import check, samples
from smallvit.formats.shipped import grey
from smallvit.inference import Predictor
from smallvit.runs import Card, Run
from tests.untrained import CLASSES, photo, untrained


def invoke(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_check(plain: Run) -> None:
    shipped = Shipped(plain.model(), plain.card)
    shapes = []

    def outputs(images, error=0.0):
        shapes.append(images.shape)
        logits, shares = shipped(torch.from_numpy(images))
        return logits.detach().numpy() + error, shares.detach().numpy()

    assert check(outputs, shipped, plain, "it") == 0
    assert len(set(shapes)) > 5
    with pytest.raises(ValueError, match="its logits differ from the model's by inf"):
        check(lambda images: outputs(images, np.nan), shipped, plain, "it")
    with pytest.raises(ValueError, match="it was not written"):
        check(lambda images: outputs(images, 0.1), shipped, plain, "it")


def test_the_check_takes_the_runs_own_images(tmp_path: Path, photos: Path) -> None:
    data = load_data(photos, image_size=32)
    run = untrained(tmp_path / "run", data=data.record(), source=str(photos))
    run = Run.open(run.folder)
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
    pixels = np.stack([plain.card.prepare(image) for image in images]).transpose(0, 3, 1, 2)
    logits = logits_of(model, pixels, mean=plain.card.mean, std=plain.card.std)
    np.testing.assert_allclose(logits, ours.logits(images), atol=1e-5)
    opened = Predictor.open(folder, "cpu")
    np.testing.assert_array_equal(opened.logits(images), ours.logits(images))
    assert model.pretrained_cfg["label_names"] == list(CLASSES)
    body = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).eval()
    image = torch.zeros(1, *model.pretrained_cfg["input_size"])
    assert torch.equal(body(image), model.forward_head(model.forward_features(image), True))
    other = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=9, img_size=48)
    assert other(torch.zeros(1, 3, 48, 48)).shape == (1, 9)
    assert "cct_2_3x2" in invoke("info", folder)

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
    for out, kind, message in [
        ("a.onnx", "onnx", "exists and is not overwritten"),
        ("c.onnx", "onnx", r"c\.py exists and is not overwritten"),
        ("a.bin", "onnx", r"must end with \.onnx"),
        ("a.onnx", "coreml", "format is 'coreml': allowed are onnx, pt2, safetensors, timm"),
        ("a.onnx", "timm", "exists and is not overwritten"),
    ]:
        with pytest.raises(ValueError, match=message):
            export(plain, tmp_path / out, format=kind)
    with pytest.raises(ValueError, match="is a folder"):
        export(plain, tmp_path / "b.pt2", format="pt2", force=True)
    with pytest.raises(ValueError, match="is not a run folder"):
        export(tmp_path)
    assert (tmp_path / "a.onnx").read_bytes() == b""
    localized = {**plain.info["model"], "name": "timm/vit_tiny_patch16_224+spt"}
    run = Run(plain.folder, plain.config, {**plain.info, "model": localized})
    with pytest.raises(ValueError, match="not a model that timm can build by a name"):
        timm_folder.config(run.card)


def test_cards_of_other_versions(plain: Run) -> None:
    text = plain.card.to_json()
    assert Card.from_json(text, "it") == plain.card
    with pytest.raises(ValueError, match="format 9, and this smallvit reads up to 1"):
        Card.from_json(text.replace('"format": 1', '"format": 9'), "it")
    for broken in ("{}", "[]", "{", '{"format": 1}'):
        with pytest.raises(ValueError, match="the description in it cannot be used"):
            Card.from_json(broken, "it")
    for part in ("config", "versions", "facts"):
        damaged = json.dumps({**json.loads(text), part: []})
        with pytest.raises(ValueError, match=f"cannot be used: {part} is a list"):
            Card.from_json(damaged, "it")
    for part, value, message in [
        ("classes", ["one"], r"the model has \d outputs, and 1 classes"),
        ("accuracy", "x", "accuracy is 'x'"),
        ("accuracy", [0.5], "three numbers"),
    ]:
        damaged = json.dumps({**json.loads(text), part: value})
        with pytest.raises(ValueError, match=f"cannot be used: .*{message}"):
            Card.from_json(damaged, "it")
    with pytest.raises(ValueError, match="it was not exported by smallvit"):
        Card.from_json(None, "it")


def test_a_description_with_other_classes_than_the_graph(plain: Run, tmp_path: Path) -> None:
    import onnx

    graph = onnx.load(export(plain, tmp_path / "model.onnx"))
    (record,) = [each for each in graph.metadata_props if each.key == "smallvit"]
    card = json.loads(record.value)
    card["classes"] = [*card["classes"], "another"]
    outputs, named = card["model"]["num_classes"], len(card["classes"])
    card["model"]["num_classes"] = named
    record.value = json.dumps(card)
    onnx.save(graph, tmp_path / "changed.onnx")
    image = np.zeros((20, 20, 3), np.uint8)
    with pytest.raises(
        ValueError, match=rf"gives \(1, {outputs}\) numbers .* names {named} classes"
    ):
        Predictor.open(tmp_path / "changed.onnx").predict([image])


def test_weights_and_cards_that_do_not_fit(plain: Run, tmp_path: Path) -> None:
    card = json.loads(plain.card.to_json())
    odd = {**card, "model": {**card["model"], "colour": "red"}}
    for number, described in enumerate((card, odd)):
        path = tmp_path / f"{number}.safetensors"
        write_tensors(path, {"a": torch.zeros(2)}, smallvit=json.dumps(described))
        with pytest.raises(ValueError, match=rf"{number}\.safetensors is damaged: .* do not fit"):
            Predictor.open(path, "cpu")


def test_an_encrypted_archive_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/extra/smallvit.json", "{}")
    data = bytearray(path.read_bytes())
    for at in (6, data.index(b"PK\x01\x02") + 8):
        data[at] |= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.pt2 is damaged or not a \.pt2 file: .*encrypted"):
        FORMATS["pt2"].code.read_card(path)


def test_a_graph_without_inputs_is_a_sentence(plain: Run, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    value = helper.make_tensor("value", TensorProto.FLOAT, [1, 4], [0.0] * 4)
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 4])]
    nodes = [helper.make_node("Constant", [], ["logits"], value=value)]
    opsets = [helper.make_opsetid("", 18)]
    graph = helper.make_graph(nodes, "graph", [], outputs)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    helper.set_model_props(model, {"smallvit": plain.card.to_json()})
    onnx.save(model, tmp_path / "a.onnx")
    with pytest.raises(ValueError, match=r"a\.onnx has 0 inputs: expected one"):
        Predictor.open(tmp_path / "a.onnx", "cpu")


def test_grey_is_pillows() -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (300, 400, 3), np.uint8)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    assert (grey(planes)[0, 0].numpy() == np.asarray(Image.fromarray(pixels).convert("L"))).all()


ROW = {"module": "tests.formats.npz_weights", "about": "weights for NumPy", "suffix": ".npz"}

HELP = f"""
from smallvit.formats import FORMATS, Format
FORMATS["npz"] = Format(**{ROW})
from typer.testing import CliRunner
from smallvit.cli import app
for command in ("export", "predict", "serve", "info"):
    print(CliRunner().invoke(app, [command, "--help"]).stdout, end="\\0")
"""


def test_a_format_is_one_module_and_one_row(
    plain: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "npz", Format(**ROW))
    file = tmp_path / "a.npz"
    assert "wrote" in invoke("export", plain.folder, "--format", "npz", "-o", file)
    assert set(np.load(file)) == {"smallvit", *plain.model().state_dict()}
    images = [np.array(photo(seed)) for seed in range(3)]
    ours = Predictor.open(plain, "cpu").logits(images)
    np.testing.assert_array_equal(Predictor.open(file, "cpu").logits(images), ours)
    photo(0).save(tmp_path / "a.png")
    assert invoke("predict", file, tmp_path / "a.png").startswith(f"{tmp_path / 'a.png'}\t")
    described = invoke("info", file)
    assert f"torch {torch.__version__}" in described
    assert "4: ash, =elm, fir, oak" in described
    with pytest.raises(ValueError, match=r"expected a run folder, .*\.npz"):
        Predictor.open(tmp_path / "a.png")
    done = subprocess.run(  # a fresh process: help is made when commands are imported
        [sys.executable, "-c", HELP],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    pages = done.stdout.split("\0")[:-1]
    assert len(pages) == 4
    assert all(".npz" in page for page in pages[1:])
    assert "|npz" in pages[0]
    assert f"npz: {ROW['about']}" in pages[0]


def test_onnx_files_with_another_input_name(plain: Run, tmp_path: Path) -> None:
    """Files of the first versions call their input "pictures"."""
    import onnx
    from onnx import TensorProto, helper

    sides = ["batch", "height", "width", 3]
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Cast", ["pictures"], ["floats"], to=TensorProto.FLOAT),
                helper.make_node("ReduceMean", ["floats", "axes"], ["logits"], keepdims=0),
                helper.make_node("Softmax", ["logits"], ["probabilities"]),
            ],
            "graph",
            [helper.make_tensor_value_info("pictures", TensorProto.UINT8, sides)],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3])
                for name in ("logits", "probabilities")
            ],
            [helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2])],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    card = Card(
        classes=("red", "green", "blue"),
        image_size=(8, 8),
        channels=3,
        fit="stretch",
        mean=(0, 0, 0),
        std=(1, 1, 1),
    )
    helper.set_model_props(model, {"smallvit": card.to_json()})
    onnx.save(model, tmp_path / "old.onnx")
    predictor = Predictor.open(tmp_path / "old.onnx", "cpu")
    assert predictor.card == card
    image = np.full((9, 5, 3), (10, 20, 30), np.uint8)
    np.testing.assert_allclose(predictor.logits([image]), [[10, 20, 30]])
