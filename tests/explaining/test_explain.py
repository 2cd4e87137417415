"""Where a model looks: literal oracles, planted evidence, every family."""

import copy

import numpy as np
import pytest
import timm
import torch
from torch import nn

from smallvit.explaining.explain import explain, overlay, reading, receptive_field, temperatures
from smallvit.explaining.probes import EVEN, SAYS_EVEN, SAYS_WHOLE, evenness
from smallvit.explaining.rollout import Shares, carry, spread, step_back
from smallvit.layers import (
    ConvAttention,
    PatchMerging,
    Performer,
    PiTPooling,
    TokenTransformer,
    WindowAttention,
)
from smallvit.layers.pooling import ClassToken, SeqPool
from smallvit.models import create_model
from smallvit.models.build import make_model
from smallvit.models.timm_names import localize, timm_name
from tests.models.shrunk import FAMILIES, NAMES, shrunk, small_size
from tests.untrained import sharpen

ALL = [
    name
    for name in NAMES
    if name.partition("+")[0] in FAMILIES and not name.endswith(("2+spt", "4+spt", "+spt+lsa"))
]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def make_images(model, batch=2):
    return torch.randn(batch, model.config.in_channels, *model.config.image_size)


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def unscaled(model, images):
    """Shares of the first tokens before anything is scaled."""
    weights = []
    with torch.no_grad():
        features = model.forward_features(images, weights=weights)
    return carry(model.attention_stages(), weights, reading(model, features.tokens, features.grid))


@pytest.mark.parametrize("name", ALL)
def test_every_family(name):
    height, width = small_size(name)
    model = shrunk(name, image_size=(height, 2 * width)).eval()
    images = make_images(model)
    found = explain(model, images)
    weights = model.attention_maps(images)

    assert found.grid == model.grid
    assert found.gradient.shape == found.rollout.shape
    assert found.rollout.shape[2] == 2 * found.rollout.shape[1] >= 2 * model.grid[0]
    assert len(found.heads) == len(weights)
    assert found.heads[0].shape[2:] == found.rollout.shape[1:]
    grids = [stage.grid for stage in model.attention_stages() if stage.attentions]
    assert found.heads[-1].shape[2:] == grids[-1]
    for maps in (found.rollout, found.gradient, *found.heads):
        assert maps.dtype == np.float32
        assert maps.min() >= 0
        peaks = maps.max((-2, -1))
        close(peaks[peaks > 0], 1)
    assert found.rollout.any((1, 2)).all()
    torch.testing.assert_close(torch.from_numpy(found.logits), model(images), rtol=1e-4, atol=1e-5)
    assert (found.target == found.logits.argmax(1)).all()

    shares, heads = unscaled(model, images)
    total = shares.lead.sum(1) + shares.places.sum((1, 2))
    torch.testing.assert_close(total, torch.ones(2))
    for seen, layer in zip(heads, found.heads, strict=True):
        close(layer, seen / seen.amax((-2, -1), keepdim=True))

    alone = explain(model, images[1:2])
    close(alone.rollout[0], found.rollout[1], 1e-4)
    close(alone.gradient[0], found.gradient[1], 2e-3)
    for one, many in zip(alone.heads, found.heads, strict=True):
        close(one[0], many[1], 1e-3)


def product(weights):
    """Abnar & Zuidema for one image: each matrix made whole, all multiplied."""
    total = None
    for weight in weights:
        heads, rows, columns = weight.shape
        matrix = np.zeros((rows, columns))
        for i in range(rows):
            for j in range(columns):
                matrix[i, j] = sum(weight[h, i, j] for h in range(heads)) / heads + (i == j)
        matrix /= matrix.sum(1, keepdims=True)
        total = matrix if total is None else matrix @ total
    return total


@pytest.mark.parametrize("name", ["vit_9_p4+lsa", "vit_lite_2_p4", "cct_2_3x2", "t2t_12"])
def test_rollout_is_the_papers_product(name):
    size = {"image_size": (8, 12)}
    model = shrunk(name, depth=3, **size, **{"num_splits": 1} if "t2t" in name else {}).eval()
    images = make_images(model)
    found = explain(model, images)
    maps = [layer.detach().double().numpy() for layer in model.attention_maps(images)]
    for i in range(2):
        rows = product([layer[i] for layer in maps])
        if isinstance(model.pool, ClassToken):
            row = rows[0, 1:]
            last = maps[-1][i][:, 0, 1:]
        else:
            tokens = model.forward_features(images[i : i + 1]).tokens
            share = model.pool.weights(tokens)[0].detach().double().numpy()
            row, last = share @ rows, share @ maps[-1][i]
        close(found.rollout[i], (row / row.max()).reshape(model.grid))
        heads = last / last.max(1, keepdims=True)
        close(found.heads[-1][i], heads.reshape(-1, *model.grid))


