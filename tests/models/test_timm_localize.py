"""`localize`: timm's five families with SPT and LSA, against timm itself."""

import copy
import inspect
import shutil
from functools import partial

import pytest
import timm
import torch
from timm.layers import Attention
from timm.models.vision_transformer import ParallelScalingBlock, ParallelThingsBlock
from timm.optim import create_optimizer_v2
from torch import nn

from smallvit.models.local_layers import SPTMap, SPTMerging
from smallvit.models.timm_names import attention_maps, localize
from tests.models.timm_makers import MAKERS, SIZE, SMALL_VIT, local_parts, spts, stir


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
    assert (localize(model, spt=False)(images) - model(images)).abs().max() > 1e-4


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


@torch.no_grad()
def test_fresh_replaces_every_embedding(family, model, images):
    local = localize(model, lsa=False, start="fresh")
    assert local(images).isfinite().all()
    state, old = local.state_dict(), model.state_dict()
    if family == "pit":
        assert torch.equal(state["patch_embed.conv.weight"], old["patch_embed.conv.weight"])
        assert all(isinstance(stage.pool.conv, SPTMap) for stage in local.transformers[1:])
        return
    assert isinstance(local.patch_embed.proj, SPTMap)
    assert isinstance(local.patch_embed.norm, nn.Identity), "nothing after the projection"
    assert "patch_embed.proj.weight" not in state
    if family == "swin":
        assert all(isinstance(stage.downsample, SPTMerging) for stage in local.layers[1:])


def test_shift_and_directions_are_passed_on():
    spt = localize(SMALL_VIT(), shift=0.25, directions="all").patch_embed.spt
    assert (spt.shift, spt.proj.in_features) == (1, 9 * 3 * 16)


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


@pytest.mark.skipif(
    "gated" not in inspect.signature(Attention).parameters, reason="this timm has no gates"
)
@torch.no_grad()
def test_a_gate_on_the_output_is_kept(images):
    model = SMALL_VIT()
    for block in model.blocks:
        block.attn = Attention(24, num_heads=3, gated=True)
    stir(model).eval()
    close(localize(model, masked=False)(images), model(images))


@pytest.mark.parametrize("pad", [False, True])
@torch.no_grad()
def test_images_of_any_size_stay_possible(pad):
    model = stir(SMALL_VIT(dynamic_img_size=True, dynamic_img_pad=pad)).eval()
    local = localize(model, masked=False)
    for size in [(32, 32), (16, 24), *([(30, 21)] if pad else [])]:
        images = torch.randn(1, 3, *size)
        close(local(images), model(images))
        assert localize(model, start="fresh")(images).isfinite().all()


@torch.no_grad()
def test_swin_takes_grids_that_are_no_whole_windows():
    model = stir(MAKERS["swin"](strict_img_size=False)).eval()
    images = torch.randn(1, 3, 44, 24)
    close(localize(model, masked=False)(images), model(images))
    assert localize(model, start="fresh")(images).isfinite().all()


@pytest.mark.parametrize(
    ("maker", "options"),
    [
        (MAKERS["vit"], {}),
        (MAKERS["deit"], {}),
        (partial(MAKERS["swin"], window_size=2), {"window_size": (2, 2)}),
    ],
    ids=["vit", "deit", "swin"],
)
@torch.no_grad()
def test_sizes_are_still_checked_and_can_be_set(maker, options):
    model = stir(maker()).eval()
    local, bigger = localize(model, masked=False), torch.randn(1, 3, 2 * SIZE, 2 * SIZE)
    with pytest.raises(AssertionError, match="match model"):
        local(bigger)
    for either in (model, local):
        either.set_input_size(img_size=(2 * SIZE, 2 * SIZE), **options)
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
    image = torch.randn(2, 3, 4, 4)
    close(localize(alone)(image), alone(image))


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
    with torch.autocast("cpu", torch.bfloat16):
        mixed = localize(model.float())(images)
    assert (mixed.float() - localize(model)(images)).abs().max() < 0.1 * mixed.abs().max()


def test_timm_decays_no_temperature():
    local = localize(SMALL_VIT())
    optimizer = create_optimizer_v2(local, opt="adamw", weight_decay=0.1)
    free = {id(p) for g in optimizer.param_groups if not g["weight_decay"] for p in g["params"]}
    for name, parameter in local.named_parameters():
        if name.endswith("scale") or ".spt.norm." in name:
            assert id(parameter) in free, name


def test_only_the_five_families():
    with pytest.raises(TypeError, match="cannot localize a ResNet"):
        localize(timm.create_model("resnet10t"))
    with pytest.raises(TypeError, match="before it is wrapped"):
        localize(timm.create_model("vit_tiny_patch16_224", features_only=True, depth=4))
    cached = timm.create_model("levit_128s").eval()
    cached(torch.randn(1, 3, 224, 224))  # keeps tensors of the pass, which cannot be copied
    with pytest.raises(TypeError, match="cannot localize a Levit"):
        localize(cached)


def test_what_is_not_understood_is_refused():
    with pytest.raises(ValueError, match="DiffAttention"):
        localize(SMALL_VIT(attn_layer="diff"))
    with pytest.raises(ValueError, match=r"blocks\.0 is a ParallelScalingBlock"):
        localize(SMALL_VIT(block_fn=ParallelScalingBlock))
    with pytest.raises(ValueError, match="must be square"):
        localize(SMALL_VIT(patch_size=(4, 8)))
    hybrid = timm.create_model("vit_tiny_r_s16_p8_224", depth=1, embed_dim=24, num_heads=3)
    with pytest.raises(ValueError, match="HybridEmbed"):
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
def test_one_graph(model, images):
    local = localize(model)
    torch._dynamo.reset()
    compiled = torch.compile(local, fullgraph=True, backend="aot_eager")
    close(compiled(images), local(images))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["pretrained", "fresh"])
def test_inductor(start, images):
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("Inductor needs a C++ compiler (g++ or clang++), and none was found")
    local = localize(stir(SMALL_VIT()), start=start)
    torch._dynamo.reset()
    logits = torch.compile(local, fullgraph=True)(images)
    close(logits, local(images))
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in local.parameters())
