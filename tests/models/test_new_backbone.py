"""A new backbone is its file and one line of the registry; everything else follows."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from smallvit.explaining import explain
from smallvit.explaining.probes import receptive_field, temperatures
from smallvit.losses import DRLoc
from smallvit.models import create_model, list_models
from smallvit.models.build import describe, make_model
from smallvit.models.features import feature_shape, features_of
from smallvit.models.names import MODELS
from smallvit.models.parameters import depths, undecayed
from smallvit.transfer import start_from
from tests.models import made_up
from tests.transfer.runs import save_run

NAME = "made_up_2_p4"
SIZE = {"num_classes": 3, "image_size": (16, 24)}


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(MODELS, NAME, made_up.VARIANTS[NAME])  # the one line
    torch.manual_seed(0)


@pytest.fixture(params=["", "+spt", "+lsa", "+spt+lsa"])
def model(request):
    return create_model(NAME + request.param, **SIZE).eval()


def test_it_has_names(model):
    assert model.name in [*list_models(), *list_models("*+*")]
    again = make_model(**describe(model))
    again.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 16, 24)
    assert torch.equal(again.eval()(images), model(images))
    assert model.resized(32)(torch.randn(1, 3, 32, 32)).shape == (1, 3)


def test_it_is_explained(model):
    maps = explain(model, torch.randn(2, 3, 16, 24))
    assert maps.rollout.shape == maps.gradient.shape == (2, 4, 6)
    assert [layer.shape for layer in maps.heads] == [(2, 2, 4, 6)] * 2
    assert receptive_field(model) == (8 if "spt" in model.name else 4)
    learned = [[1, 1], [1, 1]] if "lsa" in model.name else []
    np.testing.assert_allclose(temperatures(model), learned, rtol=1e-6)


def test_its_parameters_have_layers(model):
    layers, last = depths(model)
    assert last == 3
    assert layers["tokenizer.proj.weight"] == layers["positions.table"] == 0
    assert [layers[f"blocks.{i}.mlp.fc1.weight"] for i in range(2)] == [1, 2]
    assert layers["norm.weight"] == layers["pool.score.weight"] == layers["head.weight"] == 3
    assert "positions.table" in undecayed(model)


def test_it_takes_drloc(model):
    dim, grid = feature_shape(model, (16, 24), 3)
    assert (dim, grid) == (24, (4, 6))
    features, _ = features_of(model.train(), torch.randn(2, 3, 16, 24))
    DRLoc(dim, grid)(features).backward()
    assert model.tokenizer.proj.weight.grad.abs().max() > 0


def test_it_is_fine_tuned(model, tmp_path):
    folder = save_run(tmp_path / "run", model)
    new, name, _ = start_from(
        folder, name="+spt+lsa", num_classes=5, image_size=(32, 24), in_channels=1
    )
    assert name == f"{NAME}+spt+lsa"
    assert new(torch.randn(2, 1, 32, 24)).shape == (2, 5)


def test_it_has_names_in_timm():
    code = (
        "import timm, torch\n"
        "from smallvit.models.names import MODELS\n"
        "from tests.models.made_up import VARIANTS\n"
        "MODELS |= VARIANTS\n"
        "import smallvit.models.timm_names\n"
        "model = timm.create_model('smallvit_made_up_2_p4_spt_lsa', num_classes=3, img_size=32)\n"
        "assert type(model).__name__ == 'TimmMadeUp', type(model)\n"
        "assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)\n"
        "plain = timm.create_model('smallvit_made_up_2_p4')\n"
        "assert plain.pretrained_cfg['first_conv'] == 'tokenizer.proj'\n"
        "layers = timm.models.group_parameters(plain, plain.group_matcher(), reverse=True)\n"
        "assert (layers['positions.table'], layers['head.weight']) == (0, 3)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
