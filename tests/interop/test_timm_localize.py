"""`localize`: timm's five families with SPT and LSA, against timm itself and literal oracles."""

import copy
from functools import partial

import pytest
import timm
import torch
from timm.layers import Attention
from timm.models.vision_transformer import ParallelScalingBlock, ParallelThingsBlock
from timm.optim import create_optimizer_v2
from torch import nn

from smallvit.interop.local_layers import LocalLayer, ShiftedPatchEmbed, SPTMap, SPTMerging
from smallvit.interop.timm import attention_maps, localize

SIZE = 32
VIT = partial(timm.create_model, "vit_tiny_patch16_224", patch_size=4, depth=2, num_classes=5)
SMALL_VIT = partial(VIT, embed_dim=24, num_heads=3, img_size=SIZE)
MAKERS = {
    "vit": partial(VIT, img_size=SIZE),
    "deit": partial(
        timm.create_model,
        "deit_tiny_distilled_patch16_224",
        img_size=SIZE,
        patch_size=4,
        depth=2,
        num_classes=5,
    ),
    "cait": partial(
        timm.create_model,
        "cait_xxs24_224",
        img_size=SIZE,
        patch_size=4,
        depth=2,
        embed_dim=48,
        init_values=0.5,
        num_classes=5,
    ),
    # A grid of 7×7, so that both poolings meet odd sides, as the published PiT's 27×27 does.
    "pit": partial(
        timm.create_model,
        "pit_ti_224",
        img_size=SIZE,
        patch_size=8,
        stride=4,
        depth=(1, 2, 1),
        num_classes=5,
    ),
    # Windows of 4 on grids of 16, 8, 4 and 2: shifted, unshifted and cut windows.
    "swin": partial(
        timm.create_model,
        "swin_tiny_patch4_window7_224",
        img_size=SIZE,
        patch_size=2,
        window_size=4,
        depths=(2, 2, 1, 1),
        embed_dim=24,
        num_classes=5,
    ),
}


@torch.no_grad()
def stir(model: nn.Module, by: float = 0.1) -> nn.Module:
    """Weights in which nothing is zero, one or equal by initialisation."""
    for parameter in model.parameters():
        parameter += by * torch.randn_like(parameter)
    return model


@pytest.fixture(params=MAKERS)
def family(request):
    return request.param


@pytest.fixture
def model(family):
    torch.manual_seed(0)
    return stir(MAKERS[family]()).eval()


@pytest.fixture
def images():
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def local_parts(model):
    return [part for part in model.modules() if isinstance(part, LocalLayer)]


def spts(model):
    return [part for part in model.modules() if isinstance(part, SPTMap)]


# What stays.


@torch.no_grad()
def test_a_branch_that_starts_at_zero_changes_nothing(model, images):
    local = localize(model, spt=True, lsa=False, start="pretrained")
    assert spts(local)
    close(local(images), model(images))
    close(local.forward_features(images), model.forward_features(images))


@torch.no_grad()
def test_the_temperature_starts_at_the_old_scale(model, images):
    local = localize(model, spt=True, lsa=True, masked=False)
    for part in local_parts(local):
        assert isinstance(part.scale, nn.Parameter)
        assert part.scale.shape == (part.num_heads,)
        width = part.proj.in_features // part.num_heads
        close(part.scale, torch.full_like(part.scale, width**-0.5))
    close(local(images), model(images))


@torch.no_grad()
def test_the_model_it_was_made_from_is_untouched(model, images):
    before, kinds = copy.deepcopy(model.state_dict()), [type(part) for part in model.modules()]
    expected = model(images)
    local = localize(model)
    stir(local)
    assert [type(part) for part in model.modules()] == kinds
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert torch.equal(model(images), expected)


def test_every_tensor_keeps_its_name_and_value(model):
    local = localize(model).state_dict()
    for key, value in model.state_dict().items():
        assert torch.equal(local[key], value), key


