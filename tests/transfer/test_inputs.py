"""What weights say of their images, and what fine-tuning makes of it."""

import json

import pytest

from smallvit import plan
from smallvit.training import train
from smallvit.transfer.inputs import inputs_of
from tests.training.makers import arrays, tiny

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize("name", ["timm/resnet18", "resnet18", "timm/swin_tiny_patch4_window7_224"])
def test_a_timm_name_has_what_timm_lists(name):
    assert inputs_of(name) == ((224, 224), *IMAGENET)


def test_the_tag_of_the_weights_counts():
    assert inputs_of("timm/vit_base_patch16_224.mae")[1:] == IMAGENET
    assert inputs_of("timm/vit_base_patch16_224.augreg_in21k")[1:] == ((0.5,) * 3, (0.5,) * 3)
    assert inputs_of("timm/vit_base_patch16_384").image_size == (384, 384)


def test_an_authors_checkpoint_has_the_size_of_its_paper(tmp_path):
    path = tmp_path / "cct.pth"
    path.write_bytes(b"")
    assert inputs_of(path, "cct_7_7x2+lsa") == ((224, 224), (), ())
    assert inputs_of(path, "timm/resnet18").image_size == (224, 224)
    assert inputs_of(path) is None
    assert inputs_of("no/such/file.pth") is None


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SMALLVIT_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("cache_folder")
def test_a_run_hands_its_size_and_normalisation_on(tmp_path, monkeypatch):
    first = arrays(tmp_path / "a.npz", train=48, val=8, test=8)
    run = train(tiny(first, steps=1), out=tmp_path / "first", shown=False)
    mean, std = (tuple(run.info[key]) for key in ("mean", "std"))
    assert inputs_of(run.folder) == ((16, 16), mean, std)
    assert inputs_of(run.folder / "last.safetensors") == inputs_of(run.folder)
    monkeypatch.setenv("HOME", str(run.folder.parent))
    assert inputs_of(f"~/{run.name}") == inputs_of(run.folder)
    other = arrays(tmp_path / "b.npz", train=48, val=8, test=8, size=24, seed=5)
    changes = {"schedule": {"steps": 1}, "loop": {"batch_size": 16}}
    planned = plan(str(other), pretrained=str(run.folder), device="cpu", changes=changes)
    assert (planned.config.data.image_size, planned.config.data.mean) == (16, mean)
    tuned = train(planned.config, out=tmp_path / "second", shown=False)
    assert (tuple(tuned.info["mean"]), tuple(tuned.info["std"])) == (mean, std)
    assert json.loads((tuned.folder / "run.json").read_text())["data"]["image_size"] == [16, 16]
    own = {
        **changes,
        "data": {"image_size": 24, "mean": [0.5] * len(mean), "std": [0.25] * len(mean)},
    }
    chosen = plan(str(other), pretrained=str(run.folder), device="cpu", changes=own)
    assert (chosen.config.data.image_size, chosen.config.data.mean) == (24, (0.5,) * len(mean))


def test_normalisation_is_checked(tmp_path):
    source = str(arrays(tmp_path / "a.npz", train=12, val=4, test=4))
    for data, message in (
        ({"mean": [0.5]}, "give both or neither"),
        ({"mean": [0.5] * 7, "std": [0.5] * 7}, "expected one of each"),
    ):
        with pytest.raises(ValueError, match=message):
            plan(source, device="cpu", changes={"data": data})
