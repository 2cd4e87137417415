"""CNN baselines: the sizes of their papers, stems that keep pixels, any channels."""

import pytest
import torch
import torch.nn.functional as F

from smallvit.models.baselines import BASELINES, CifarResNet
from smallvit.models.build import make_model


@pytest.mark.parametrize(
    ("name", "count"), [("cifar_resnet56", 853_018), ("cifar_resnet110", 1_727_962)]
)
def test_the_sizes_of_the_paper(name, count):
    model = make_model(name, num_classes=10, image_size=32)
    assert sum(p.numel() for p in model.parameters()) == count
    convolutions = [part for part in model.modules() if isinstance(part, torch.nn.Conv2d)]
    depth = int(name.removeprefix("cifar_resnet"))
    assert len(convolutions) == depth - 1, "all layers but the linear one"


@torch.no_grad()
def test_the_shortcut_is_every_second_pixel_and_zeros():
    model = CifarResNet(8, num_classes=3, width=4).eval()
    block, x = model.stages[1][0], torch.randn(2, 4, 7, 6)
    for conv in (block.conv1, block.conv2):
        conv.weight.zero_()
    expected = torch.zeros(2, 8, 4, 3)
    for channel in range(4):
        for row in range(4):
            for column in range(3):
                value = x[:, channel, 2 * row, 2 * column]
                expected[:, channel, row, column] = value.clamp(min=0)
    assert torch.equal(block(x), expected)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("channels", [1, 4])
def test_small_images_keep_a_map_and_every_parameter_a_gradient(name, channels):
    if name == "resnet50" and channels == 4:
        pytest.skip("as resnet18's")
    torch.manual_seed(0)
    model = make_model(name, num_classes=3, image_size=32, in_channels=channels).eval()
    images = torch.randn(2, channels, 32, 32)
    side = {"efficientnet_b0": 2, "resnet10t": 4, "resnet18": 4, "resnet50": 4}.get(name, 8)
    assert model.forward_features(images).shape[2:] == (side, side)
    F.cross_entropy(model(images), torch.tensor([0, 2])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["resnet10t", "resnet18", "efficientnet_b0"])
def test_the_stem_follows_the_size_unless_told(name):
    images = torch.zeros(1, 3, 64, 64)
    sides = [
        make_model(name, num_classes=3, image_size=size, options=options)
        .eval()
        .forward_features(images)
        .shape[-1]
        for size, options in [(64, None), (128, None), (64, {"small_stem": False})]
    ]
    assert sides == ([4, 2, 2] if name == "efficientnet_b0" else [8, 2, 2])


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match=r"cifar_resnet56 could not be built with depth_"):
        make_model("cifar_resnet56", num_classes=3, image_size=32, options={"depth_": 3})
    with pytest.raises(ValueError, match=r"resnet18 could not be built .* argument 'small_stm'"):
        make_model("resnet18", num_classes=3, image_size=32, options={"small_stm": True})
    with pytest.raises(ValueError, match=r"6 n \+ 2"):
        CifarResNet(57, num_classes=3)
    with pytest.raises(ValueError, match="width is 0"):
        make_model("cifar_resnet56", num_classes=3, image_size=32, options={"width": 0})