@pytest.mark.parametrize("shifted", [False, True])
def test_windows_are_put_back(shifted):
    grid, window, heads = (4, 6), 2, 3
    attention = WindowAttention(6, heads, grid=grid, window=window, shifted=shifted)
    places = torch.rand(1, *grid)
    shares = Shares(torch.zeros(1, 0), places)
    identity = torch.eye(4).expand(1, 6 * heads, 4, 4)
    before, seen = step_back(shares, identity, attention.layout)
    torch.testing.assert_close(before.places, places)
    torch.testing.assert_close(seen[0, 0], places[0] / 2)

    weights = []
    attention(torch.randn(1, 24, 6), weights=weights)
    weight = weights[0].detach()
    whole = np.zeros((heads, 24, 24))  # scattered back entry by entry
    move = attention.shift
    for number in range(6):
        top, left = number // 3 * window, number % 3 * window
        cells = [
            ((top + r + move[0]) % grid[0]) * grid[1] + (left + c + move[1]) % grid[1]
            for r in range(window)
            for c in range(window)
        ]
        for h in range(heads):
            for a, i in enumerate(cells):
                for b, j in enumerate(cells):
                    whole[h, i, j] = weight[0, number * heads + h, a, b]
    before, seen = step_back(shares, weight, attention.layout)
    row = places.flatten().double().numpy()
    close(before.places.flatten(), (row + row @ whole.mean(0)) / 2)
    close(seen[0].flatten(1), (row / 2) @ whole)


@pytest.mark.parametrize(
    ("fine", "view"),
    [
        ((8, 12), PiTPooling(4, (8, 12)).view),
        ((7, 9), ConvAttention(4, 1, grid=(7, 9), head_dim=4).layout.view),
        ((8, 4), PatchMerging(4, (8, 4)).view),
    ],
)
def test_spreading_keeps_sums_and_evenness(fine, view):
    count = view(torch.ones(1, 1, *fine)).shape[1]
    torch.testing.assert_close(
        spread(torch.full((2, count), 1 / count), fine, view),
        torch.full((2, *fine), 1 / (fine[0] * fine[1])),
    )
    one = torch.zeros(1, count)
    one[0, 0] = 1
    found = spread(one, fine, view)[0]
    assert found.sum() == pytest.approx(1)
    assert found[:2, :2].sum() == pytest.approx(1)  # the first token sees the corner alone
    assert found[0, 0] == found.max()


def test_even_attention_gives_an_even_map():
    names = ("pit_tiny_p2", "pit_tiny_p2+spt", "swin_tiny_p2+spt", "t2t_12", "cvt_13", "hct_s_p8")
    for name in names:
        model = shrunk(name).eval()
        if isinstance(model.pool, SeqPool):
            nn.init.zeros_(model.pool.score.weight)
        images = make_images(model, 1)
        weights = [torch.ones_like(w) / w.shape[-1] for w in model.attention_maps(images)]
        start = reading(model, model.forward_features(images).tokens, model.grid)
        shares, _ = carry(model.attention_stages(), weights, start)
        places = shares.places
        torch.testing.assert_close(places, places.mean().expand_as(places), msg=name)


def test_a_masked_token_does_not_look_at_itself():
    model = shrunk("vit_9_p4+lsa", pool="mean", image_size=(8, 8)).eval()
    weight = model.attention_maps(make_images(model, 1))[0].detach()
    for place in range(4):
        shares = torch.zeros(1, 4)
        shares[0, place] = 1
        after = Shares(torch.zeros(1, 0), shares.view(1, 2, 2))
        before, seen = step_back(after, weight, model.all_tokens((2, 2)))
        assert not seen.flatten(2)[..., place].any()
        assert before.places.flatten()[place] == pytest.approx(0.5)  # the residual branch


@pytest.mark.parametrize("name", ["cct_2_3x2", "vit_9_p4", "swin_tiny_p2", "t2t_12", "pit_tiny_p2"])
def test_attention_that_shows_no_place_is_named(name):
    """Scores of zero look everywhere alike, large ones somewhere."""
    model = shrunk(name).eval()
    images = make_images(model)
    sharp = copy.deepcopy(model)
    sharpen(model, 0.0)
    sharpen(sharp, 50.0)
    assert explain(model, images).silent == (SAYS_EVEN, SAYS_EVEN)
    found = explain(sharp, images)
    assert found.silent == ("", "")
    assert evenness(found.rollout).max() < EVEN


