"""How fast a device trains, and what a model costs: what `auto` plans with."""

import math
import time
from collections.abc import Callable
from functools import lru_cache

#: Operations (a multiplication and an addition are two) of a forward pass in millions, by family
#: and size: per token of the last attention, and per pair of them.
OURS = {
    "hct_xs": (1.29, 0.0038),
    "hct_s": (3.18, 0.0056),
    "hct_m": (7.6, 0.0092),
    "hct_l": (16.06, 0.021),
    "hct2_xs": (0.54, 0.0003),
    "hct2_s": (1.01, 0.0004),
    "hct2_m": (3.98, 0.0008),
    "hct2_l": (8.48, 0.002),
    "hct2_xl": (25.7, 0.0041),
}

#: Millions of operations of forward passes per second of training, where a trial would have to
#: compile first: an H200 trained hct_l_p4 (1,114 of them per image) at 32,443 images per second.
RECORDED = {"cuda": 1_114 * 32_443}

INFERENCE = 2.5  # images per second of a test over those of training
_TRIAL = 1.0  # seconds of trial steps, beside those to build the model
#: Millions of operations that a step takes on a CPU beside those of its images, as it were:
#: optimiser, augmentation, starting hundreds of small kernels. Measured with batches of 16 to 128.
_OVERHEAD = 2_000.0
_USUAL = 1.25  # a step over its images, in the batches of 128 for which the speed holds
#: Millions of operations per pixel that augmentation takes on a CPU, as it were. Measured at 64 to
#: 160 pixels: 0.002 with crops and mixing, 0.007 with resized crops and a policy.
_PIXEL = 0.005
_STEP = 0.85  # a step over what a trial predicts of it: it validates, and more


def cost(name: str, side: int) -> float:
    """Millions of operations of one image's forward pass."""
    base, _, patch = name.rpartition("_p")
    if base in OURS and patch.isdigit():
        tokens = math.ceil(side / int(patch)) ** 2
        per_token, per_pair = OURS[base]
        return tokens * (per_token + per_pair * tokens)
    return _counted(name, side)


@lru_cache
def _counted(name: str, side: int) -> float:
    """The same for any model, by building it without memory; 0 where that is impossible."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from smallvit.models.build import make_model
    from smallvit.training.compiling import wait_for_compiler

    wait_for_compiler()  # counting imports it too
    try:
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            model = make_model(name, num_classes=10, image_size=(side, side), in_channels=3)
            # The counter stumbles over a parameter that a module is handed, as in timm's PiT.
            model.eval().requires_grad_(False)(torch.zeros(1, 3, side, side))
    except (ValueError, RuntimeError, NotImplementedError, ImportError):
        return 0.0  # a name that does not exist is refused elsewhere, with a better sentence
    return float(counter.get_total_flops()) / 1e6


@lru_cache
def tokens_along(name: str, side: int) -> int:
    """Tokens along an image's side in most of a model's blocks; 0 if it takes no such size.

    A model without tokens, such as a CNN, has as many as the image has pixels.
    """
    import torch

    from smallvit.models.base import Backbone
    from smallvit.models.build import make_model

    try:
        with torch.device("meta"):
            model = make_model(name, num_classes=10, image_size=(side, side), in_channels=3)
    except (ValueError, RuntimeError, NotImplementedError, ImportError, AssertionError):
        return 0  # said elsewhere, with a better sentence
    if isinstance(model, Backbone):
        # From the last on: T2T's first grids are those of its splits, before all blocks.
        stages = zip(model.stacks()[::-1], model.grids[::-1], strict=False)
        return max((len(blocks), min(grid)) for (_, blocks, _), grid in stages)[1]
    patches = getattr(getattr(model, "patch_embed", None), "grid_size", None)  # of timm's ViTs
    return int(min(patches)) if patches else side


def rate_of(speed: float, price: float, side: int, batch: int, device: str) -> float:
    """Images per second; on a CPU fewer of many pixels, and in small batches of cheap images."""
    if device != "cpu":
        return speed / price
    price += _PIXEL * side * side
    images = price * batch
    return speed / price * min(_USUAL * images / (images + _OVERHEAD), 1.0)


def measure_speed(device: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """Millions of operations of forward passes per second of training.

    A table on a GPU; elsewhere trial steps of a small HCT2 on made-up images, not compiled.
    """
    if device in RECORDED:
        return RECORDED[device]
    import torch
    import torch.nn.functional as F

    from smallvit.devices import prefers_bf16
    from smallvit.models.build import make_model

    name, side, batch = "hct2_s_p4", 32, 64
    before = torch.random.get_rng_state()  # a trial changes nothing
    model = make_model(name, num_classes=10, image_size=(side, side), in_channels=3)
    model = model.to(device).to(memory_format=torch.channels_last).train()
    images, labels = torch.rand(batch, 3, side, side), torch.arange(batch) % 10
    images, labels = images.to(device, memory_format=torch.channels_last), labels.to(device)
    wanted = prefers_bf16(torch.device(device))
    steps, started = -1, clock()
    while steps < 1 or clock() - started < _TRIAL:
        with torch.autocast(device, torch.bfloat16, enabled=wanted):
            logits = model(images)
        loss = F.cross_entropy(logits.float(), labels)
        model.zero_grad(set_to_none=True)
        loss.backward()
        loss.item()
        steps += 1
        if not steps:
            started = clock()  # a first step is slower than the others
    torch.random.set_rng_state(before)
    return _STEP * steps * batch * cost(name, side) / max(clock() - started, 1e-9)
