"""Optimisers with proper parameter groups, and schedules as pure functions of the step."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from smallvit.models.parameters import depths, frozen_below, undecayed, undecayed_by_drloc
from smallvit.runs.config import OptimConfig, ScheduleConfig
from smallvit.training.muon import AdamW, Muon, matrices

#: The names of `optim.optimizer`; each takes the groups and options of AdamW.
OPTIMISERS: dict[str, type[AdamW]] = {"adamw": AdamW, "muon": Muon}


def freeze(model: nn.Module, layers: int) -> int:
    """Freezes the first layers; returns how many parameters are left to train."""
    frozen = frozen_below(model, layers) if layers else set()
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    left = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if not left:
        raise ValueError(f"frozen is {layers}: that leaves nothing to train; freeze fewer layers")
    return left


def parameter_groups(
    model: nn.Module, config: OptimConfig, *extra: nn.Module
) -> list[dict[str, Any]]:
    """Parameters by their weight decay and by their share (`scale`) of the learning rate.

    The matrices that Muon moves are `orthogonal`; their share makes of `lr` what is `muon_lr`.

    Args:
        extra: Modules that are trained with the model and thrown away after it: all of their
            matrices decay, at the full learning rate.
    """
    exempt = undecayed(model) if config.decay == "matrices" else set()
    if config.decay == "axes":
        exempt = {name for name, parameter in model.named_parameters() if parameter.ndim <= 1}
    elif config.decay == "drloc":
        exempt = undecayed_by_drloc(model)
    layer, top = depths(model) if config.layer_decay < 1 else ({}, 0)
    orthogonal = matrices(model) if config.optimizer == "muon" else set()
    share = config.muon_lr / config.lr if config.lr else 0.0
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        scale = config.layer_decay ** (top - layer[name]) if layer else 1.0
        key = (0.0 if name in exempt else config.weight_decay, scale, False)
        if name in orthogonal:
            key = (config.muon_decay, scale * share, True)
        if parameter.requires_grad:
            groups[key].append(parameter)
    for parameter in chain.from_iterable(module.parameters() for module in extra):
        decays = config.decay == "all" or parameter.ndim > 1
        if parameter.requires_grad:
            groups[config.weight_decay if decays else 0.0, 1.0, False].append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "scale": scale, "orthogonal": turned}
        for (decay, scale, turned), parameters in groups.items()
    ]


def make_optimiser(groups: list[dict[str, Any]], config: OptimConfig) -> AdamW:
    """The config's, fused; on a GPU learning rates are tensors, which a CUDA graph reads anew."""
    device = groups[0]["params"][0].device
    on_gpu = device.type == "cuda"
    for group in groups:
        group["lr"] = torch.tensor(config.lr, device=device) if on_gpu else config.lr
    return OPTIMISERS[config.optimizer](
        groups,
        betas=config.betas,
        eps=config.eps,
        fused=device.type in ("cuda", "cpu"),
        capturable=on_gpu,
    )


def set_learning_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    """Sets every group's learning rate to its share of the value."""
    for group in optimiser.param_groups:
        new = value * group["scale"]
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(new)
        else:
            group["lr"] = new


@torch.no_grad()
def move_towards(slow: Iterable[Tensor], fast: Iterable[Tensor], share: Tensor) -> None:
    """Moves tensors by a share of the way to others; on a GPU in a few kernels for all."""
    slow, fast = list(slow), list(fast)
    if share.device.type == "cuda":
        way = torch._foreach_sub(fast, slow)
        torch._foreach_mul_(way, share)
        torch._foreach_add_(slow, way)
        return
    for one, other in zip(slow, fast, strict=True):
        one.lerp_(other, share)


def position(step: int, plans: Sequence[tuple[int, int]]) -> tuple[float, int]:
    """Where a step lies on the schedule that was planned first: as step x of n.

    Args:
        step: Of the training.
        plans: From which step on it was planned to take how many steps in all. Every plan leads
            from where it finds the schedule to its end, so that it has no jumps.
    """
    whole = plans[0][1]
    reached, start, end = 0.0, 0, whole
    for changed, steps in plans[1:]:
        if changed > step:
            break
        reached += (whole - reached) * (changed - start) / max(end - start, 1)
        start, end = changed, steps
    if end == whole and not start:
        return step, whole
    return reached + (whole - reached) * (step - start) / max(end - start, 1), whole


def learning_rate(step: float, steps: int, peak: float, config: ScheduleConfig) -> float:
    """The learning rate of a step: up linearly, down a cosine, then flat.

    The first step after the warm-up has the peak (with `whole`: what the cosine has there), the
    first of the cool-down the lowest; with `late` the second ones.
    """
    warmup, cooldown = round(config.warmup * steps), round(config.cooldown * steps)
    if config.late:
        step = max(step - 1, 0)
    if config.stepped:
        epochs = _epochs(config)
        step = step * epochs // steps * steps // epochs
    if step < warmup:
        return config.start + (peak - config.start) * step / warmup
    before = 0 if config.whole else warmup
    turn = min((step - before) / max(config.horizon * steps - before - cooldown, 1), 1.0)
    return config.end + (peak - config.end) * 0.5 * (1 + math.cos(math.pi * turn))


def _epochs(config: ScheduleConfig) -> int:
    """The epochs of the schedule, into which its steps are divided."""
    return max(1, round(config.epochs))


def drloc_share(step: int, steps: int, config: ScheduleConfig) -> float:
    """The share of λ at a step in the released code of dense relative localization.

    It changes once per epoch: up linearly in the warm-up, from 0, then down to 0 at the horizon.
    """
    epochs = _epochs(config)
    epoch = step * epochs // steps
    warmup, end = config.warmup * epochs, config.horizon * epochs
    if epoch < warmup:
        return epoch / warmup
    return 1 - (epoch - warmup) / max(end - warmup, 1)


def is_mixed(step: float, steps: int, config: ScheduleConfig) -> bool:
    """Whether images are still mixed at a step."""
    return step < round(config.mixed * steps)


def ema_decay(step: int, decay: float) -> float:
    """The EMA's decay at a step: lower in the first steps, whose weights are soon outdated."""
    return min(decay, (1 + step) / (10 + step))


def validation_interval(steps: int, steps_per_epoch: int) -> int:
    """An epoch, or a hundredth of the run if that is longer."""
    return max(1, min(steps, max(steps_per_epoch, steps // 100)))
