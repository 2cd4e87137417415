"""Models by any name, and the description that rebuilds them."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from smallvit.models.build import describe, make_model
from tests.models.shrunk import FAMILIES, shrunk

TINY = {"embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 4}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_9_p4+spt+lsa", {"dim": 24, "depth": 2, "num_heads": 2, "drop_path": 0.3}),
        ("cifar_resnet56", {"width": 4}),
        ("resnet18", {}),
        ("timm/vit_tiny_patch16_224", TINY),
        ("timm/vit_tiny_patch16_224+spt+lsa", TINY),
        ("timm/mobilenetv3_small_050", {}),
    ],
)
@torch.no_grad()
def test_a_description_rebuilds_the_model(name, options):
    torch.manual_seed(0)
    model = make_model(
        name, num_classes=5, image_size=(32, 48), in_channels=2, options=options
    ).eval()
    images = torch.randn(2, 2, 32, 48)
    assert model(images).shape == (2, 5)
    described = json.loads(json.dumps(describe(model)))
    assert set(described) == {"name", "options", "image_size", "in_channels", "num_classes"}
    assert described["name"] == name
    again = make_model(**described).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(images), model(images))


@pytest.mark.parametrize("name", FAMILIES)
def test_descriptions_hold_every_option_that_is_not_the_name(name):
    model = shrunk(name, dropout=0.2)
    described = describe(model)
    assert described["options"]["dropout"] == 0.2
    assert make_model(**json.loads(json.dumps(described))).config == model.config
    plain = shrunk(name).config
    assert "dropout" not in describe(shrunk(name))["options"], plain


def test_ours_need_no_timm():
    code = (
        "import sys\nfrom smallvit.models.build import make_model\n"
        "import smallvit.models.features, smallvit.models.parameters\n"
        "for name in ('cct_2_3x1', 'cifar_resnet56'):\n"
        "    make_model(name, num_classes=3, image_size=32)\n"
        "assert 'timm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cifar_resnet65", "there is no model 'cifar_resnet65'; did you mean 'cifar_resnet56'"),
        ("cct_7_3x", "did you mean 'cct_7_3x"),
        ("vit_9_p4+lsa+spt", "in this order"),
        ("timm/resnet18x", "timm has no model 'resnet18x'; did you mean"),
        ("timm/vit_tiny_patch16_224+lsa+spt", "in this order"),
        ("timm/resnet10t+lsa", "cannot localize a ResNet"),
    ],
)
def test_wrong_names_get_a_sentence(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_model(name, num_classes=3, image_size=32)


def test_wrong_options_get_a_sentence():
    with pytest.raises(ValueError, match="kernel is 4: allowed are odd numbers"):
        make_model("cct_7_3x1", num_classes=3, image_size=32, options={"kernel": 4})
    with pytest.raises(ValueError, match=r"kernels is .* allowed are odd numbers"):
        make_model("cvt_13", num_classes=3, image_size=32, options={"kernels": (4, 3, 3)})
    with pytest.raises(ValueError, match=r"could not build resnet10t with .*depht=3"):
        make_model("timm/resnet10t", num_classes=3, image_size=32, options={"depht": 3})
    with pytest.raises(ValueError, match="did you mean 'depth'"):
        make_model("cct_2_3x1", num_classes=3, image_size=32, options={"depht": 3})
    with pytest.raises(ValueError, match="that make_model did not build has no name"):
        describe(nn.Linear(1, 1))
