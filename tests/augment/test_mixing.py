import math

import numpy as np
import pytest
import torch

from smallvit.augment.boxes import inside
from smallvit.augment.mixing import (
    MIX_DRAWS,
    Mix,
    beta,
    beta_quantiles,
    cut_box,
    draw_mix,
    draw_partner,
    mix_images,
    mix_targets,
    soft_targets,
)
from smallvit.augment.randomness import uniform

SIZE = (16, 20)


def draw(count: int, *, mixup: float = 0.8, cutmix: float = 1.0, step: int = 0, **options) -> Mix:
    positions = torch.arange(count)
    u = uniform(torch.tensor(1), torch.tensor(step), torch.arange(count + 1), MIX_DRAWS)
    quantiles = tuple(beta_quantiles(alpha) if alpha else None for alpha in (mixup, cutmix))
    options = {"probability": 1.0, "cutmix_share": 0.5, "per": "pair", "group": 8} | options
    return draw_mix(u[:-1], u[-1:], positions, SIZE, quantiles, **options)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 0.8, 1.0, 2.0, 5.0])
def test_beta_has_the_exact_moments(alpha):
    u = (torch.arange(2**18, dtype=torch.float64) + 0.5) / 2**18
    x = beta(u.float(), beta_quantiles(alpha)).double()
    exact = 1.0
    for power in range(1, 5):
        exact *= (alpha + power - 1) / (2 * alpha + power - 1)
        assert abs((x**power).mean().item() - exact) < 2e-4


@pytest.mark.parametrize(
    ("alpha", "distribution"),
    [
        (1.0, lambda x: x),
        (0.5, lambda x: 2 / math.pi * np.arcsin(np.sqrt(x))),
        (2.0, lambda x: 3 * x**2 - 2 * x**3),
    ],
)
def test_beta_has_the_known_distributions(alpha, distribution):
    quantiles = beta_quantiles(alpha).double().numpy()
    np.testing.assert_allclose(
        distribution(quantiles), np.linspace(0, 1, len(quantiles)), atol=1e-5
    )
    assert (np.diff(quantiles) > 0).all()


@pytest.mark.parametrize("alpha", [8.0, 15.0, 32.0, 1e3, 1e6])
def test_beta_of_a_large_alpha_is_a_narrow_peak(alpha):
    u = (torch.arange(2**18, dtype=torch.float64) + 0.5) / 2**18
    quantiles = beta_quantiles(alpha)
    x = beta(u.float(), quantiles).double()
    deviation = 0.5 / math.sqrt(2 * alpha + 1)
    assert abs(x.mean() - 0.5) < 0.002 * deviation
    assert abs(x.std() / deviation - 1) < 0.01
    inner = ((x - 0.5).abs() < deviation).double().mean()
    assert 0.64 < inner < 0.69
    assert (quantiles.diff() > 0).all()


def test_soft_targets_are_timms():
    from timm.data.mixup import mixup_target

    labels = torch.tensor([3, 0, 9, 9])
    torch.testing.assert_close(
        soft_targets(labels, 10, 0.1), mixup_target(labels, 10, smoothing=0.1)
    )
    assert torch.equal(soft_targets(labels, 10, 0.0), torch.eye(10)[labels])


def test_partners_are_mutual_inside_the_group_and_change():
    seen = set()
    for step in range(20):
        u = uniform(torch.tensor(1), torch.tensor(step), torch.arange(48), 1)[:, 0]
        partner = draw_partner(u, torch.arange(48), 12)
        rows = torch.arange(48)
        assert torch.equal(partner[partner], rows)
        assert torch.equal(partner // 12, rows // 12)
        assert not (partner == rows).any()
        seen |= {tuple(partner[i : i + 12].tolist()) for i in range(0, 48, 12)}
    assert len(seen) == 4 * 6


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.77, 0.999, 1.0])
def test_cut_box_is_timms(share, monkeypatch):
    from timm.data.mixup import cutmix_bbox_and_lam

    for y, x in ((0, 0), (15, 19), (7, 12), (1, 18)):
        centres = iter((y, x))
        monkeypatch.setattr(np.random, "randint", lambda *_, **__: next(centres))  # noqa: B023
        (top, bottom, left, right), kept = cutmix_bbox_and_lam((3, *SIZE), share)
        centre = [
            torch.tensor([(value + 0.5) / side]) for value, side in zip((y, x), SIZE, strict=True)
        ]
        box = cut_box(torch.tensor([share]), *centre, SIZE)
        assert [int(side) for side in box] == [top, left, bottom - top, right - left]
        assert abs(1 - inside(box, SIZE).float().mean() - kept) < 1e-6


@pytest.mark.parametrize("per", ["batch", "pair"])
def test_shares_of_labels_are_shares_of_pixels(per):
    """White images mixed with black partners are as bright as their share of the label."""
    for step in range(20):
        mix = draw(64, per=per, step=step)
        half = torch.arange(64) < mix.partner
        white = half.float()[:, None, None, None].expand(-1, 3, *SIZE)
        brightness = mix_images(white, mix).mean((1, 2, 3))
        expected = torch.where(half, mix.share, 1 - mix.share)
        torch.testing.assert_close(brightness, expected)


def test_mixing_is_the_formula_of_the_papers():
    images = torch.rand(64, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    targets = torch.eye(10)[torch.arange(64) % 10]
    mix = draw(64)
    got, soft = mix_images(images, mix), mix_targets(targets, mix)
    cut = mix.weight == 1
    assert 10 < cut.sum() < 54
    for i in range(64):
        partner, share = int(mix.partner[i]), float(mix.share[i])
        if cut[i]:
            top, left, height, width = (int(side[i]) for side in mix.box)
            wanted = images[i].clone()
            window = (slice(None), slice(top, top + height), slice(left, left + width))
            wanted[window] = images[partner][window]
        else:
            wanted = share * images[i] + (1 - share) * images[partner]
        torch.testing.assert_close(got[i], wanted)
        torch.testing.assert_close(soft[i], share * targets[i] + (1 - share) * targets[partner])


def test_a_batch_shares_one_share_and_a_pair_has_its_own():
    together = [draw(64, per="batch", step=step) for step in range(200)]
    assert all(len(mix.share.unique()) == 1 for mix in together)
    pairs = draw(64, per="pair")
    assert torch.equal(pairs.share, pairs.share[pairs.partner])
    assert torch.equal(pairs.box.top, pairs.box.top[pairs.partner])
    assert len(pairs.share.unique()) > 25
    cut = torch.tensor([bool(mix.weight[0] == 1) for mix in together])
    assert 70 < cut.sum() < 130


def test_kinds_can_be_switched_off():
    assert (draw(64, cutmix=0.0).weight == draw(64, cutmix=0.0).share).all()
    assert (draw(64, mixup=0.0).weight == 1).all()
    assert (draw(64, mixup=0.0).share < 1).any()
    never = draw(64, probability=0.0)
    assert (never.share == 1).all()
    half = draw(4096, probability=0.5, mixup=1.0, cutmix=0.0)
    assert abs((half.share == 1).float().mean() - 0.5) < 0.05


def test_a_batch_of_broken_groups_is_refused():
    with pytest.raises(ValueError, match=r"batch of 60 images .* groups of 8"):
        draw(60)
