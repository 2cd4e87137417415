"""`Features` and logits in one pass, from any backbone: ours, the baselines, timm's.

`evaluating` is for whoever looks at a model without training it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.layers import Features
from smallvit.models.base import Backbone
from smallvit.sizes import Size, as_size


@contextmanager
def evaluating(model: nn.Module, *, fork_rng: bool = False) -> Iterator[None]:
    """Runs a model in evaluation mode and without gradients.

    Afterwards every module is in the mode it was in before.

    Args:
        model: Any model.
        fork_rng: Whether torch's random generators are restored afterwards as well.
    """
    modes = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    model.eval()
    try:
        # Not inference_mode: what a model keeps between calls must still work in training.
        with ExitStack() as stack:
            if fork_rng:
                stack.enter_context(torch.random.fork_rng(list(devices)))
            stack.enter_context(torch.no_grad())
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def features_of(
    model: nn.Module, images: Float[Tensor, "B C H W"]
) -> tuple[Features, Float[Tensor, "B K"]]:
    """Tokens on their grid, the vector the head reads, and the logits.

    Our models give them themselves. timm's transformers give tokens, whose class tokens are left
    out; Swin and CNNs give a map, whose positions are the tokens.

    Raises:
        ValueError: The model shows no grid of tokens.
    """
    # Ours under timm's names return a tensor, as all of timm's do.
    if isinstance(model, Backbone) and not hasattr(model, "forward_head"):
        features = model.forward_features(images)
        return features, model.head(features.pooled)
    parts: Any = model
    if not (hasattr(parts, "forward_features") and hasattr(parts, "forward_head")):
        raise ValueError(
            f"a {type(model).__name__} has no forward_features and forward_head, so its tokens "
            "cannot be read: DRLoc and pretraining need another model"
        )
    x = parts.forward_features(images)
    tokens, grid = grid_tokens(parts, x, (images.shape[2], images.shape[3]))
    pooled = parts.forward_head(x, pre_logits=True)
    classifier = parts.get_classifier()
    # The same numbers as forward_head(x), with its dropout drawn once; a pair of heads (DeiT's)
    # cannot be computed from the pooled vector.
    linear = isinstance(classifier, nn.Linear | nn.Identity)
    logits = classifier(pooled) if linear else parts.forward_head(x)
    return Features(tokens, grid, pooled), logits


def grid_tokens(model: Any, x: Any, size: Size) -> tuple[Tensor, Size]:
    """Tokens, and rows and columns of them, from what a timm model's `forward_features` gives.

    Raises:
        ValueError: That has no grid.
    """
    kind = type(model).__name__
    if isinstance(x, Tensor) and x.ndim == 4:
        last = getattr(model, "output_fmt", "NCHW") == "NHWC"
        image = x if last else x.permute(0, 2, 3, 1)
        return image.flatten(1, 2), (image.shape[1], image.shape[2])
    if isinstance(x, Tensor) and x.ndim == 3:
        grid = _grid(model, size)
        count = grid[0] * grid[1] if grid else 0
        prefix = getattr(model, "num_prefix_tokens", x.shape[1] - count)
        if count and prefix >= 0 and x.shape[1] == prefix + count:
            return x[:, prefix:], grid or (0, 0)
    shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
    raise ValueError(
        f"a {kind} shows no grid of tokens (its features are {shape}), and DRLoc and "
        "pretraining need one: choose a ViT, Swin or CNN"
    )


def _grid(model: Any, size: Size) -> Size | None:
    """Rows and columns of a transformer's patches."""
    if isinstance(model, Backbone):
        return model.grid
    embed: Any = getattr(model, "patch_embed", getattr(model, "stem", None))
    if hasattr(embed, "dynamic_feat_size"):
        height, width = embed.dynamic_feat_size(size)
        return int(height), int(width)
    grid = getattr(embed, "grid_size", None)
    return None if grid is None else (int(grid[0]), int(grid[1]))


def feature_shape(model: nn.Module, image_size: int | Size, in_channels: int) -> tuple[int, Size]:
    """Width and grid of a model's features, measured with one image; the model stays as it was.

    Raises:
        ValueError: The model shows no grid of tokens, or its logits are not what its head makes
            of its features.
    """
    reference = next(model.parameters())
    size = (in_channels, *as_size(image_size))
    ramp = torch.linspace(-1, 1, size[0] * size[1] * size[2]).view(1, *size)
    image = ramp.to(reference.device, reference.dtype)
    with evaluating(model, fork_rng=True):
        features, logits = features_of(model, image)
        if not torch.allclose(logits, model(image), rtol=1e-3, atol=1e-4):
            raise ValueError(
                f"a {type(model).__name__} does not compute its logits from what forward_head "
                "returns: DRLoc and pretraining need another model"
            )
    return features.tokens.shape[2], features.grid
