import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from smallvit.augment.boxes import BOX_DRAWS, Box
from smallvit.augment.geometry import affine, crop, draw_resized_crop, resized_crop
from smallvit.augment.operations import NUMBER, operate, operate_by_groups
from smallvit.augment.randomness import uniform

FILL = torch.tensor([9, 99, 200], dtype=torch.uint8)
NO = torch.zeros(64, dtype=torch.bool)


def random(count: int, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=torch.Generator().manual_seed(1))


def worst(got: Tensor, wanted: Tensor) -> int:
    return int((got.int() - wanted.int()).abs().max())


def test_flips_agree_with_torchvision(images):
    from torchvision.transforms.v2 import functional as F

    across, over = random(64, 0, 1) < 0.5, random(64, 0, 1) * 7 % 1 < 0.5
    zero = torch.zeros(64, dtype=torch.int64)
    got = crop(images, zero, zero, (32, 40), mirrored=across, upturned=over)
    for image, mirrored, upturned, result in zip(images, across, over, got, strict=True):
        image = F.horizontal_flip(image) if mirrored else image
        image = F.vertical_flip(image) if upturned else image
        assert torch.equal(result, image)


@pytest.mark.parametrize(("size", "padding"), [((32, 40), 4), ((24, 24), 0), ((36, 44), 9)])
def test_padded_crop_agrees_with_torchvision(images, size, padding):
    from torchvision.transforms.v2 import functional as F

    room = [side + 2 * padding - target for side, target in zip((32, 40), size, strict=True)]
    top, left = (random(64, 0, 1).roll(i).mul(r + 1).long() for i, r in enumerate(room))
    got = crop(images, top - padding, left - padding, size, mirrored=NO, upturned=NO)
    for image, y, x, result in zip(F.pad(images, [padding]), top, left, got, strict=True):
        assert torch.equal(result, F.crop(image, int(y), int(x), *size))


@pytest.mark.parametrize("size", [(32, 40), (20, 24), (48, 33)])
@pytest.mark.parametrize("cubic", [False, True])
def test_resized_crop_agrees_with_torchvision_to_two_levels(images, cubic, size):
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    u = uniform(torch.tensor(0), torch.tensor(0), torch.arange(64), BOX_DRAWS)
    box = draw_resized_crop(u, (32, 40), (0.08, 1.0), (3 / 4, 4 / 3))
    mirrored = torch.arange(64) % 2 == 0
    got = resized_crop(images, box, size, cubic=~NO & cubic, mirrored=mirrored, upturned=NO)
    mode = InterpolationMode.BICUBIC if cubic else InterpolationMode.BILINEAR
    for i, image in enumerate(images):
        wanted = F.resized_crop(image, *(int(side[i]) for side in box), list(size), mode)
        assert worst(got[i], F.horizontal_flip(wanted) if mirrored[i] else wanted) <= 2


def test_each_image_has_its_own_interpolation(images):
    box = Box(*(torch.full((64,), side) for side in (3, 5, 20, 25)))
    cubic = torch.arange(64) % 3 == 0
    kinds = {"size": (32, 40), "mirrored": NO, "upturned": NO}
    got = resized_crop(images, box, cubic=cubic, **kinds)
    linear = resized_crop(images, box, cubic=NO, **kinds)
    curved = resized_crop(images, box, cubic=~NO, **kinds)
    assert torch.equal(got, torch.where(cubic[:, None, None, None], curved, linear))
    assert not torch.equal(curved, linear)


def test_resized_crop_is_drawn_as_torchvision_draws_it():
    from torchvision.transforms import RandomResizedCrop

    torch.manual_seed(0)
    n, size, scale, aspect = 5000, (32, 40), (0.5, 1.0), (3 / 4, 4 / 3)
    image = torch.zeros(3, *size)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, list(scale), list(aspect)) for _ in range(n)]
    )
    u = uniform(torch.tensor(0), torch.tensor(0), torch.arange(n), BOX_DRAWS)
    ours = torch.stack(draw_resized_crop(u, size, scale, aspect), 1)
    for side in range(4):
        a, b = (
            torch.histc(drawn[:, side].float(), 41, 0, 41).cumsum(0) / n for drawn in (ours, theirs)
        )
        assert (a - b).abs().max() < 2 * (2 / n) ** 0.5


def test_a_frame_no_shape_fits_gives_the_largest_centred_window():
    u = uniform(torch.tensor(0), torch.tensor(0), torch.arange(4), BOX_DRAWS)
    box = draw_resized_crop(u, (10, 100), (0.9, 1.0), (3 / 4, 4 / 3))
    assert [side.tolist() for side in box] == [[0] * 4, [43] * 4, [10] * 4, [13] * 4]


MAPS = {
    "shear_x": random(64, -0.99, 0.99),
    "shear_y": random(64, -0.99, 0.99),
    "translate_x": random(64, -18, 18).round(),
    "translate_y": random(64, -18, 18).round(),
    "rotate": random(64, -135, 135),
}


