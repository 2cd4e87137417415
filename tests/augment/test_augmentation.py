import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from smallvit.augment import PRESETS, Augmentation, AugmentConfig
from smallvit.augment.boxes import BOX_DRAWS, draw_box, erase
from smallvit.augment.randomness import uniform

STATISTICS = {"mean": (0.49, 0.48, 0.45), "std": (0.2, 0.21, 0.26)}
ALL = {
    **PRESETS,
    "trivial": AugmentConfig(policy="trivial", interpolation="bilinear", vertical_flip=0.3),
    "per pair": replace(PRESETS["compact_cifar100"], mix_per="pair", interpolation="bicubic"),
}


def make(config: AugmentConfig, size: tuple[int, int] = (32, 40), **options) -> Augmentation:
    return Augmentation(config, image_size=size, num_classes=10, **(STATISTICS | options))


def run(augment: Augmentation, images: Tensor, step: int = 5, first: int = 0) -> list[Tensor]:
    positions = torch.arange(first, first + len(images))
    return list(augment(images, positions % 10, torch.tensor(step), positions))


@pytest.mark.parametrize("name", list(ALL))
def test_any_split_of_the_batch_sees_the_same_images(images, name):
    augment = make(ALL[name])
    together = run(augment, images)
    for parts in ([32, 32], [16, 16, 16, 16], [8, 40, 16]):
        starts = [sum(parts[:i]) for i in range(len(parts))]
        pieces = [
            run(augment, part, first=first)
            for part, first in zip(images.split(parts), starts, strict=True)
        ]
        for i, tensor in enumerate(together):
            assert torch.equal(tensor, torch.cat([piece[i] for piece in pieces]))
    draws, _ = augment.draw(torch.tensor(5), torch.arange(64))
    later, _ = augment.draw(torch.tensor(5), torch.arange(17, 64))
    for whole, part in zip(draws, later, strict=True):
        assert torch.equal(whole[17:], part)


@pytest.mark.parametrize("name", [name for name in ALL if name != "none"])
def test_step_seed_and_position_change_the_images(images, name):
    augment = make(ALL[name])
    here = run(augment, images)[0]
    assert torch.equal(here, run(make(ALL[name]), images)[0])
    assert not torch.equal(here, run(augment, images, step=6)[0])
    assert not torch.equal(here, run(augment, images, first=64)[0])
    assert not torch.equal(here, run(make(ALL[name], seed=1), images)[0])


def test_64_copies_get_64_independent_draws(images):
    """Where torchvision's v2 transforms, given a batch, draw once for all of it."""
    from torchvision.transforms import v2

    copies = images[:1].expand(64, -1, -1, -1).contiguous()
    torch.manual_seed(0)
    once = v2.Compose([v2.RandomResizedCrop((32, 40), (0.8, 1.0)), v2.RandAugment()])(copies)
    assert len(once.flatten(1).unique(dim=0)) == 1
    augment = make(replace(PRESETS["compact_cifar10"], mixup=0.0, cutmix=0.0))
    step, positions = torch.tensor(0), torch.arange(64)
    ours = augment.transform(copies, step, positions)
    assert len(ours.flatten(1).unique(dim=0)) == 64
    draws = torch.cat([augment.draw(torch.tensor(s), positions)[0].policy for s in range(200)], 1)
    assert torch.corrcoef(draws).fill_diagonal_(0).abs().max() < 5 / draws.shape[1] ** 0.5
    for spread in (draws.std(0), draws.std(1)):
        assert (spread - 12**-0.5).abs().max() < 0.1


def test_all_kinds_together_or_by_groups_is_the_same(images, monkeypatch):
    from smallvit.augment import pipeline

    for name, config in ALL.items():
        grouped = run(make(config), images)
        monkeypatch.setattr(pipeline, "operate_by_groups", pipeline.operate)
        together = run(make(config), images)
        monkeypatch.undo()
        for a, b in zip(grouped, together, strict=True):
            assert torch.equal(a, b), name


@pytest.mark.parametrize("name", ["spt_cifar", "compact_cifar100"])
def test_steps_that_are_alike_give_the_same_images(images, name):
    augment = make(ALL[name])
    expected, before = run(augment, images), augment.among
    augment.alike = True
    assert len(set(augment.among)) == 1
    assert set.union(*map(set, before)) == augment.among[0]
    assert all(torch.equal(*pair) for pair in zip(run(augment, images), expected, strict=True))


