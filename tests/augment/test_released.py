"""Augmentation as the papers' released code does it, restated with Pillow or literally."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from smallvit.augment import PRESETS, Augmentation, AugmentConfig
from smallvit.augment.mixing import cut_box
from smallvit.augment.operations import NUMBER, operate, operate_by_groups
from smallvit.augment.policies import auto_augment, draw_policy, policy_table
from smallvit.augment.randomness import uniform

SIZE = (32, 40)


def augmentation(config, size=SIZE, channels=3):
    statistics = {"mean": (0.4,) * channels, "std": (0.2,) * channels}
    return Augmentation(config, image_size=size, num_classes=4, **statistics)


def drawn_arguments(table, op, flavour):
    """All arguments with which a policy applies an operation."""
    policy = auto_augment(table, SIZE, flavour)
    u = uniform(torch.tensor(1), torch.tensor(2), torch.arange(20_000), policy.draws)
    drawn = draw_policy(policy, policy_table(policy), u)
    return sorted(set(drawn.arguments[drawn.ops == NUMBER[op]].tolist()))


def test_deepvoltaire_turns_one_way_does_not_cut_and_solarizes_from_256():
    turns = drawn_arguments("imagenet", "rotate", "deepvoltaire")
    assert turns == pytest.approx([10, 30 * 8 / 9, 30])
    both = drawn_arguments("imagenet", "rotate", "torchvision")
    assert both == pytest.approx(sorted([*turns, *(-turn for turn in turns)]))
    steps = [150 / 331 * 40 * s / 9 for s in (8, 9)]
    moves = drawn_arguments("cifar10", "translate_x", "deepvoltaire")
    assert moves == pytest.approx([-steps[1], -steps[0], *steps])
    inverted = drawn_arguments("cifar10", "solarize", "deepvoltaire")
    assert inverted == pytest.approx([256 * (1 - s / 9) for s in (8, 5, 3, 2)])


def pillow(image, op, argument):
    """One operation of that code, in Pillow."""
    size, grey = image.size, (128, 128, 128)
    if op == "rotate":
        turned = image.convert("RGBA").rotate(argument)
        back = Image.new("RGBA", size, (*grey, 128))
        return Image.composite(turned, back, turned).convert("RGB")
    matrix = {
        "shear_x": (1, argument, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, argument, 1, 0),
        "translate_x": (1, 0, -argument, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, -argument),
    }[op]
    way = Image.Resampling.BICUBIC if op.startswith("shear") else Image.Resampling.NEAREST
    return image.transform(size, Image.Transform.AFFINE, matrix, way, fillcolor=grey)


@pytest.mark.parametrize("apply", [operate, operate_by_groups])
@pytest.mark.parametrize(
    ("op", "argument"),
    [
        ("shear_x", 0.3 * 4 / 9),
        ("shear_y", -0.3 * 8 / 9),
        ("rotate", 30 * 3 / 9),
        ("translate_x", 150 / 331 * 40 * 8 / 9),
        ("translate_x", -150 / 331 * 40),
        ("translate_y", 150 / 331 * 32 * 3 / 9),
    ],
)
def test_maps_are_pillows(images, op, argument, apply):
    """Shears bicubic, the others nearest."""
    ops = torch.full((64,), NUMBER[op])
    fill = torch.full((3,), 128, dtype=torch.uint8)
    arguments = torch.full((64,), argument)
    ours = apply(images, ops, arguments, fill, interpolation="shears")
    for image, got in zip(images[:8], ours, strict=False):
        wanted = pillow(Image.fromarray(image.permute(1, 2, 0).numpy()), op, argument)
        difference = np.abs(np.asarray(wanted).astype(int) - got.permute(1, 2, 0).numpy())
        if op.startswith("shear"):
            assert difference.max() <= 1
            assert np.mean(difference) < 0.02
        else:
            assert np.mean(difference) < 0.2  # a tie of rounding in a rotation
    bilinear = apply(images, ops, arguments, fill, interpolation="bilinear")
    assert not torch.equal(ours, bilinear)


def their_holes(count):
    """Heights and widths of the SPT paper's erasing, literally."""
    draw = random.Random(0)
    sides = []
    for _ in range(count):
        for _ in range(100):
            area = draw.uniform(0.02, 0.4) * SIZE[0] * SIZE[1]
            aspect = draw.uniform(0.3, 1 / 0.3)
            height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if height < SIZE[0] and width < SIZE[1]:
                sides.append((height, width))
                break
    return torch.tensor(sides, dtype=torch.float32)