def torchvision_map(name: str, image: Tensor, argument: float, interpolation, fill) -> Tensor:
    from torchvision.transforms.v2 import functional as F

    if name == "rotate":
        return F.rotate(image, argument, interpolation, fill=fill)
    slope = math.degrees(math.atan(argument))
    shear = {"shear_x": [slope, 0.0], "shear_y": [0.0, slope]}
    shift = {"translate_x": [argument, 0], "translate_y": [0, argument]}
    return F.affine(
        image,
        0.0,
        shift.get(name, [0, 0]),
        1.0,
        shear.get(name, [0.0, 0.0]),
        interpolation,
        fill,
        center=[0, 0] if name in shear else None,
    )


@pytest.mark.parametrize("apply", [operate, operate_by_groups])
@pytest.mark.parametrize("name", list(MAPS))
def test_nearest_maps_agree_with_torchvision(images, name, apply):
    from torchvision.transforms import InterpolationMode

    ops = torch.full((64,), NUMBER[name])
    got = apply(images, ops, MAPS[name], FILL)
    for image, argument, result in zip(images, MAPS[name].tolist(), got, strict=True):
        wanted = torchvision_map(name, image, argument, InterpolationMode.NEAREST, FILL.tolist())
        assert worst(result, wanted) <= 1
    assert not torch.equal(got, images)


@pytest.mark.parametrize("way", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", list(MAPS))
def test_smooth_maps_agree_with_pillow_to_one_level(images, name, way):
    """Edges too: those of all released code, which is Pillow's, are hard."""
    from timm.data import auto_augment

    calls = {
        "shear_x": (auto_augment.shear_x, 1.0),
        "shear_y": (auto_augment.shear_y, 1.0),
        "translate_x": (auto_augment.translate_x_abs, -1.0),
        "translate_y": (auto_augment.translate_y_abs, -1.0),
        "rotate": (auto_augment.rotate, 1.0),
    }
    call, sign = calls[name]
    options = {"resample": Image.Resampling[way.upper()], "fillcolor": tuple(FILL.tolist())}
    arguments = MAPS[name] + 0.3 * name.startswith("translate")
    ops = torch.full((64,), NUMBER[name])
    got = operate(images, ops, arguments, FILL, interpolation=way)
    for image, argument, result in zip(images, arguments.tolist(), got, strict=True):
        moved = call(Image.fromarray(image.permute(1, 2, 0).numpy()), sign * argument, **options)
        wanted = torch.from_numpy(np.array(moved)).permute(2, 0, 1)
        near = (result.int() - wanted.int()).abs() <= 1
        # A source on the edge of the frame may fall either way in float32.
        assert near.float().mean() > 0.999


def affine_matrix(angle: Tensor, translation: Tensor, scale: Tensor, shear: Tensor) -> Tensor:
    """The map of a clockwise rotation and a shear in degrees, a scale and a shift in pixels."""
    turn = torch.deg2rad(angle)
    shear_x, shear_y = torch.deg2rad(shear).unbind(1)
    a = torch.cos(turn - shear_y) / torch.cos(shear_y)
    c = torch.sin(turn - shear_y) / torch.cos(shear_y)
    b = -(a * torch.tan(shear_x) + torch.sin(turn))
    d = torch.cos(turn) - c * torch.tan(shear_x)
    inverse = torch.stack([d, -b, -c, a], 1).view(-1, 2, 2) / scale[:, None, None]
    return torch.cat([inverse, -inverse @ translation[:, :, None]], 2)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_affine_agrees_with_torchvision(images, interpolation):
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    angle, scale = random(64, -180, 180), random(64, 0.6, 1.6).flip(0)
    shift = torch.stack([random(64, -9, 9).roll(3), random(64, -9, 9).roll(5)], 1).round()
    shear = torch.stack([random(64, -40, 40).roll(7), random(64, -30, 30).roll(9)], 1)
    matrix = affine_matrix(angle, shift, scale, shear)
    black = torch.zeros(3, dtype=torch.uint8)
    got = affine(images, matrix, black, interpolation=interpolation)
    for i, image in enumerate(images):
        arguments = (float(angle[i]), shift[i].tolist(), float(scale[i]), shear[i].tolist())
        mode = InterpolationMode(interpolation)
        wanted = F.affine(image, *arguments, interpolation=mode).float()
        near = (got[i] - wanted).abs() <= (0 if interpolation == "nearest" else 2)
        if interpolation == "bilinear":  # torchvision blends the edge, Pillow and we do not
            white = F.affine(torch.full_like(image, 255), *arguments, interpolation=mode)
            near |= white < 255
        share = near.float()
        # A source on the line between two pixels may fall either way in float32.
        assert share.mean() > (0.998 if interpolation == "nearest" else 0.9999)


def test_random_interpolation_is_bilinear_or_bicubic_image_by_image(images):
    ops = torch.full((64,), NUMBER["rotate"])
    cubic = torch.arange(64) % 2 == 0
    results = {
        kind: operate(images, ops, MAPS["rotate"], FILL, interpolation=kind, cubic=cubic)
        for kind in ("random", "bilinear", "bicubic")
    }
    wanted = torch.where(cubic[:, None, None, None], results["bicubic"], results["bilinear"])
    assert torch.equal(results["random"], wanted)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "random"])
def test_identity_changes_nothing(images, interpolation):
    none = torch.zeros(64)
    ops = torch.full((64,), NUMBER["identity"])
    cubic = torch.arange(64) % 2 == 0
    for apply in (operate, operate_by_groups):
        got = apply(images, ops, none, FILL, interpolation=interpolation, cubic=cubic)
        assert torch.equal(got, images)
