"""CNN baselines for small images: CIFAR ResNets, and timm's with a stem that keeps pixels.

Deliberate differences: the shortcut of a CIFAR ResNet pads its new channels behind the old ones;
below 128 pixels timm's models start at stride 1 (`small_stem=False` keeps timm's stem).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers import ResidualBlock
from smallvit.sizes import Size

_SMALL = 128


class CifarResNet(nn.Module):
    """The ResNet of section 4.2 of arXiv 1512.03385, for images of about 32 pixels.

    Its shortcuts have no parameters (option A).

    Args:
        depth: 6 n + 2 layers make n blocks per stage.
        num_classes: Width of the head.
        in_channels: Channels of the images.
        width: Channels of the first stage; they double twice.
    """

    #: timm's keys for what reads the image and what is the head.
    pretrained_cfg: ClassVar[dict[str, str]] = {"first_conv": "stem", "classifier": "head"}

    def __init__(
        self, depth: int, *, num_classes: int, in_channels: int = 3, width: int = 16
    ) -> None:
        super().__init__()
        if (depth - 2) % 6 or depth < 8:
            raise ValueError(f"depth is {depth}: a CIFAR ResNet has 6 n + 2 layers, such as 56")
        if width < 1:
            raise ValueError(f"width is {width}: allowed is a whole number of at least 1")
        self.stem = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.stages = nn.ModuleList()
        channels_before = width
        for stage in range(3):
            channels = width * 2**stage
            strides = [1 if stage == 0 else 2, *[1] * ((depth - 2) // 6 - 1)]
            blocks = []
            for stride in strides:
                blocks.append(ResidualBlock(channels_before, channels, stride, padded=True))
                channels_before = channels
            self.stages.append(nn.Sequential(*blocks))
        self.num_features = channels_before
        self.head = nn.Linear(channels_before, num_classes) if num_classes else nn.Identity()
        for part in self.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.bias)

    def parameter_layers(self) -> list[tuple[str, ...]]:
        """Names of the parts of each layer, from the images on; the rest belongs with the head."""
        blocks = [name for name, part in self.named_modules() if isinstance(part, ResidualBlock)]
        return [("stem", "bn"), *((name,) for name in blocks)]

    def forward_features(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """The last feature map."""
        x = F.relu(self.bn(self.stem(images)))
        for stage in self.stages:
            x = stage(x)
        return x

    def forward_head(
        self, x: Float[Tensor, "B D h w"], pre_logits: bool = False
    ) -> Float[Tensor, "B K"]:
        """Mean over the map, then logits; with `pre_logits` the mean alone."""
        x = x.mean((2, 3))
        return x if pre_logits else self.head(x)

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Logits."""
        return self.forward_head(self.forward_features(images))


def _timm(
    name: str, *, num_classes: int, in_channels: int, small_stem: bool, **options: Any
) -> nn.Module:
    import timm

    model: Any = timm.create_model(name, num_classes=num_classes, in_chans=in_channels, **options)
    if small_stem and isinstance(getattr(model, "conv1", None), nn.Sequential):
        model.conv1[0].stride = (1, 1)  # the three convolutions of resnet10t
        model.maxpool = nn.Identity()
    elif small_stem and name.startswith("resnet"):
        old = model.conv1
        model.conv1 = nn.Conv2d(in_channels, old.out_channels, 3, 1, 1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    elif small_stem:
        model.conv_stem.stride = (1, 1)
    built: nn.Module = model
    return built


BASELINES: dict[str, Callable[..., nn.Module]] = {
    "cifar_resnet56": partial(CifarResNet, 56),
    "cifar_resnet110": partial(CifarResNet, 110),
    "resnet10t": partial(_timm, "resnet10t"),
    "resnet18": partial(_timm, "resnet18"),
    "resnet50": partial(_timm, "resnet50"),
    "efficientnet_b0": partial(_timm, "efficientnet_b0"),
}


def make_baseline(
    name: str, num_classes: int, in_channels: int, options: Mapping[str, Any]
) -> nn.Module:
    """Builds a baseline by name.

    Args:
        options: `width` of a CIFAR ResNet; `small_stem` and timm's keywords for the others.

    Raises:
        ValueError: An option is not known.
    """
    try:
        return BASELINES[name](num_classes=num_classes, in_channels=in_channels, **options)
    except Exception as error:  # whatever timm's constructors make of an option
        listed = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise ValueError(f"{name} could not be built with {listed}: {error}") from error


def stem_options(name: str, image_size: Size) -> dict[str, Any]:
    """What keeps the stem a baseline has at this size when it is built for another."""
    return {} if name.startswith("cifar") else {"small_stem": min(image_size) < _SMALL}
