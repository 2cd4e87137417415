"""Run folders: created once, never overwritten, read by every later version."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from smallvit.runs.config import DataConfig, RunConfig
from smallvit.runs.folder import Run
from smallvit.runs.places import new_folder
from smallvit.runs.reading import FORMAT

GOLDEN = Path(__file__).parent.parent / "golden" / "runs"


DATA = {"classes": ["a", "b"], "image_size": [8, 9], "channels": 1, "fit": "crop"}
INFO = {"status": "training", "data": DATA, "mean": [0.5], "std": [0.2], "model": {"name": "x"}}


@pytest.fixture
def run(tmp_path):
    config = RunConfig(seed=7, data=DataConfig(image_size=(8, 9)))
    return Run.create(tmp_path / "deep" / "run", config, INFO)


def test_made_and_opened(run):
    again = Run.open(run.folder)
    assert again == run == Run.open(run) == Run.open(str(run.folder))
    assert again.config.seed == 7
    hashes = {"config.yaml": again.info["hashes"]["config.yaml"]}
    known = {"format": FORMAT, "hashes": hashes, "config": run.config.to_dict()}
    assert again.info == {**known, **INFO}
    assert not again.finished
    assert again.log() == []
    assert again.evaluation() is None
    assert again.name == "run"


def test_the_card(run):
    card = run.card
    assert (card.classes, card.image_size, card.channels) == (("a", "b"), (8, 9), 1)
    assert (run.classes, run.image_size) == (card.classes, card.image_size)
    assert (card.fit, card.mean, card.std, card.temperature) == ("crop", (0.5,), (0.2,), 1.0)
    assert card.config["seed"] == 7
    image = np.full((40, 20, 3), (10, 200, 90), np.uint8)
    prepared = card.prepare(image)
    assert prepared.shape == (8, 9, 1)
    images = torch.from_numpy(prepared.transpose(2, 0, 1)[None].copy())
    torch.testing.assert_close(card.normalise(images), (images / 255 - 0.5) / 0.2)
    shares = replace(card, temperature=2.0).probabilities(np.array([[0.0, 2 * np.log(3)]]))
    np.testing.assert_allclose(shares, [[0.25, 0.75]], rtol=1e-6)
    for change, message in (
        ({"mean": (0.5, 0.5)}, "mean has 2 and std 1 numbers"),
        ({"temperature": 0.0}, "temperature is 0"),
        ({"fit": "bend"}, "fit is 'bend'"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(card, **change)


def test_notes(run):
    noted = run.note(status="finished", temperature=2)
    assert noted.finished
    assert noted.card.temperature == 2.0
    assert Run.open(run.folder) == noted
    assert run.info["status"] == "training"


@pytest.mark.parametrize("there", ["a folder with a file", "a run", "a file"])
def test_nothing_is_overwritten(tmp_path, there):
    folder = tmp_path / "run"
    if there == "a run":
        Run.create(folder, RunConfig(), {})
    elif there == "a file":
        folder.write_text("precious")
    else:
        folder.mkdir()
        (folder / "thesis.tex").write_text("precious")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match="exists and nothing in it is overwritten"):
        Run.create(folder, RunConfig(seed=1), {})
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_an_empty_folder_is_taken(tmp_path):
    assert Run.create(tmp_path, RunConfig(), {}).folder == tmp_path


def test_what_is_no_run(tmp_path, run):
    with pytest.raises(ValueError, match=r"is not a run folder: it has no run\.json"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="there are run"):
        Run.open(run.folder.parent)
    with pytest.raises(ValueError, match="there are run"):
        Run.open(run.folder.parent / "rum")


@pytest.mark.parametrize("version", [FORMAT + 1, 999, "2", None, 1.5, 0, -1, True])
def test_other_formats_are_refused(run, version):
    (run.folder / "run.json").write_text(json.dumps({"format": version}))
    with pytest.raises(ValueError, match=rf"format (is )?{version!r}"):
        Run.open(run.folder)


def test_newer_formats_say_what_to_do(run):
    (run.folder / "run.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(ValueError, match="newer version; upgrade smallvit"):
        Run.open(run.folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", "{", "damaged"),
        ("run.json", '{"format": 2, "earlier": [3]}', "earlier holds something else"),
        ("config.yaml", "optim: {lr: [", "config.yaml is not YAML"),
        ("config.yaml", "optin: {}", "did you mean 'optim'"),
        ("config.yaml", None, "config.yaml"),
        ("config.yaml", b"\xff\xfe\x00", "config.yaml"),
        ("config.yaml", "[" * 20_000, "config.yaml"),
    ],
)
def test_damage_gets_a_sentence(run, name, text, message):
    path = run.folder / name
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError, match=message):
        Run.open(run.folder)


def test_a_log_whose_last_line_is_torn(run):
    (run.folder / "log.jsonl").write_text('{"kind": "train", "step": 1}\n{"kind": "val", "st')
    assert run.log() == [{"kind": "train", "step": 1}]


def test_free_names(tmp_path):
    assert new_folder("photos", "cct_2_3x2", tmp_path).name == "photos-cct_2_3x2-1"
    (tmp_path / "photos-cct_2_3x2-1").mkdir()
    assert new_folder("photos", "cct_2_3x2", tmp_path).name == "photos-cct_2_3x2-2"
    odd = new_folder("../my photos/ü?.npz", "timm/vit:x", tmp_path)
    assert odd.parent == tmp_path
    assert new_folder("", "", tmp_path).name == "data-data-1"


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_golden_runs_of_every_format_load(version, tmp_path):
    """The folder was run by tools/golden_run.py and must load for ever."""
    golden = GOLDEN / f"format_{version}"
    files = {path.name for path in golden.iterdir()}
    wanted = {"config.yaml", "run.json", "weights.safetensors", "last.safetensors", "log.jsonl"}
    assert wanted | {"evaluation.json", "expected.json"} == files
    assert sum(path.stat().st_size for path in golden.iterdir()) < 150_000
    expected = json.loads((golden / "expected.json").read_text())
    run = Run.open(shutil.copytree(golden, tmp_path / "copied"))
    assert run.info["format"] == version
    assert run.finished
    assert list(run.classes) == expected["classes"]
    card = run.card
    assert (list(card.mean), list(card.std)) == (expected["mean"], expected["std"])
    assert card.temperature == expected["temperature"]
    assert (card.image_size, card.channels, card.fit) == ((16, 16), 3, "letterbox")
    assert [line["kind"] for line in run.log()] == expected["kinds"]
    image = torch.tensor(
        np.random.RandomState(5).standard_normal((1, 3, 16, 16)), dtype=torch.float32
    )
    for which in ("best", "last"):
        model = run.model(which)
        assert not model.training
        with torch.inference_mode():
            logits = model(image)
        torch.testing.assert_close(logits, torch.tensor(expected[which]), rtol=0, atol=1e-4)
    assert expected["best"] != expected["last"]
    assert RunConfig.from_yaml(run.config.to_yaml()) == run.config
    evaluation = run.evaluation()
    assert evaluation.split == "test"
    assert card.measured(evaluation).accuracy[0] == evaluation.accuracy.value
    run.save_evaluation(evaluation)
    assert run.evaluation() == evaluation
    (run.folder / "evaluation.json").write_text("{")
    with pytest.raises(ValueError, match=r"evaluation\.json"):
        run.evaluation()
