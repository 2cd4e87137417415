import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from smallvit.augment import normalise
from smallvit.augment.operations import NUMBER, operate, operate_by_groups, sharpness

FILL = {1: torch.tensor([9], dtype=torch.uint8), 3: torch.tensor([9, 99, 200], dtype=torch.uint8)}


def reference(name: str, image: Tensor, argument: float) -> Tensor:
    from torchvision.transforms.v2 import functional as F

    calls = {
        "brightness": lambda: F.adjust_brightness(image, argument),
        "contrast": lambda: F.adjust_contrast(image, argument),
        "saturation": lambda: F.adjust_saturation(image, argument),
        "sharpness": lambda: F.adjust_sharpness(image, argument),
        "posterize": lambda: F.posterize(image, int(argument)),
        "solarize": lambda: F.solarize(image, argument),
        "invert": lambda: F.invert(image),
        "autocontrast": lambda: F.autocontrast(image),
        "equalize": lambda: F.equalize(image),
    }
    return calls[name]()


ARGUMENTS = {
    "brightness": torch.linspace(0, 1.99, 64),
    "contrast": torch.linspace(0, 1.99, 64),
    "saturation": torch.linspace(0, 1.99, 64),
    "sharpness": torch.linspace(0, 1.99, 64),
    "posterize": torch.arange(64.0) % 9,
    "solarize": torch.linspace(0, 255, 64),
    "invert": torch.zeros(64),
    "autocontrast": torch.zeros(64),
    "equalize": torch.zeros(64),
}


@pytest.mark.parametrize("apply", [operate, operate_by_groups])
@pytest.mark.parametrize("fixture", ["images", "grey_images"])
@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_agrees_with_torchvision_to_one_level(name, fixture, apply, request):
    images = request.getfixturevalue(fixture)
    arguments = ARGUMENTS[name]
    ops = torch.full((64,), NUMBER[name])
    got = apply(images, ops, arguments, FILL[images.shape[1]])
    wanted = torch.stack(
        [reference(name, image, float(a)) for image, a in zip(images, arguments, strict=True)]
    )
    assert (got.int() - wanted.int()).abs().max() <= 1
    still = name == "saturation" and images.shape[1] == 1
    assert torch.equal(got, images) == still


def test_solarize_add_agrees_with_timm(images):
    from timm.data.auto_augment import solarize_add

    additions = torch.arange(64.0) * 110 // 63
    ops = torch.full((64,), NUMBER["solarize_add"])
    got = operate(images, ops, additions, FILL[3])
    for image, addition, result in zip(images, additions, got, strict=True):
        wanted = solarize_add(Image.fromarray(image.permute(1, 2, 0).numpy()), int(addition))
        assert torch.equal(result, torch.from_numpy(np.array(wanted)).permute(2, 0, 1))


def test_normalise_agrees_with_torchvision(images):
    from torchvision.transforms.v2 import functional as F

    mean, std = [0.49, 0.48, 0.45], [0.2, 0.21, 0.26]
    wanted = F.normalize(F.to_dtype(images, torch.float32, scale=True), mean, std)
    got = normalise(images, torch.tensor(mean), torch.tensor(std))
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


def test_own_statistics_normalise_to_mean_0_and_deviation_1(images):
    values = images.float().div(255).transpose(0, 1).flatten(1)
    out = normalise(images, values.mean(1), values.std(1)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out.mean(1), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(out.std(1), torch.ones(3), atol=1e-4, rtol=0)


def test_images_of_many_channels_work_where_an_operation_is_defined():
    images = torch.randint(0, 256, (8, 5, 12, 9), generator=torch.Generator().manual_seed(0))
    images = images.to(torch.uint8)
    for name in ARGUMENTS:
        ops = torch.full((8,), NUMBER[name])
        got = operate(images, ops, torch.full((8,), 0.5), torch.zeros(5, dtype=torch.uint8))
        assert torch.equal(got, images) == (name in ("saturation", "equalize")), name
    alone = operate(
        images[:, :1],
        torch.full((8,), NUMBER["autocontrast"]),
        torch.zeros(8),
        torch.zeros(1, dtype=torch.uint8),
    )
    together = operate(
        images,
        torch.full((8,), NUMBER["autocontrast"]),
        torch.zeros(8),
        torch.zeros(5, dtype=torch.uint8),
    )
    assert torch.equal(together[:, :1], alone)


def test_tiny_images_are_not_sharpened():
    images = torch.arange(12, dtype=torch.uint8).view(1, 3, 2, 2)
    change = sharpness(images, torch.zeros(1))
    assert torch.equal(change, torch.zeros(1, 3, 2, 2))