def test_a_receptive_field_as_large_as_the_image_is_named():
    model = shrunk("hct_s_p8").eval()
    sharpen(model, 50.0)
    assert receptive_field(model) >= max(model.config.image_size)
    assert explain(model, make_images(model)).silent == (SAYS_WHOLE, SAYS_WHOLE)
    other = timm.create_model("resnet10t", num_classes=3).eval()
    assert explain(other, torch.randn(2, 3, 64, 64)).silent == ("", "")


def test_evenness():
    maps = np.zeros((5, 2, 4), np.float32)
    maps[0] = 3
    maps[1, 0, 0] = 0.1
    maps[2, 0] = 1
    maps[3] = [[1, 1, 1, 1], [0.5, 0.5, 0.5, 0.5]]
    shares = np.array([2 / 3] * 4 + [1 / 3] * 4) / 4
    expected = [1, 1 / 8, 1 / 2, np.exp(-(shares * np.log(shares)).sum()) / 8, 1]
    close(evenness(maps), expected)
    close(evenness(7 * maps), expected)  # the scale does not matter
    assert evenness(maps[None, None]).shape == (1, 1, 5)


@pytest.mark.parametrize("name", FAMILIES)
def test_layouts_are_those_of_the_weights(name):
    model = shrunk(name).eval()
    stages = model.attention_stages()
    weights = iter(model.attention_maps(make_images(model, 1)))
    assert [stage.view is None for stage in stages] == [True, *[False] * (len(stages) - 1)]
    assert stages[-1].grid == model.grid
    for number, stage in enumerate(stages):
        for layout in stage.attentions:
            windows, rows = layout.queries.shape
            keys = layout.queries if layout.keys is None else layout.keys
            finer = torch.ones(1, 1, *stage.grid)
            columns = keys.shape[1] if layout.view is None else layout.view(finer).shape[1]
            weight = next(weights)
            assert weight.shape[1] % windows == 0
            assert weight.shape[2:] == (rows, columns)
        if number:
            made = stage.view(torch.ones(1, 1, *stages[number - 1].grid))
            assert made.shape[1] == stage.grid[0] * stage.grid[1]
    assert next(weights, None) is None


