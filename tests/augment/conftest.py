import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


def make_pictures(count: int, channels: int, height: int, width: int) -> Tensor:
    """Smooth pictures with texture, and at the end a flat, a two-valued and a dim one."""
    generator = torch.Generator().manual_seed(count * channels * height * width)
    coarse = torch.rand(count, channels, 5, 6, generator=generator)
    smooth = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)
    texture = torch.rand(count, channels, height, width, generator=generator)
    pictures = ((0.8 * smooth + 0.2 * texture).clamp(0, 1) * 255).to(torch.uint8)
    pictures[-1] = 77
    pictures[-2] = (pictures[-2] > 127) * 200
    pictures[-3] = 60 + pictures[-3] // 16
    return pictures


@pytest.fixture
def pictures() -> Tensor:
    """Sixty-four pictures, wider than high."""
    return make_pictures(64, 3, 32, 40)


@pytest.fixture
def grey_pictures() -> Tensor:
    """The same with one channel."""
    return make_pictures(64, 1, 32, 40)
