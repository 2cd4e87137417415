import random
from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from smallvit.augment.operations import OPERATIONS
from smallvit.augment.policies import (
    Policy,
    auto_augment,
    draw_policy,
    policy_table,
    rand_augment,
    trivial_augment,
)
from smallvit.augment.randomness import uniform

DRAWS = 20_000
SIZE = (32, 48)

#: One list per image: what was applied, in order.
Applied = list[list[tuple[str, float]]]


def our_draws(policy: Policy) -> Applied:
    u = uniform(torch.tensor(11), torch.tensor(3), torch.arange(DRAWS), policy.draws)
    drawn = draw_policy(policy, policy_table(policy), u)
    names = list(OPERATIONS)
    return [
        [(names[op], a) for op, a in zip(ops, arguments, strict=True) if op]
        for ops, arguments in zip(drawn.ops.tolist(), drawn.arguments.tolist(), strict=True)
    ]


# Theirs → our name, and their argument in our unit. Timm's translation moves the other way.
TIMM: dict[str, tuple[str, Callable[[float], float]]] = {
    "AutoContrast": ("autocontrast", float),
    "Equalize": ("equalize", float),
    "Invert": ("invert", float),
    "Rotate": ("rotate", float),
    "PosterizeIncreasing": ("posterize", float),
    "SolarizeIncreasing": ("solarize", float),
    "SolarizeAdd": ("solarize_add", float),
    "ColorIncreasing": ("saturation", float),
    "ContrastIncreasing": ("contrast", float),
    "BrightnessIncreasing": ("brightness", float),
    "SharpnessIncreasing": ("sharpness", float),
    "ShearX": ("shear_x", float),
    "ShearY": ("shear_y", float),
    "TranslateXRel": ("translate_x", lambda part: -part * SIZE[1]),
    "TranslateYRel": ("translate_y", lambda part: -part * SIZE[0]),
}


def timm_draws() -> Applied:
    """What timm's own transform decides; only its last step, the image, is left out."""
    from timm.data.auto_augment import rand_augment_transform

    random.seed(0)
    np.random.seed(0)
    transform = rand_augment_transform("rand-m9-mstd0.5-inc1")
    now: list[tuple[str, float]] = []

    def note(name: str) -> Callable[..., None]:
        ours, convert = TIMM[name]
        return lambda _, *arguments, **__: now.append((ours, convert(*(arguments or (0.0,)))))

    for op in transform.ops:
        op.aug_fn = note(op.name)
    draws = []
    for _ in range(DRAWS):
        now.clear()
        transform(None)
        draws.append(list(now))
    return draws


TORCHVISION: dict[str, tuple[str, Callable[[float], float]]] = {
    "Identity": ("identity", float),
    "ShearX": ("shear_x", float),
    "ShearY": ("shear_y", float),
    "TranslateX": ("translate_x", int),
    "TranslateY": ("translate_y", int),
    "Rotate": ("rotate", float),
    "Brightness": ("brightness", lambda m: 1 + m),
    "Color": ("saturation", lambda m: 1 + m),
    "Contrast": ("contrast", lambda m: 1 + m),
    "Sharpness": ("sharpness", lambda m: 1 + m),
    "Posterize": ("posterize", int),
    "Solarize": ("solarize", float),
    "AutoContrast": ("autocontrast", float),
    "Equalize": ("equalize", float),
    "Invert": ("invert", float),
}