class Linear(nn.Module):
    """Logits that are sums over pixels, for which the gradient map has a closed form."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 16, 16))

    def forward_features(self, images):
        return images

    def forward_head(self, x):
        return torch.einsum("bchw,kchw->bk", x, self.weight)

    def forward(self, images):
        return self.forward_head(images)


def test_gradient_of_a_sum_of_pixels():
    model, images = Linear().eval(), torch.randn(2, 2, 16, 16)
    noises = [torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(i)) for i in range(16)]
    distance = images - sum(noises) / len(noises)
    for target in range(3):
        weight = model.weight[target] - model.weight.mean(0)
        expected = (distance * weight).sum(1).relu().detach().numpy()
        found = explain(model, images, target).gradient
        close(found, expected / expected.max((1, 2), keepdims=True), 1e-4)


QUADRANT = {"vit_9_p4": {}, "cct_2_3x2": {"convs": 1}, "swin_tiny_p2": {"depths": (2, 1)}}
QUADRANT |= {"vit_9_p4+spt+lsa": {}, "t2t_12": {}}


@pytest.mark.parametrize("name", QUADRANT)
def test_evidence_is_where_it_was_planted(name):
    options = {"image_size": (16, 16), "num_classes": 2, "in_channels": 1, "drop_path": 0.0}
    if "swin" in name:
        options["num_heads"] = (1, 2)
    model = shrunk(name, **options, **QUADRANT[name])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

    def planted(count):
        """Noise everywhere; stripes in the lower left quadrant, upright or lying, decide."""
        x, labels = torch.randn(count, 1, 16, 16) / 2, torch.arange(count) % 2
        stripes = (torch.arange(8) % 2 * 2.0 - 1).expand(8, 8)
        x[:, 0, 8:, :8] += torch.stack([stripes, stripes.T])[labels] * 2
        return x, labels

    for _ in range(60):
        images, labels = planted(32)
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    images, labels = planted(32)
    found = explain(model.eval(), images)
    assert (found.target == labels.numpy()).mean() > 0.95
    heat = found.gradient.mean(0)
    rows, columns = heat.shape
    inside = heat[rows // 2 :, : columns // 2].sum() / heat.sum()
    assert inside > 0.5, f"{inside:.2f} of the evidence lies where the stripes are"


def test_frozen_models_half_precision_and_targets():
    model = shrunk("cct_2_3x2").eval()
    images = make_images(model)
    expected = explain(model, images, [0, 2])
    with torch.no_grad():
        frozen = explain(model.requires_grad_(False), images, [0, 2])
    close(frozen.gradient, expected.gradient)
    assert frozen.target.tolist() == [0, 2]
    assert not any(p.grad is not None for p in model.parameters())
    assert not images.requires_grad
    half = explain(model.bfloat16(), images.bfloat16())
    assert half.rollout.dtype == half.gradient.dtype == half.logits.dtype == np.float32


def test_a_model_in_training_is_explained_in_evaluation_mode():
    model = shrunk("cct_2_3x2", dropout=0.5)
    images = make_images(model)
    maps = explain(model.train(), images)
    assert all(part.training for part in model.modules())
    expected = explain(model.eval(), images)
    for name in ("rollout", "gradient", "logits"):
        np.testing.assert_array_equal(getattr(maps, name), getattr(expected, name))


def test_refusals():
    model = shrunk("cct_2_3x2")
    images = make_images(model)
    with pytest.raises(ValueError, match="target is 3: expected one class from 0 to 2"):
        explain(model, images, 3)
    with pytest.raises(ValueError, match=r"target is \[0\]: .*each of the 2 images"):
        explain(model, images, [0])
    with pytest.raises(ValueError, match="a Linear has no forward_features"):
        explain(nn.Linear(2, 2).eval(), images)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cifar_resnet56", {}),
        ("timm/vit_tiny_patch16_224", {"patch_size": 4, "depth": 2}),
        ("timm/swin_tiny_patch4_window7_224", {"window_size": 4, "depths": (1, 1, 1, 1)}),
        ("timm/cait_xxs24_224", {"patch_size": 4, "depth": 2}),
    ],
)
def test_other_models_have_a_gradient_map(name, options):
    model = make_model(name, num_classes=3, image_size=(32, 32), in_channels=3, options=options)
    images = torch.randn(2, 3, 32, 32)
    found = explain(model.eval(), images)
    assert found.rollout is None
    assert found.heads == []
    assert found.gradient.shape == (2, 8, 8)
    assert found.gradient.any()
    torch.testing.assert_close(torch.from_numpy(found.logits), model(images), rtol=1e-4, atol=1e-5)
    assert receptive_field(model) is None
    assert temperatures(model) == []


@pytest.mark.parametrize("name", ["vit_9_p4", "cct_2_3x2", "cait_24_p4"])
def test_ours_under_timms_names(name):
    ours = shrunk(name).eval()
    images = make_images(ours)
    expected = explain(ours, images)
    model = timm.create_model(timm_name(name), **vars(ours.config)).eval()
    model.load_state_dict(ours.state_dict())
    found = explain(model, images)
    close(found.rollout, expected.rollout)
    close(found.gradient, expected.gradient)
    model.global_pool = "avg"
    mean = explain(model, images)
    close(mean.logits, model(images).detach())
    assert not np.allclose(mean.rollout, expected.rollout)


def reach(model):
    """How many pixels, in rows and columns, change the token in the middle."""
    tokens = []
    part = model.embeddings[0] if hasattr(model, "embeddings") else model.tokenizer
    if getattr(model.config, "narrow_depth", 1) == 0:
        part = model.mergings[0]
    hook = part.register_forward_hook(lambda _, __, out: tokens.append(out))
    for module in model.modules():
        if isinstance(module, TokenTransformer | Performer):  # leaves what soft splits see
            proj = module.proj if isinstance(module, Performer) else module.attention.proj
            nn.init.zeros_(proj.weight)
            nn.init.zeros_(proj.bias)
        if isinstance(module, nn.Conv2d):  # so that no ReLU shuts
            module.weight.data.abs_()
        if isinstance(module, nn.BatchNorm2d):  # so that no branch is zero
            nn.init.ones_(module.weight)
    for module in list(model.modules()):  # through a maximum only the largest pixel is seen
        if isinstance(getattr(module, "pool", None), nn.MaxPool2d):
            module.pool = nn.AvgPool2d(module.pool.kernel_size, 2, module.pool.padding)
    images = torch.rand(1, model.config.in_channels, *model.config.image_size) + 0.1
    images.requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        pool = nn.AvgPool2d(3, 2, 1)
        patch.setattr("smallvit.layers.tokenizers.plain_pool", lambda x: pool(x).relu())
        model(images)
    hook.remove()
    side = round(tokens[0].shape[1] ** 0.5)
    middle = side // 2 * side + side // 2
    (slope,) = torch.autograd.grad((tokens[0][0, middle] * torch.randn(1)).square().sum(), images)
    seen = slope[0].abs().sum(0) > 0
    spans = [line.nonzero() for line in (seen.any(1), seen.any(0))]
    return {int(span.max() - span.min()) + 1 for span in spans}


@pytest.mark.parametrize(
    ("name", "side", "expected"),
    [
        ("vit_9_p4", 32, 4),
        ("vit_9_p4+spt", 32, 8),
        ("vit_9_p8+spt", 64, 16),
        ("compact_vit_2_p4", 32, 4),
        ("cct_2_3x1", 32, 5),
        ("cct_2_3x2", 32, 13),
        ("cct_2_3x2+spt", 32, 17),
        ("cct_2_7x2", 96, 51),
        ("cct_2_7x2+spt", 96, 67),
        ("cait_24_p4+spt", 32, 8),
        ("pit_tiny_p2", 32, 2),
        ("pit_tiny_p2+spt", 32, 4),
        ("swin_tiny_p2", 32, 2),
        ("swin_tiny_p4+spt", 32, 8),
        ("t2t_12", 32, 7),
        ("t2t_12", 64, 15),
        ("t2t_12+spt", 32, 9),
        ("t2t_14", 96, 31),
        ("t2t_14+spt", 96, 35),
        ("cvt_13", 64, 7),
        ("cvt_13+spt", 64, 11),
        ("hct_s_p4", 32, 14),
        ("hct_s_p8", 64, 25),
        ("hct_s_p8+spt", 64, 29),
        ("hct_s_p16", 128, 43),
        ("hct2_s_p4", 32, 20),
        ("hct2_s_p8", 64, 37),
    ],
)
def test_receptive_field(name, side, expected):
    model = shrunk(name, image_size=(side, side)).eval()
    assert receptive_field(model) == expected
    assert reach(model) == {expected}


def test_receptive_field_with_other_shifts():
    model = create_model(
        "vit_9_p4+spt", num_classes=2, image_size=16, shift=0.25, directions="cardinal"
    )
    assert receptive_field(model) == 6
    assert reach(model.eval()) == {6}


def test_temperatures():
    assert temperatures(shrunk("vit_9_p4")) == []
    model = shrunk("vit_9_p4+lsa")
    close(temperatures(model), [[1, 1], [1, 1]], 1e-6)
    width = model.config.dim // model.config.num_heads
    # Scores are divided by τ·√width.
    model.blocks[1].attention.scale.data = 1 / (torch.tensor([0.5, 3.0]) * width**0.5)
    close(temperatures(model), [[1, 1], [0.5, 3]], 1e-6)
    for name in ("swin_tiny_p2+lsa", "t2t_12+lsa", "cait_24_p4+lsa"):
        assert {round(t, 6) for row in temperatures(shrunk(name)) for t in row} == {1}
    theirs = make_model(
        "timm/vit_tiny_patch16_224",
        num_classes=2,
        image_size=(32, 32),
        in_channels=3,
        options={"patch_size": 8, "depth": 2},
    )
    close(temperatures(localize(theirs, spt=False)), np.ones((2, 3)), 1e-6)


def test_overlay():
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (20, 30, 3), np.uint8)
    heat = np.zeros((2, 3), np.float32)
    heat[1, 2] = 1
    found = overlay(image, heat)
    assert found.shape == (20, 30, 3)
    assert found.dtype == np.uint8
    cold, hot = found[2, 2].astype(int), found[17, 27].astype(int)
    assert np.ptp(cold) <= 1  # grey: no colour where there is no heat
    assert hot[0] > 150 > hot[2]  # yellow
    assert (overlay(image, heat, strength=0) == image).all()
    whole = overlay(image, heat, strength=1)
    assert (whole[0, 0] == (68, 1, 84)).all()
    assert (whole[-1, -1] == (253, 231, 37)).all()
    assert overlay(image[..., :1], heat).shape == (20, 30, 3)
    lightness = overlay(np.zeros((1, 256, 1), np.uint8), np.linspace(0, 1, 256)[None], 1.0)
    grey = lightness[0].astype(float) @ (0.299, 0.587, 0.114)
    assert (np.diff(grey) > -1).all()  # also without colour more is lighter
    with pytest.raises(ValueError, match="strength is 2: allowed is 0 to 1"):
        overlay(image, heat, strength=2)
