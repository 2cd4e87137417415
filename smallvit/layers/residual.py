"""The residual block of CNNs: two 3×3 convolutions with batch norm around a shortcut."""

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Activation = Literal["relu", "gelu"]


def make_activation(kind: Activation) -> nn.Module:
    """ReLU, in place, or GELU."""
    return nn.GELU() if kind == "gelu" else nn.ReLU(inplace=True)


class PaddedShortcut(nn.Module):
    """Option A of He et al.: every stride-th pixel, and zeros as new channels behind the old."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride, self.new = stride, channels - in_channels

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """There is nothing to learn."""
        return F.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new))


class PooledShortcut(nn.Module):
    """As in ResNet-D: the mean of stride × stride pixels, a 1×1 convolution and batch norm."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """At the border of an odd map the mean is over the pixels that are there."""
        if self.stride > 1:
            x = F.avg_pool2d(x, self.stride, ceil_mode=True, count_include_pad=False)
        return self.bn(self.conv(x))


class ResidualBlock(nn.Module):
    """act(shortcut(x) + bn(conv(act(bn(conv(x)))))).

    Args:
        in_channels: Of what comes in.
        channels: Of what goes out.
        stride: Of the first convolution; odd maps are rounded up.
        padded: Takes the shortcut without parameters. Otherwise a shortcut is the input itself
            where the shape stays, and pooled where it does not.
        zero_start: Starts as the shortcut alone: the last batch norm's weights are zero.
        activation: ReLU or GELU.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        stride: int = 1,
        *,
        padded: bool = False,
        zero_start: bool = False,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.act = make_activation(activation)
        self.shortcut: nn.Module = nn.Identity()
        if padded:
            self.shortcut = PaddedShortcut(in_channels, channels, stride)
        elif stride > 1 or channels != in_channels:
            self.shortcut = PooledShortcut(in_channels, channels, stride)
        if zero_start:
            nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Returns a feature map of the new width."""
        y = self.bn2(self.conv2(self.act(self.bn1(self.conv1(x)))))
        return self.act(y + self.shortcut(x))