def torchvision_draws(transform: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> Applied:
    """What torchvision's own transform decides; only its last step is left out."""
    from torchvision.transforms import autoaugment

    now: list[tuple[str, float]] = []

    def note(image, name, magnitude, **_):
        ours, convert = TORCHVISION[name]
        if ours != "identity":
            now.append((ours, float(convert(magnitude))))
        return image

    monkeypatch.setattr(autoaugment, "_apply_op", note)
    monkeypatch.setattr(transform, "_augmentation_space", cache(transform._augmentation_space))
    torch.manual_seed(0)
    image = torch.zeros(3, *SIZE, dtype=torch.uint8)
    draws = []
    for _ in range(DRAWS):
        now.clear()
        transform(image)
        draws.append(list(now))
    return draws


def assert_same_frequencies(ours: Counter, theirs: Counter) -> None:
    for key in ours.keys() | theirs.keys():
        p = (ours[key] + theirs[key]) / (2 * DRAWS)
        spread = (2 * p * (1 - p) / DRAWS) ** 0.5
        assert abs(ours[key] - theirs[key]) / DRAWS < 4.5 * spread, key


def assert_same_distribution(ours: list[float], theirs: list[float], what: str) -> None:
    """Two samples by the largest gap between their distribution functions."""
    a, b = (np.sort(np.round(values, 4)) for values in (ours, theirs))
    points = np.union1d(a, b)
    below = [np.searchsorted(values, points, side="right") / len(values) for values in (a, b)]
    limit = 2 * (1 / len(a) + 1 / len(b)) ** 0.5
    assert np.abs(below[0] - below[1]).max() < limit, what


def assert_same_draws(ours: Applied, theirs: Applied) -> None:
    sequences = [
        Counter(tuple(name for name, _ in applied) for applied in draws) for draws in (ours, theirs)
    ]
    assert_same_frequencies(*sequences)
    single = [Counter(name for applied in draws for name, _ in applied) for draws in (ours, theirs)]
    assert single[0].keys() == single[1].keys()
    assert_same_frequencies(*single)
    for name in single[0]:
        arguments = [
            [argument for applied in draws for op, argument in applied if op == name]
            for draws in (ours, theirs)
        ]
        assert_same_distribution(*arguments, name)


def test_rand_augment_draws_as_timm():
    ours = our_draws(rand_augment(SIZE))
    assert_same_draws(ours, timm_draws())
    counts = Counter(map(len, ours))
    for applied, p in enumerate((0.25, 0.5, 0.25)):
        assert abs(counts[applied] / DRAWS - p) < 4.5 * (p * (1 - p) / DRAWS) ** 0.5


@pytest.mark.parametrize("name", ["cifar10", "svhn", "imagenet"])
def test_auto_augment_draws_as_torchvision(name, monkeypatch):
    from torchvision.transforms.autoaugment import AutoAugment, AutoAugmentPolicy

    theirs = torchvision_draws(AutoAugment(AutoAugmentPolicy(name)), monkeypatch)
    assert_same_draws(our_draws(auto_augment(name, SIZE)), theirs)


def test_trivial_augment_draws_as_torchvision(monkeypatch):
    from torchvision.transforms.autoaugment import TrivialAugmentWide

    theirs = torchvision_draws(TrivialAugmentWide(), monkeypatch)
    assert_same_draws(our_draws(trivial_augment(SIZE)), theirs)


def test_the_comparison_sees_a_wrong_policy():
    """The tests above would fail with another strength, probability or operation."""
    right = our_draws(rand_augment(SIZE))
    for wrong in (
        rand_augment(SIZE, magnitude=8.8),
        rand_augment(SIZE, magnitude_std=0.65),
        rand_augment(SIZE, probability=0.53),
        Policy(rows=rand_augment(SIZE).rows[:-1], rounds=2, level=9.0, level_std=0.5),
    ):
        with pytest.raises(AssertionError):
            assert_same_draws(right, our_draws(wrong))


def test_interpolation_is_drawn_half_and_half():
    policy = rand_augment(SIZE)
    u = uniform(torch.tensor(0), torch.tensor(0), torch.arange(DRAWS), policy.draws)
    cubic = draw_policy(policy, policy_table(policy), u).cubic.float()
    assert (cubic.mean(0) - 0.5).abs().max() < 4.5 / (4 * DRAWS) ** 0.5


def test_every_operation_is_in_a_policy():
    autos = (auto_augment(name, SIZE) for name in ("cifar10", "svhn", "imagenet"))
    rows = [
        row for policy in (rand_augment(SIZE), trivial_augment(SIZE), *autos) for row in policy.rows
    ]
    assert {choice.op for row in rows for choice in row} == set(OPERATIONS)


def test_layers_know_what_can_occur_in_them():
    assert len(rand_augment(SIZE).among) == 2
    assert len(rand_augment(SIZE).among[0]) == 15
    first, second = auto_augment("svhn", SIZE).among
    assert "rotate" not in first
    assert "shear_x" not in second
    assert len(trivial_augment(SIZE).among) == 1