def test_switching_a_part_off_leaves_the_other_draws_alone(images):
    full = make(PRESETS["spt_cifar"]).transform(images, torch.tensor(3), torch.arange(64))
    plain = replace(PRESETS["spt_cifar"], erasing=0.0, mixup=0.0, cutmix=0.0)
    assert torch.equal(full, make(plain).transform(images, torch.tensor(3), torch.arange(64)))


def test_nothing_to_do_is_normalisation(images):
    out, targets = run(make(AugmentConfig()), images)
    mean, std = (torch.tensor(STATISTICS[name])[:, None, None] for name in ("mean", "std"))
    torch.testing.assert_close(out, (images / 255 - mean) / std, atol=1e-5, rtol=0)
    assert torch.equal(targets, torch.eye(10)[torch.arange(64) % 10])


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("name", list(ALL))
def test_any_number_of_channels(name, channels):
    images = torch.randint(0, 256, (16, channels, 20, 24), generator=torch.Generator())
    statistics = {"mean": (0.5,) * channels, "std": (0.25,) * channels}
    out, targets = run(make(ALL[name], (20, 24), **statistics), images.to(torch.uint8))
    assert out.shape == images.shape
    assert out.isfinite().all()
    torch.testing.assert_close(targets.sum(1), torch.ones(16))


def test_the_output_may_have_another_size(images):
    resized = make(AugmentConfig(resized_crop=(0.3, 1.0)), (24, 20))
    assert run(resized, images)[0].shape == (64, 3, 24, 20)
    cropped = make(AugmentConfig(padding=2), (24, 44))
    assert run(cropped, images)[0].shape == (64, 3, 24, 44)


def test_padded_crops_and_flips_are_equally_likely():
    n = 4000
    augment = make(AugmentConfig(padding=1, flip=0.5), (4, 4))
    ramp = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4).expand(n, 3, 4, 4)
    out = augment.transform(ramp.contiguous(), torch.tensor(0), torch.arange(n))
    kinds, counts = out.flatten(1).unique(dim=0, return_counts=True)
    assert len(kinds) == 18
    assert (counts - n / 18).abs().max() < 4.5 * (n / 18) ** 0.5


def test_erasing_agrees_with_torchvision(images):
    from torchvision.transforms.v2.functional import erase as torchvision_erase

    values, noise = images.float(), torch.randn(64, 3, 32, 40)
    u = uniform(torch.tensor(0), torch.tensor(0), torch.arange(64), BOX_DRAWS)
    box = draw_box(u, (32, 40), (0.02, 0.4), (0.3, 1 / 0.3), smaller=True)
    got = erase(values, box, noise)
    for i in range(64):
        top, left, height, width = (int(side[i]) for side in box)
        value = noise[i, :, top : top + height, left : left + width]
        wanted = torchvision_erase(values[i], top, left, height, width, value)
        assert torch.equal(got[i], wanted)


@pytest.mark.parametrize("fill", ["const", "pixel"])
def test_erasing_is_drawn_as_timm_draws_it(fill):
    """Same frequency, same heights and widths, and the mean colour or normal noise inside."""
    from timm.data.random_erasing import RandomErasing

    n, size = 4000, (16, 20)
    random.seed(0)
    torch.manual_seed(0)
    theirs = RandomErasing(0.25, 0.02, 0.4, 0.3, mode=fill, device="cpu")(torch.ones(n, 1, *size))
    config = AugmentConfig(
        erasing=0.25, erasing_area=(0.02, 0.4), erasing_aspect=0.3, erasing_fill=fill
    )
    augment = make(config, size, mean=(0.0,), std=(1.0,))
    ours = run(augment, torch.full((n, 1, *size), 255, dtype=torch.uint8))[0]
    shapes = []
    for images in (ours, theirs):
        holes = images != 1
        shapes.append(torch.stack([holes.any(3).sum((1, 2)), holes.any(2).sum((1, 2))], 1))
        wiped = images[holes]
        if fill == "const":
            assert (wiped == 0).all()
        else:
            assert abs(wiped.mean()) < 0.02
            assert abs(wiped.std() - 1) < 0.02
            assert abs((wiped.abs() < 1).float().mean() - 0.6827) < 0.01
    for side in range(2):
        a, b = (torch.histc(s[:, side].float(), 21, 0, 21).cumsum(0) / n for s in shapes)
        assert (a - b).abs().max() < 2 * (2 / n) ** 0.5