def test_spt_erasing_has_uniform_aspect_and_fills_the_raw_mean():
    config = replace(AugmentConfig(), erasing=1.0, erasing_area=(0.02, 0.4))
    config = replace(config, erasing_shape="uniform", erasing_fill="raw")
    black = torch.zeros(4000, 3, *SIZE, dtype=torch.uint8)
    labels, step, positions = black[:, 0, 0, 0].long(), torch.tensor(3), torch.arange(4000)
    out, _ = augmentation(config)(black, labels, step, positions)
    holes = out != out.min()
    assert out[holes].unique().tolist() == pytest.approx([0.4])
    ours = torch.stack([holes[:, 0].any(2).sum(1), holes[:, 0].any(1).sum(1)], 1).float()
    theirs = their_holes(4000)
    torch.testing.assert_close(ours.mean(0), theirs.mean(0), atol=0.4, rtol=0)
    tall = [(sides[:, 0] > sides[:, 1]).float().mean().item() for sides in (ours, theirs)]
    assert tall[0] == pytest.approx(tall[1], abs=0.03)
    log = augmentation(replace(config, erasing_shape="log"))(black, labels, step, positions)[0]
    holes = log != log.min()
    taller = (holes[:, 0].any(2).sum(1) > holes[:, 0].any(1).sum(1)).float().mean()
    assert taller < tall[1] - 0.1


@pytest.mark.parametrize("share", [0.03, 0.5, 0.77, 0.999])
@pytest.mark.parametrize("centre", [(0, 0), (15, 19), (31, 39)])
def test_even_boxes_are_those_of_the_papers_code(share, centre):
    y, x = (torch.tensor([(c + 0.5) / side]) for c, side in zip(centre, SIZE, strict=True))
    box = cut_box(torch.tensor([share]), y, x, SIZE, even=True)
    for middle, side, first, length in zip(
        centre, SIZE, (box.top, box.left), (box.height, box.width), strict=True
    ):
        half = int(side * math.sqrt(1 - share)) // 2
        low, high = max(middle - half, 0), min(middle + half, side)
        assert (int(first), int(length)) == (low, high - low)


def test_erasing_last_leaves_no_hole_half_mixed():
    """Erased first, the partner shows through a hole; erased last, the hole is of one colour."""
    config = replace(AugmentConfig(), erasing=1.0, erasing_fill="raw", mixup=1.0)
    images = torch.randint(0, 60, (64, 3, *SIZE), dtype=torch.uint8)
    arguments = images, torch.arange(64) % 4, torch.tensor(1), torch.arange(64)
    last, targets = augmentation(replace(config, erasing_last=True))(*arguments)
    first, same = augmentation(config)(*arguments)
    assert torch.equal(targets, same)
    assert (last == 0.4).flatten(1).any(1).all()
    assert (first == 0.4).float().mean() < (last == 0.4).float().mean() / 2


def test_every_part_of_a_batch_is_mixed_in_its_own_way():
    """As by eight processes with 128 images each."""
    config = AugmentConfig(mixup=0.8, cutmix=1.0, mix_batch=16)
    images = torch.randint(0, 256, (64, 3, *SIZE), dtype=torch.uint8)
    labels, step, positions = torch.arange(64), torch.tensor(1), torch.arange(64)

    def kept(config, part=slice(None)):
        statistics = {"mean": (0.4,) * 3, "std": (0.2,) * 3}
        augment = Augmentation(config, image_size=SIZE, num_classes=64, **statistics)
        targets = augment(images[part], labels[part], step, positions[part])[1]
        return targets[torch.arange(len(targets)), labels[part]]

    shares = kept(config)
    assert len(set(shares.tolist())) == 4
    assert (shares.view(4, 16) == shares[::16, None]).all()
    assert torch.equal(kept(config, slice(24, 40)), shares[24:40])  # whatever a pass begins with
    assert len(set(kept(replace(config, mix_batch=0)).tolist())) == 1


def test_presets_as_released():
    spt = [PRESETS[f"spt_{name}"] for name in ("cifar", "svhn", "imagenet")]
    assert all(
        (p.flavour, p.erasing_shape, p.erasing_fill) == ("deepvoltaire", "uniform", "raw")
        for p in spt
    )
    assert [p.flip for p in spt] == [0.5] * 3
    assert [p.policy_interpolation for p in spt] == ["shears"] * 3
    papers = {name: p for name, p in PRESETS.items() if name != "none"}
    assert all(p.even_box for p in papers.values())
    assert {name for name, p in papers.items() if p.erasing_last} == {
        "compact_cifar10",
        "compact_cifar100",
        "compact_flowers",
        "compact_imagenet",
    }
    drloc = PRESETS["drloc"]
    assert (drloc.resized_crop, drloc.policy, drloc.magnitude) == ((0.08, 1.0), "rand", 9)
    assert (drloc.erasing, drloc.erasing_fill) == (0.25, "pixel")
    assert (drloc.mixup, drloc.cutmix, drloc.smoothing) == (0.8, 1.0, 0.1)
    shared = {name: p.mix_batch for name, p in papers.items() if p.mix_batch}
    assert shared == {"compact_imagenet": 128, "drloc": 128}
    compact = ("cifar10", "cifar100", "flowers", "imagenet")
    assert [PRESETS[f"compact_{name}"].erasing for name in compact] == [0, 0.25, 0.25, 0.25]
