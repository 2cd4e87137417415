"""Schedules as pure functions of the step."""

import math

from smallvit.runs.config import ScheduleConfig


def learning_rate(step: int, steps: int, peak: float, config: ScheduleConfig) -> float:
    """The learning rate of a step: up linearly, down a cosine, then flat.

    The first step after the warm-up has the peak, the first of the cool-down the lowest.
    """
    warmup, cooldown = round(config.warmup * steps), round(config.cooldown * steps)
    if step < warmup:
        return config.start + (peak - config.start) * step / warmup
    turn = min((step - warmup) / max(steps - warmup - cooldown, 1), 1.0)
    return config.end + (peak - config.end) * 0.5 * (1 + math.cos(math.pi * turn))


def is_mixed(step: int, steps: int, config: ScheduleConfig) -> bool:
    """Whether images are still mixed at a step."""
    return step < round(config.mixed * steps)


def average_decay(step: int, decay: float) -> float:
    """How much of the moving average stays: less in the first steps, which are soon outdated."""
    return min(decay, (1 + step) / (10 + step))


def validation_interval(steps: int, steps_per_epoch: int) -> int:
    """An epoch, or a hundredth of the run if that is longer."""
    return max(1, min(steps, max(steps_per_epoch, steps // 100)))