@torch.no_grad()
def test_state_dicts_and_deep_copies_carry_everything(model, images):
    trained = stir(localize(model))
    expected = trained(images)
    again = localize(model)
    again.load_state_dict(trained.state_dict())
    assert torch.equal(again(images), expected)
    assert torch.equal(copy.deepcopy(trained)(images), expected)


# What is new.


@torch.no_grad()
def test_no_token_sees_itself_and_rows_sum_to_one(family, model, images):
    local = localize(model)
    parts, maps = local_parts(local), attention_maps(local, images)
    assert len(maps) == len(parts)
    for part, weight in zip(parts, maps, strict=True):
        if family == "cait" and part.masked:
            # Mixed weights: only the mixing layer's bias can reach the diagonal.
            expected = part.proj_w.bias.view(-1, 1).expand(-1, weight.shape[-1])
            close(weight.diagonal(dim1=-2, dim2=-1), expected.expand_as(weight[..., 0]))
        elif part.masked:
            assert torch.all(weight.diagonal(dim1=-2, dim2=-1) == 0)
            close(weight.sum(-1), torch.ones_like(weight[..., 0]))
        else:
            assert family == "cait", "only class attention has no diagonal"
            close(weight.sum(-1), torch.ones_like(weight[..., 0]))


@torch.no_grad()
def test_the_mask_changes_what_is_computed(model, images):
    assert (localize(model, spt=False)(images) - model(images)).abs().max() > 1e-3


