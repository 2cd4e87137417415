"""Numbers inside a model: how far a token sees, how sharp its attention has become."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from smallvit.layers import SPT, ConvTokenizer, PatchTokenizer
from smallvit.layers.soft_split import ValueAttention
from smallvit.layers.tokenizers import shift_pixels
from smallvit.models.base import Backbone
from smallvit.models.cvt import CvT
from smallvit.models.t2t import T2T

_POOL = 3  # side of the pools between the compact tokenizer's convolutions


def receptive_field(model: nn.Module) -> int | None:
    """The side, in pixels, of what one token sees as it leaves the tokenizer.

    It is P for patches of P pixels and P + 2·shift with SPT: 2P at the usual shift of half a
    patch. For convolutions, pools and soft splits it grows as r + (k − 1)·j, with j the stride so
    far. T2T's transformers between the splits are left out: through them a token sees everything.
    At the border of the image it is cut off.

    Returns:
        The side, or None for models that are not ours.
    """
    if not isinstance(model, Backbone):
        return None
    config, tokenizer = model.config, getattr(model, "tokenizer", None)
    if isinstance(tokenizer, SPT):
        return tokenizer.patch_size + 2 * tokenizer.shift
    if isinstance(tokenizer, PatchTokenizer):
        return tokenizer.proj.kernel_size[0]
    if isinstance(tokenizer, ConvTokenizer):
        layers = [(config.kernel, config.conv_stride), (_POOL, 2)] * config.convs
        side, stride = _reach(layers), config.stride
    elif isinstance(model, T2T):
        side = _reach((kernel, stride) for kernel, stride, _ in config.splits)
        stride = config.first_split[1]
    elif isinstance(model, CvT):
        side, stride = config.kernels[0], config.strides[0]
    else:
        return None
    return side + (2 * shift_pixels(config.shift, stride) if config.spt else 0)


def _reach(steps: Iterable[tuple[int, int]]) -> int:
    """How many pixels the last of some convolutions sees; each is a kernel and a stride."""
    side = jump = 1
    for kernel, stride in steps:
        side, jump = side + (kernel - 1) * jump, jump * stride
    return side


def temperatures(model: nn.Module) -> list[list[float]]:
    """The temperatures LSA has learned, a row a layer, a number a head.

    Scores are divided by τ·√head_dim, with τ = 1 where training began: below 1 attention has become
    sharper than plain attention, above it softer. In T2T's token transformers, which begin at the
    width of their tokens, that takes the place of head_dim.

    Returns:
        Nothing for a model without learned temperatures.
    """
    rows = []
    for part in model.modules():
        scale = getattr(part, "scale", None)
        if isinstance(scale, nn.Parameter) and scale.numel() == getattr(part, "num_heads", None):
            layer: Any = part
            wide = isinstance(part, ValueAttention)
            width: int = layer.qkv.in_features if wide else layer.head_dim
            rows.append((1 / (scale.detach().double().flatten() * width**0.5)).tolist())
    return rows