def test_noise_differs_between_images_channels_and_steps():
    config = AugmentConfig(
        erasing=1.0, erasing_area=(0.9, 0.9), erasing_aspect=1.0, erasing_fill="pixel"
    )
    black = torch.zeros(16, 3, 32, 32, dtype=torch.uint8)
    augment = make(config, (32, 32))
    noise = torch.cat([run(augment, black, step)[0][..., 4:28, 4:28] for step in range(4)])
    table = torch.corrcoef(noise.flatten(2).flatten(0, 1)).fill_diagonal_(0)
    assert table.abs().max() < 5.5 / 24


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"flip": 1.5}, "flip is 1.5: allowed is 0 to 1"),
        ({"resized_crop": (0.9, 0.8)}, "resized_crop is"),
        ({"aspect": (2.0, 1.0)}, "aspect is"),
        ({"mixup": -1.0}, "mixup is -1.0"),
        ({"padding": 4, "resized_crop": (0.8, 1.0)}, "choose one crop"),
        ({"mix_group": 7}, "mix_group is 7: give an even number"),
        ({"resize_interpolation": "nearest"}, "resize_interpolation is 'nearest'"),
    ],
)
def test_a_wrong_config_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        AugmentConfig(**wrong)


def test_an_unknown_name_is_refused():
    """By the config itself, or before it by the checker that tests may run under."""
    with pytest.raises((ValueError, TypeError), match="policy"):
        AugmentConfig(policy="random")


def test_images_that_do_not_fit_are_refused(images):
    with pytest.raises(ValueError, match="3 channels"):
        run(make(AugmentConfig()), images[:, :1])
    with pytest.raises(ValueError, match="32×40 with padding 0 do not give windows of 16×16"):
        run(make(AugmentConfig(), (16, 16)), images)
    with pytest.raises(ValueError, match="no standard deviation of 0"):
        make(AugmentConfig(), std=(0.1, 0.2, 0.0))


def test_a_part_that_begins_inside_a_mixing_group_is_refused(images):
    with pytest.raises(ValueError, match="position 4, in the middle of a mixing group of 8"):
        run(make(PRESETS["spt_cifar"]), images, first=4)


def test_there_is_nothing_to_save():
    augment = make(PRESETS["compact_cifar100"])
    assert not augment.state_dict()
    assert not list(augment.parameters())


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["spt_cifar", "trivial", "per pair"])
def test_compiles_to_one_graph_once_for_all_steps(images, name):
    augment = make(ALL[name])
    compiled = torch.compile(augment, fullgraph=True, backend="aot_eager")
    run(compiled, images, step=0)
    with torch.compiler.set_stance("fail_on_recompile"):
        for step in (1, 2, 2**33):
            for first in (0, 64):
                got = run(compiled, images, step, first)
                for a, b in zip(got, run(augment, images, step, first), strict=True):
                    torch.testing.assert_close(a, b)


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.parametrize("name", ["spt_cifar", "compact_cifar100"])
def test_generated_code_gives_the_same_images(images, name):
    """Up to a rounding of a level here and there, which a later operation may enlarge."""
    augment = make(ALL[name])
    compiled = torch.compile(augment, fullgraph=True)
    for step in range(8):
        (a, soft), (b, wanted) = run(compiled, images, step), run(augment, images, step)
        assert ((a - b).abs() < 0.03).float().mean() > 0.999
        torch.testing.assert_close(soft, wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_graph_replays_with_another_step(images):
    augment = make(PRESETS["compact_cifar100"]).cuda()
    moved, step = images.cuda(), torch.tensor(0, device="cuda")
    positions = torch.arange(64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        augment(moved, positions % 10, step, positions)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, targets = augment(moved, positions % 10, step, positions)
    for value in (3, 4):
        step.fill_(value)
        graph.replay()
        wanted, soft = run(make(PRESETS["compact_cifar100"]), images, value)
        assert ((out.cpu() - wanted).abs() < 0.03).float().mean() > 0.99
        torch.testing.assert_close(targets.cpu(), soft)