@pytest.mark.parametrize("temperature", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_halves_are_switches(temperature, masked):
    local = localize(SMALL_VIT(), spt=False, lsa=not masked, temperature=temperature, masked=masked)
    parts = local_parts(local)
    assert bool(parts) == (temperature or masked)
    for part in parts:
        assert part.masked == masked
        assert isinstance(part.scale, nn.Parameter) == temperature


def test_gradients_reach_every_new_parameter(model, images):
    local = localize(model).train()
    new = {k: p for k, p in local.named_parameters() if k not in model.state_dict()}
    assert any(key.endswith("scale") for key in new)
    optimizer = torch.optim.SGD(local.parameters(), 0.1)
    for step in range(2):
        local.zero_grad()
        nn.functional.cross_entropy(local(images), torch.tensor([1, 3])).backward()
        for key, parameter in new.items():
            reached = bool(parameter.grad.abs().max() > 0)
            # A zero projection hides the norm in front of it, for one step.
            assert reached == (step > 0 or ".norm." not in key), (step, key)
        optimizer.step()


def test_the_branch_learns_to_be_used(model, images):
    local = localize(model, lsa=False)
    with torch.no_grad():
        for spt in spts(local):
            spt.proj.weight.normal_(std=0.5)
            before = local(images)
            spt.proj.weight.zero_()
            assert (local(images) - before).abs().max() > 1e-4


# Literal oracles.


def literal_attention(q, k, v, scale, *, masked, bias=None, before=None, after=None):
    """softmax of each row, one score at a time: scale, mix, bias, mask, softmax, mix."""
    batch, heads, n, _ = q.shape
    tokens = k.shape[2]
    out, weights = torch.zeros_like(q), q.new_zeros(batch, heads, n, tokens)
    for b in range(batch):
        for i in range(n):
            rows = q.new_zeros(heads, tokens)
            for h in range(heads):
                for j in range(tokens):
                    rows[h, j] = scale[h] * (q[b, h, i] @ k[b, h, j])
            if before is not None:
                rows = before.weight @ rows + before.bias[:, None]
            if bias is not None:
                rows = rows + bias[b, :, i]
            if masked:
                rows[:, i] = -torch.inf
            rows = (rows - rows.amax(1, keepdim=True)).exp()
            rows = rows / rows.sum(1, keepdim=True)
            if after is not None:
                rows = after.weight @ rows + after.bias[:, None]
            weights[b, :, i] = rows
            for h in range(heads):
                out[b, h, i] = rows[h] @ v[b, h]
    return out.transpose(1, 2).flatten(2), weights


def heads(x, part):
    return x.view(*x.shape[:2], part.num_heads, -1).transpose(1, 2)


def first_attention(family, **options):
    torch.manual_seed(2)
    maker = partial(SMALL_VIT, **options) if family == "vit" else MAKERS[family]
    local = localize(stir(maker()).double().eval(), spt=False)
    with torch.no_grad():
        for part in local_parts(local):
            part.scale.add_(0.2 * torch.rand_like(part.scale))
    return local


@torch.no_grad()
def test_attention_agrees_with_its_definition():
    options = {"qk_norm": True, "scale_attn_norm": True}
    part = first_attention("vit", **options).blocks[0].attn
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    q, k, v = (heads(y, part) for y in part.qkv(x).chunk(3, -1))
    q, k = part.q_norm(q), part.k_norm(k)
    y, expected = literal_attention(q, k, v, part.scale, masked=True)
    weights = []
    close(part(x), part.proj(part.norm(y)))
    close(part(x, weights=weights), part.proj(part.norm(y)))
    close(weights[0], expected)


@torch.no_grad()
def test_talking_heads_agree_with_their_definition():
    part = first_attention("cait").blocks[0].attn
    x = torch.randn(2, 6, 48, dtype=torch.float64)
    q, k, v = (heads(y, part) for y in part.qkv(x).chunk(3, -1))
    y, expected = literal_attention(
        q, k, v, part.scale, masked=True, before=part.proj_l, after=part.proj_w
    )
    weights = []
    close(part(x, weights=weights), part.proj(y))
    close(weights[0], expected)


@torch.no_grad()
def test_negative_mixing_weights_make_no_nan():
    part = first_attention("cait").blocks[0].attn
    part.proj_l.weight.copy_(-torch.ones_like(part.proj_l.weight))
    assert part(torch.randn(1, 5, 48, dtype=torch.float64)).isfinite().all()


@torch.no_grad()
def test_class_attention_agrees_with_its_definition():
    part = first_attention("cait").blocks_token_only[0].attn
    x = torch.randn(2, 6, 48, dtype=torch.float64)
    q, k, v = heads(part.q(x[:, :1]), part), heads(part.k(x), part), heads(part.v(x), part)
    y, expected = literal_attention(q, k, v, part.scale, masked=False)
    weights = []
    close(part(x, weights=weights), part.proj(y))
    close(weights[0], expected)
    assert not part.masked


@pytest.mark.parametrize("block", [0, 1], ids=["plain", "rolled"])
@torch.no_grad()
def test_window_attention_agrees_with_its_definition(block):
    block = first_attention("swin").layers[1].blocks[block]
    part, mask = block.attn, block.attn_mask
    windows = 1 if mask is None else len(mask)
    x = torch.randn(2 * windows, 16, 48, dtype=torch.float64)
    q, k, v = (heads(y, part) for y in part.qkv(x).chunk(3, -1))
    bias = torch.zeros(len(x), part.num_heads, 16, 16, dtype=torch.float64)
    for n in range(len(x)):
        for i in range(16):
            for j in range(16):
                row, column = i // 4 - j // 4 + 3, i % 4 - j % 4 + 3
                bias[n, :, i, j] = part.relative_position_bias_table[7 * row + column]
                if mask is not None:
                    bias[n, :, i, j] += mask[n % windows, i, j]
    y, expected = literal_attention(q, k, v, part.scale, masked=True, bias=bias)
    weights = []
    close(part(x, mask=mask), part.proj(y))
    close(part(x, mask=mask, weights=weights), part.proj(y))
    close(weights[0], expected)


def literal_spt(images, spt):
    """LN(patches of the five views) · E, pixel by pixel; outside the picture is zero."""
    p, s = spt.patch_size, spt.shift
    batch, channels, height, width = images.shape
    h, w = -(-height // p), -(-width // p)
    shifts = [(0, 0), (-s, -s), (-s, s), (s, -s), (s, s)]
    out = images.new_zeros(batch, spt.proj.out_features, h, w)
    for b, i, j in ((b, i, j) for b in range(batch) for i in range(h) for j in range(w)):
        values = []
        for r, c in ((r, c) for r in range(p) for c in range(p)):
            for down, right in shifts:
                row, column = i * p + r + down, j * p + c + right
                inside = 0 <= row < height and 0 <= column < width
                pixel = images[b, :, row, column] if inside else images.new_zeros(channels)
                values.append(pixel)
        out[b, :, i, j] = spt.proj(spt.norm(torch.cat(values)))
    return out


@torch.no_grad()
def test_the_branch_is_shifted_patch_tokenization():
    torch.manual_seed(3)
    local = stir(localize(SMALL_VIT(img_size=12), lsa=False)).double()
    old = SMALL_VIT(img_size=12).patch_embed.double()
    old.load_state_dict(local.patch_embed.state_dict(), strict=False)
    images = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    expected = literal_spt(images, local.patch_embed.spt).flatten(2).transpose(1, 2)
    close(local.patch_embed(images), old(images) + expected)


@pytest.mark.parametrize("start", ["pretrained", "fresh"])
@torch.no_grad()
def test_pit_pools_with_shifted_patches(start):
    torch.manual_seed(4)
    plain = stir(MAKERS["pit"]()).double()
    local = stir(localize(plain, lsa=False, start=start))
    assert type(local.patch_embed) is type(plain.patch_embed), "the stem stays"
    pool = local.transformers[1].pool
    x, token = torch.randn(2, 64, 5, 4).double(), torch.randn(2, 1, 64).double()
    if start == "fresh":
        expected = literal_spt(x, pool.conv)
    else:
        conv = plain.transformers[1].pool.conv
        conv.load_state_dict(pool.conv.state_dict())
        expected = conv(x) + literal_spt(x, pool.spt)
    pooled, widened = pool(x, token)
    close(pooled, expected)
    close(widened, pool.fc(token))


@pytest.mark.parametrize("start", ["pretrained", "fresh"])
@torch.no_grad()
def test_swin_merges_with_shifted_patches(start):
    torch.manual_seed(5)
    plain = stir(MAKERS["swin"]()).double()
    local = stir(localize(plain, lsa=False, start=start))
    merging = local.layers[1].downsample
    x = torch.randn(2, 5, 4, 24).double()
    spt = merging if start == "fresh" else merging.spt
    expected = literal_spt(x.permute(0, 3, 1, 2), spt).permute(0, 2, 3, 1)
    if start == "pretrained":
        old = plain.layers[1].downsample
        old.load_state_dict(merging.state_dict(), strict=False)
        expected = expected + old(x)
    close(merging(x), expected)


# Starting fresh.


@torch.no_grad()
def test_fresh_replaces_every_embedding(family, model, images):
    local = localize(model, lsa=False, start="fresh")
    assert local(images).isfinite().all()
    kept = set(local.state_dict())
    gone = {key for key in model.state_dict() if key not in kept}
    expected = {
        "pit": {
            f"transformers.{i}.pool.conv.{kind}" for i in (1, 2) for kind in ("weight", "bias")
        },
        "swin": {"patch_embed.proj.bias"}
        | {
            f"layers.{i}.downsample.{part}"
            for i in (1, 2, 3)
            for part in ("norm.weight", "norm.bias", "reduction.weight")
        },
    }
    if family == "swin":
        assert isinstance(local.layers[1].downsample, SPTMerging)
        assert isinstance(local.patch_embed.norm, nn.Identity), "nothing after the projection"
        assert "patch_embed.norm.weight" not in kept
    elif family == "pit":
        assert gone == expected["pit"] - kept
        assert torch.equal(local.patch_embed.conv.weight, model.patch_embed.conv.weight)
    if family != "pit":
        assert isinstance(local.patch_embed.proj, SPTMap)
        assert isinstance(local.patch_embed, ShiftedPatchEmbed)


@torch.no_grad()
def test_a_fresh_embedding_is_the_papers():
    torch.manual_seed(6)
    local = localize(SMALL_VIT(img_size=12).double(), lsa=False, start="fresh")
    images = torch.randn(1, 3, 12, 12, dtype=torch.float64)
    expected = literal_spt(images, local.patch_embed.proj).flatten(2).transpose(1, 2)
    close(local.patch_embed(images), expected)
    std = local.patch_embed.proj.proj.weight.std()
    assert abs(std / (2 / (5 * 3 * 16 + 24)) ** 0.5 - 1) < 0.1, "xavier"


def test_shift_and_directions_are_passed_on():
    spt = localize(SMALL_VIT(), shift=0.25, directions="all").patch_embed.spt
    assert (spt.shift, spt.proj.in_features) == (1, 9 * 3 * 16)


# timm's other settings.

VARIANTS = {
    "qk_norm": {"qk_norm": True},
    "scale_norms": {"scale_attn_norm": True, "scale_mlp_norm": True},
    "no_qkv_bias": {"qkv_bias": False},
    "layer_scale": {"init_values": 0.3},
    "registers": {"reg_tokens": 3},
    "mean_pool": {"class_token": False, "global_pool": "avg"},
    "attention_pool": {"class_token": False, "global_pool": "map"},
    "clip": {"pre_norm": True, "no_embed_class": True},
    "embedding_norm": {"embed_norm_layer": nn.LayerNorm},
    "no_positions": {"pos_embed": "none"},
    "parallel": {"block_fn": ParallelThingsBlock},
    "grey": {"in_chans": 1},
    "left_over_pixels": {"img_size": 34},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@torch.no_grad()
def test_timms_options_are_kept(options):
    torch.manual_seed(7)
    model = stir(SMALL_VIT(**options)).eval()
    size = model.patch_embed.img_size
    images = torch.randn(2, model.in_chans, *size)
    close(localize(model, masked=False)(images), model(images))
    assert localize(model, start="fresh")(images).isfinite().all()


@torch.no_grad()
def test_a_gate_on_the_output_is_kept():
    try:
        model = SMALL_VIT(attn_layer=partial(Attention, gated=True))
    except TypeError:
        pytest.skip("this timm has no gates")
    stir(model).eval()
    images = torch.randn(2, 3, SIZE, SIZE)
    close(localize(model, masked=False)(images), model(images))


@pytest.mark.parametrize("pad", [False, True])
@torch.no_grad()
def test_pictures_of_any_size_stay_possible(pad):
    model = stir(SMALL_VIT(dynamic_img_size=True, dynamic_img_pad=pad)).eval()
    local = localize(model, masked=False)
    for size in [(32, 32), (16, 24), *([(30, 21)] if pad else [])]:
        images = torch.randn(1, 3, *size)
        close(local(images), model(images))
        assert localize(model, start="fresh")(images).isfinite().all()


@torch.no_grad()
def test_sizes_are_still_checked_and_can_be_set(family, model):
    local, bigger = localize(model, masked=False), torch.randn(1, 3, 2 * SIZE, 2 * SIZE)
    if family in ("pit", "cait"):
        pytest.skip("timm cannot set the size of this family")
    with pytest.raises(AssertionError, match="match model"):
        local(bigger)
    for either in (model, local):
        either.set_input_size(img_size=(2 * SIZE, 2 * SIZE))
    close(local(bigger), model(bigger))
    with pytest.raises(ValueError, match="set the patch size first"):
        local.patch_embed.set_input_size(patch_size=8)


@torch.no_grad()
def test_masks_of_timm_are_kept(images):
    model = stir(SMALL_VIT()).eval()
    seen = torch.rand(65, 65) > 0.3
    seen.fill_diagonal_(True)
    added = torch.randn(65, 65)
    local = localize(model, masked=False)
    for options in ({"attn_mask": seen}, {"attn_mask": added}, {"is_causal": True}):
        close(local(images, **options), model(images, **options))


@torch.no_grad()
def test_a_token_that_sees_no_other_sees_itself(images):
    part = localize(stir(SMALL_VIT()), spt=False).blocks[0].attn
    weights = []
    part(torch.randn(1, 5, 24), is_causal=True, weights=weights)
    assert torch.equal(weights[0][0, :, 0], torch.eye(5)[:1].expand(3, 5))
    assert torch.all(weights[0].diagonal(dim1=-2, dim2=-1)[..., 1:] == 0)
    alone = SMALL_VIT(img_size=4, class_token=False, global_pool="avg")
    picture = torch.randn(2, 3, 4, 4)
    close(localize(alone)(picture), alone(picture))


def test_dropout_and_distillation_stay(images):
    model = stir(
        timm.create_model(
            "deit_tiny_distilled_patch16_224",
            img_size=SIZE,
            patch_size=4,
            depth=1,
            num_classes=5,
            attn_drop_rate=0.5,
        )
    )
    local = localize(model).train()
    local.set_distilled_training()
    first, second = local(images), local(images)
    assert [tuple(logits.shape) for logits in first] == [(2, 5), (2, 5)]
    assert not torch.equal(first[0], second[0])
    local.eval()
    assert torch.equal(local(images), local(images))


@torch.no_grad()
def test_half_precision(model, images):
    local = localize(model.bfloat16(), start="fresh")
    assert {parameter.dtype for parameter in local.parameters()} == {torch.bfloat16}
    logits = local(images.bfloat16())
    assert logits.dtype == torch.bfloat16
    expected = localize(model.float(), start="fresh")
    expected.load_state_dict(local.state_dict())
    assert (logits.float() - expected(images)).abs().max() < 0.1 * expected(images).abs().max()


def test_timm_decays_no_temperature():
    local = localize(SMALL_VIT())
    optimizer = create_optimizer_v2(local, opt="adamw", weight_decay=0.1)
    free = {id(p) for g in optimizer.param_groups if not g["weight_decay"] for p in g["params"]}
    for name, parameter in local.named_parameters():
        if name.endswith("scale") or ".spt.norm." in name:
            assert id(parameter) in free, name


# Refusals.


def test_only_the_five_families():
    with pytest.raises(TypeError, match="cannot localize a ResNet"):
        localize(timm.create_model("resnet10t"))
    with pytest.raises(TypeError, match="before it is wrapped"):
        localize(timm.create_model("vit_tiny_patch16_224", features_only=True, depth=4))


def test_what_is_not_understood_is_refused():
    with pytest.raises(ValueError, match="DiffAttention"):
        localize(SMALL_VIT(attn_layer="diff"))
    with pytest.raises(ValueError, match="blocks.0 is a ParallelScalingBlock"):
        localize(SMALL_VIT(block_fn=ParallelScalingBlock))
    with pytest.raises(ValueError, match="must be square"):
        localize(SMALL_VIT(patch_size=(4, 8)))
    with pytest.raises(ValueError, match="HybridEmbed"):
        hybrid = timm.create_model("vit_tiny_r_s16_p8_224", depth=1, embed_dim=24, num_heads=3)
        localize(hybrid)
    with pytest.raises(ValueError, match="allowed are 'pretrained' and 'fresh'"):
        localize(SMALL_VIT(), start="cold")
    with pytest.raises(ValueError, match="less than one pixel"):
        localize(SMALL_VIT(patch_size=1, img_size=4))
    with pytest.raises(ValueError, match="LocalAttention"):
        localize(localize(SMALL_VIT(), spt=False))
    with pytest.raises(ValueError, match="ShiftedPatchEmbed"):
        localize(localize(SMALL_VIT(), lsa=False))
    with pytest.raises(ValueError, match="shows no weights"):
        attention_maps(localize(SMALL_VIT(), lsa=False), torch.randn(1, 3, SIZE, SIZE))


def test_what_is_not_asked_for_may_be_strange():
    square = SMALL_VIT(patch_size=(4, 8))
    assert not spts(localize(square, spt=False))
    assert not local_parts(localize(SMALL_VIT(attn_layer="diff"), lsa=False))


@pytest.mark.compiled
def test_one_graph(images):
    model = stir(SMALL_VIT()).eval()
    for start in ("pretrained", "fresh"):
        local = localize(model, start=start)
        close(torch.compile(local, fullgraph=True)(images), local(images))


@pytest.mark.compiled
def test_one_graph_for_every_family(model, images):
    local = localize(model)
    close(torch.compile(local, fullgraph=True, backend="eager")(images), local(images))
