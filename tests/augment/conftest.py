import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


def make_images(count: int, channels: int, height: int, width: int) -> Tensor:
    """Smooth images with texture, and at the end a flat, a two-valued and a dim one."""
    generator = torch.Generator().manual_seed(count * channels * height * width)
    coarse = torch.rand(count, channels, 5, 6, generator=generator)
    smooth = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)
    texture = torch.rand(count, channels, height, width, generator=generator)
    images = ((0.8 * smooth + 0.2 * texture).clamp(0, 1) * 255).to(torch.uint8)
    images[-1] = 77
    images[-2] = (images[-2] > 127) * 200
    images[-3] = 60 + images[-3] // 16
    return images


@pytest.fixture
def images() -> Tensor:
    """Sixty-four images, wider than high."""
    return make_images(64, 3, 32, 40)


@pytest.fixture
def grey_images() -> Tensor:
    """The same with one channel."""
    return make_images(64, 1, 32, 40)
