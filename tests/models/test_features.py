"""Tokens, grid, pooled vector and logits from one pass of any backbone."""

import pytest
import timm
import torch
from timm.models.mlp_mixer import MlpMixer
from torch import nn

from smallvit.losses import DRLoc
from smallvit.models.build import make_model
from smallvit.models.features import feature_shape, features_of
from smallvit.models.timm_names import localize
from tests.models.shrunk import FAMILIES, shrunk
from tests.models.timm_makers import MAKERS, SMALL_VIT, stir

CNNS = {
    "cifar": lambda: make_model("cifar_resnet56", num_classes=5, image_size=32),
    "resnet": lambda: make_model("resnet18", num_classes=5, image_size=32),
    "efficientnet": lambda: make_model("efficientnet_b0", num_classes=5, image_size=32),
    "convnext": lambda: timm.create_model("convnext_atto", num_classes=5),
    "mobilenet": lambda: timm.create_model("mobilenetv3_small_050", num_classes=5),
}
VITS = {
    **{kind: MAKERS[kind] for kind in ("vit", "deit", "cait", "swin")},
    "mean": lambda: SMALL_VIT(class_token=False, global_pool="avg"),
    "registers": lambda: SMALL_VIT(reg_tokens=3),
    "any_size": lambda: SMALL_VIT(dynamic_img_size=True),
    "local": lambda: localize(SMALL_VIT()),
    "ours": lambda: timm.create_model("smallvit_cct_2_3x1", num_classes=5, img_size=32),
    "mixer": lambda: MlpMixer(img_size=32, patch_size=8, num_blocks=1, embed_dim=16, num_classes=5),
}
GRIDS = dict.fromkeys(VITS, 8) | {"swin": 2, "ours": 16, "mixer": 4}
GRIDS |= {"cifar": 8, "resnet": 4, "efficientnet": 2, "convnext": 1, "mobilenet": 1}


@pytest.mark.parametrize("kind", [*CNNS, *VITS])
@torch.no_grad()
def test_logits_are_the_models_own(kind):
    torch.manual_seed(0)
    model = stir({**CNNS, **VITS}[kind](), 0.02).eval()
    images = torch.randn(2, 3, 32, 32)
    calls = []
    hook = next(part for part in model.modules() if isinstance(part, nn.Conv2d))
    hook.register_forward_hook(lambda *_: calls.append(1))
    features, logits = features_of(model, images)
    assert len(calls) == 1, "one pass"
    torch.testing.assert_close(logits, model(images))
    assert features.grid == (GRIDS[kind],) * 2
    assert features.tokens.shape[:2] == (2, GRIDS[kind] ** 2)
    assert features.pooled.shape[0] == 2
    shape = feature_shape(model, 32, 3)
    assert shape == (features.tokens.shape[2], features.grid)


@pytest.mark.parametrize("kind", ["vit", "swin", "resnet"])
@torch.no_grad()
def test_tokens_stand_where_they_look(kind):
    """An image that changes in one corner changes the token of that corner first."""
    torch.manual_seed(1)
    model = stir({**CNNS, **VITS}[kind](), 0.01).eval()
    if kind == "vit":  # each token alone: what attention mixes is left out
        for block in model.blocks:
            block.attn.proj.weight.zero_()
            block.attn.proj.bias.zero_()
    images = torch.randn(1, 3, 32, 32)
    changed = images.clone()
    changed[..., :4, 28:] += 3
    before, after = (features_of(model, x)[0].tokens for x in (images, changed))
    side = GRIDS[kind]
    moved = (before - after).norm(dim=-1)[0].view(side, side)
    assert moved.argmax().item() == side - 1, "the top right"


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_ours_give_them_directly(name):
    model = shrunk(name).eval()
    size = model.config.image_size
    images = torch.randn(2, 3, *size)
    features, logits = features_of(model, images)
    assert torch.equal(logits, model(images))
    assert torch.equal(features.tokens, model.forward_features(images).tokens)
    assert feature_shape(model, size, 3) == (model.dim, model.grid)


def test_rectangles():
    model = SMALL_VIT(img_size=(32, 16))
    assert feature_shape(model, (32, 16), 3) == (24, (8, 4))
    model = make_model("cifar_resnet56", num_classes=5, image_size=(32, 16))
    assert feature_shape(model, (32, 16), 3) == (64, (8, 4))


def test_asking_for_the_shape_leaves_no_trace():
    model = CNNS["efficientnet"]().train()
    model.bn1.eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    modes, random = [part.training for part in model.modules()], torch.get_rng_state()
    feature_shape(model, 32, 3)
    assert torch.equal(torch.get_rng_state(), random)
    assert [part.training for part in model.modules()] == modes
    assert not model.bn1.training
    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key


@pytest.mark.parametrize("kind", ["vit", "swin", "resnet"])
def test_drloc_reaches_the_backbone(kind):
    model = {**CNNS, **VITS}[kind]().train()
    dim, grid = feature_shape(model, 32, 3)
    loss = DRLoc(dim, grid)
    features, _ = features_of(model, torch.randn(2, 3, 32, 32))
    loss(features).backward()
    first = next(part for part in model.modules() if isinstance(part, nn.Conv2d))
    assert first.weight.grad.abs().max() > 0


def test_dropout_in_front_of_the_head_is_drawn_once():
    model = timm.create_model("resnet10t", num_classes=5, drop_rate=0.5).eval()
    model.training = True  # the head's dropout alone, not the batch norms
    torch.manual_seed(3)
    logits = features_of(model, torch.ones(2, 3, 32, 32))[1]
    after = torch.get_rng_state()
    torch.manual_seed(3)
    assert torch.equal(model(torch.ones(2, 3, 32, 32)), logits)
    assert torch.equal(torch.get_rng_state(), after)


class Strange(nn.Module):
    """Its logits are not what its head makes of its features."""

    def __init__(self):
        super().__init__()
        self.model = CNNS["cifar"]()
        self.get_classifier = self.model.get_classifier
        self.forward_features = self.model.forward_features
        self.forward_head = self.model.forward_head

    def forward(self, images):
        return self.model(images) + 1


def test_models_without_a_grid_are_refused():
    with pytest.raises(ValueError, match="PoolingVisionTransformer shows no grid of tokens"):
        feature_shape(MAKERS["pit"](), 32, 3)
    with pytest.raises(ValueError, match="a Linear has no forward_features"):
        features_of(nn.Linear(3, 3), torch.zeros(1, 3, 8, 8))
    with pytest.raises(ValueError, match="does not compute its logits from"):
        feature_shape(Strange(), 32, 3)
