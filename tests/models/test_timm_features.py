"""Feature maps of our models under timm's names."""

import re
from math import ceil, prod
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf
from timm.models.vision_transformer import VisionTransformer

from smallvit.interop.references import rename
from smallvit.models.names import MODELS
from smallvit.models.timm_names import timm_name
from tests.models.shrunk import FAMILIES, FULL, NAMES, shrunk, small_size

CASES = sorted({*FAMILIES, *FULL})


def options_of(name, **changes):
    """A small model on images twice as wide as high, whose plain encoder has three blocks."""
    depth = {"depth": 3} if "depth" in MODELS[name.partition("+")[0]].options else {}
    height, width = small_size(name)
    return vars(shrunk(name, **{"image_size": (height, 2 * width), **depth, **changes}).config)


def build(name, features_only=False, **changes):
    """One of our models by timm's name, or what timm makes of it, and images for it."""
    torch.manual_seed(0)
    options = options_of(name, **changes)
    extra = {"features_only": True} if features_only else {}
    model = timm.create_model(timm_name(name), **options, **extra).eval()
    return model, torch.randn(2, 3, *options["image_size"])


def extractor(name, model, **options):
    """timm's extractor of features with a model's weights."""
    net = timm.create_model(timm_name(name), features_only=True, **vars(model.config), **options)
    missing, _ = net.model.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    return net.eval()


def as_map(tokens, prefix, grid):
    return tokens[:, prefix:].transpose(1, 2).unflatten(2, grid)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_features_are_what_hooks_see(name):
    model, images = build(name)
    info, seen = model.feature_info, {}
    for each in info:
        model.get_submodule(each["module"]).register_forward_hook(
            lambda _, __, y, key=each["module"]: seen.__setitem__(key, y)
        )
    final, maps = model.forward_intermediates(images)
    assert torch.equal(final, model.forward_features(images))
    height, width = images.shape[2:]
    assert len(maps) == len(info)
    for each, image in zip(info, maps, strict=True):
        grid = (ceil(height / each["reduction"]), ceil(width / each["reduction"]))
        assert image.shape == (2, each["num_chs"], *grid)
        assert image.is_contiguous()
        tokens = seen[each["module"]]
        prefix = tokens.shape[1] - prod(grid)
        assert torch.equal(image, as_map(tokens, prefix, grid))
    staged = bool(model.between)
    assert len(info) == (len(model.grids) if staged else len(model.blocks))
    assert [each["reduction"] for each in info] == sorted(each["reduction"] for each in info)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_last_is_what_the_final_norm_reads(name):
    model, images = build(name)
    prefix, grid = model.num_prefix_tokens, model.grid
    (raw,), (normed,) = (
        model.forward_intermediates(images, 1, norm=norm, intermediates_only=True)
        for norm in (False, True)
    )
    final = as_map(model.forward_features(images), prefix, grid)
    if name.startswith("cait"):  # whose features hold the patches as its class layers see them
        assert torch.equal(raw, final)
        final = model.norm(final.movedim(1, -1)).movedim(-1, 1)
    elif name.startswith("cvt"):  # which has no final norm
        assert torch.equal(raw, normed)
    else:
        again = model.norm(raw.movedim(1, -1)).movedim(-1, 1)
        torch.testing.assert_close(again, final)
    torch.testing.assert_close(normed, final)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_timm_extracts_features(name):
    net, images = build(name, features_only=True)
    maps = net(images)
    strides = net.feature_info.reduction()
    assert [image.shape[1] for image in maps] == net.feature_info.channels()
    assert [image.shape[2:] for image in maps] == [
        tuple(ceil(side / stride) for side in images.shape[2:]) for stride in strides
    ]
    assert len(maps) == (len(net.model.stages) if net.model.between else 3)
    assert net.pretrained_cfg["input_size"] == (3, *images.shape[2:])


@pytest.mark.parametrize("name", NAMES)
def test_features_at_the_papers_sizes(name):
    """By the tables alone: nothing is computed."""
    with torch.device("meta"):
        model = timm.create_model(timm_name(name))
        net = timm.create_model(timm_name(name), features_only=True, out_indices=(-1,))
    side = MODELS[name.partition("+")[0]].image_size
    grids = model.grids if model.between else [model.grid] * len(model.blocks)
    for info, grid in zip(model.feature_info, grids, strict=True):
        assert grid == (side // info["reduction"],) * 2
    assert net.feature_info.channels() == [model.num_features]
    assert net.feature_info.reduction() == [side // model.grid[0]]


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_some_of_the_features(name):
    model, images = build(name)
    every = model.forward_intermediates(images, intermediates_only=True)
    count = len(every)
    for indices in (
        (0,),
        (-1,),
        (0, count - 1),
        (count - 1, 0),
        (-count,),
        1,
        min(2, count),
        count,
    ):
        chosen = range(count - indices, count) if isinstance(indices, int) else indices
        net = extractor(name, model, out_indices=indices)
        results = (
            net(images),
            model.forward_intermediates(images, indices, intermediates_only=True),
            model.forward_intermediates(images, indices, stop_early=True, intermediates_only=True),
            model.get_intermediate_layers(images, indices, reshape=True),
        )
        for maps in results:
            for image, index in zip(maps, chosen, strict=True):
                assert torch.equal(image, every[index])
        assert net.feature_info.channels() == [every[index].shape[1] for index in chosen]
    assert len(model.feature_info) == count


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_what_comes_after_is_pruned(name):
    whole, images = build(name)
    count, logits = len(whole.feature_info), whole(images)
    for last in range(count):
        model = build(name)[0]
        model.load_state_dict(whole.state_dict())
        assert model.prune_intermediate_layers([last - count], prune_head=False) == [last]
        final, (image,) = whole.forward_intermediates(images, [last], stop_early=True)
        assert torch.equal(model.forward_features(images), final)
        assert len(model.feature_info) == last + 1
        assert model.num_features == image.shape[1]
        kept = sum(map(torch.numel, model.parameters()))
        assert kept <= sum(map(torch.numel, whole.parameters()))
        model.reset_classifier(4)
        assert model(images).shape[-1] == 4
        bare = build(name)[0]
        bare.prune_intermediate_layers([last], prune_norm=True)
        assert bare.num_classes == 0
        assert bare(images).shape[2] == image.shape[1]
        gone = ("norm.", "head.", "pool.score.", "class_blocks.")
        assert [key for key in bare.state_dict() if key.startswith(gone)] == []
        staged = bool(bare.between) and last < count - 1  # then norm and head went before
        assert staged or sum(map(torch.numel, bare.parameters())) < kept
        with pytest.raises(ValueError, match="was pruned"):
            bare.resized(64)
    assert torch.equal(whole(images), logits), "to stop early takes nothing away"
    assert not whole.pruned


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_nothing_is_computed_after_the_last(name):
    model, images = build(name)
    last = model.feature_info[-1]["module"]
    model.get_submodule(last).register_forward_hook(lambda *_: pytest.fail("it was computed"))
    if len(model.feature_info) > 1:
        model.forward_intermediates(images, [0], stop_early=True)


@pytest.mark.parametrize("name", CASES)
def test_gradients_reach_every_parameter(name):
    net, images = build(name, features_only=True)
    net(images)[-1].square().sum().backward()
    trained = {key: p for key, p in net.named_parameters() if p.requires_grad}
    assert [key for key, p in trained.items() if p.grad is None] == []
    assert any("blocks.0" in key or "stages.0" in key for key in trained)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("stop_early", [False, True])
@torch.no_grad()
def test_it_is_what_timms_own_vit_returns(norm, stop_early):
    torch.manual_seed(0)
    sizes = {"depth": 3, "num_heads": 3, "num_classes": 5, "img_size": (32, 48)}
    theirs = VisionTransformer(patch_size=16, embed_dim=48, **sizes).eval()
    ours = timm.create_model("smallvit_vit_base_p16", dim=48, **sizes).eval()
    ours.load_state_dict(rename(theirs.state_dict())[0])
    images = torch.randn(2, 3, 32, 48)
    for output_fmt in ("NCHW", "NLC"):
        for indices in (None, 2, (0, -2)):
            options = {"indices": indices, "norm": norm, "stop_early": stop_early}
            options |= {"output_fmt": output_fmt, "return_prefix_tokens": True}
            results = (model.forward_intermediates(images, **options) for model in (ours, theirs))
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    for options in ({}, {"n": 2, "reshape": True, "norm": norm}, {"n": (0, 2)}):
        results = (model.get_intermediate_layers(images, **options) for model in (ours, theirs))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert [info["num_chs"] for info in ours.feature_info] == [48] * 3
    assert ours.feature_info == theirs.feature_info


@torch.no_grad()
def test_class_tokens_come_along_on_request():
    model, images = build("vit_9_p4")
    pairs = model.forward_intermediates(
        images, return_prefix_tokens=True, norm=True, output_fmt="NLC", intermediates_only=True
    )
    tokens = torch.cat([pairs[-1][1], pairs[-1][0]], 1)
    torch.testing.assert_close(tokens, model.forward_features(images))
    (pair,) = model.get_intermediate_layers(images, return_prefix_tokens=True)
    assert [part.shape[1] for part in pair] == [prod(model.grid), 1]
    for name in ("cct_2_3x2", "cait_24_p4"):  # no class token there
        model, images = build(name)
        (tokens,) = model.get_intermediate_layers(images, return_prefix_tokens=True)
        assert tokens.shape[:2] == (2, prod(model.grid))


@pytest.mark.parametrize(
    ("name", "size"), [("cct_2_3x2", (30, 21)), ("cvt_13", (45, 70)), ("hct_s_p8", (25, 34))]
)
@torch.no_grad()
def test_strides_hold_where_sizes_are_rounded_up(name, size):
    net, images = build(name, features_only=True, image_size=size)
    plain, _ = build(name, features_only=True)
    assert net.feature_info.reduction() == plain.feature_info.reduction()
    for image, stride in zip(net(images), net.feature_info.reduction(), strict=True):
        assert image.shape[2:] == tuple(ceil(side / stride) for side in size)


@pytest.mark.parametrize("name", ["vit_9_p4", "swin_tiny_p2", "hct2_s_p8"])
@torch.no_grad()
def test_trained_weights_have_features(name, tmp_path):
    model, images = build(name)
    path = tmp_path / "weights.safetensors"
    save_file(model.state_dict(), path)
    overlay = {"file": str(path), "input_size": (3, *images.shape[2:]), "num_classes": 3}
    options = {**vars(model.config), "features_only": True, "pretrained": True}
    net = timm.create_model(timm_name(name), pretrained_cfg_overlay=overlay, **options).eval()
    last = net(images)[-1]
    assert torch.equal(last, model.forward_intermediates(images, 1, intermediates_only=True)[0])
    normed = timm.create_model(
        timm_name(name), pretrained_cfg_overlay=overlay, feature_cfg={"norm": True}, **options
    ).eval()
    expected = model.forward_intermediates(images, 1, norm=True, intermediates_only=True)[0]
    assert torch.equal(normed(images)[-1], expected)


@torch.no_grad()
def test_folders_have_features(tmp_path):
    model = timm.create_model("smallvit_pit_tiny_p2", num_classes=3, img_size=16).eval()
    save_for_hf(model, tmp_path, safe_serialization=True)
    net = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, features_only=True).eval()
    images = torch.randn(2, 3, 16, 16)
    maps = model.forward_intermediates(images, intermediates_only=True)
    for ours, theirs in zip(net(images), maps, strict=True):
        assert torch.equal(ours, theirs)


def test_what_is_not_there_is_refused():
    model, images = build("vit_9_p4")
    for indices, message in (
        ((3,), "has features 0 to 2"),
        ((), "has features 0 to 2"),
        (4, "has 1 to 3"),
        (0, "has 1 to 3"),
    ):
        with pytest.raises(ValueError, match=message):
            model.forward_intermediates(images, indices)
        with pytest.raises(ValueError, match=message):
            timm.create_model("smallvit_vit_9_p4", depth=3, features_only=True, out_indices=indices)
    with pytest.raises(ValueError, match="output_fmt is 'NHWC': allowed are NCHW, NLC"):
        model.forward_intermediates(images, output_fmt="NHWC")
    with pytest.raises(ValueError, match="expected images of"):
        model.forward_intermediates(torch.randn(1, 3, 7, 7))
    with pytest.raises(ValueError, match="feature_cls is 'hook'"):
        timm.create_model("smallvit_vit_9_p4", features_only=True, feature_cls="hook")
    with pytest.raises(ValueError, match="patch_size is 8"):
        model.set_input_size(patch_size=8)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_the_size_is_set_in_place(name):
    model, images = build(name)
    model.set_grad_checkpointing()
    before = dict(model.named_parameters())
    height, width = images.shape[2:]
    size = (2 * height, width)
    other = model.resized(size)
    model.set_input_size(size)
    enlarged = torch.randn(2, 3, *size)
    assert torch.equal(model(enlarged), other(enlarged))
    assert model.config == other.config
    assert model.pretrained_cfg["input_size"] == (3, *size)
    assert all(block.recompute == "everything" for stack in model.stacks() for block in stack[1])
    changed = {key for key, value in model.named_parameters() if value is not before[key]}
    assert all(key.endswith(("positions.table", "bias_table")) for key in changed)
    assert all(p.requires_grad == before[key].requires_grad for key, p in model.named_parameters())
    for image, info in zip(
        model.forward_intermediates(enlarged)[1], model.feature_info, strict=True
    ):
        assert image.shape[2:] == tuple(ceil(side / info["reduction"]) for side in size)
    model.set_input_size()
    assert model.config == other.config


@torch.no_grad()
def test_the_size_is_set_in_half_precision_and_where_nothing_is_trained():
    model = build("swin_tiny_p2")[0].bfloat16().requires_grad_(False)
    height, width = model.config.image_size
    model.set_input_size((2 * height, 2 * width))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in model.parameters())
    assert model(torch.randn(1, 3, 2 * height, 2 * width).bfloat16()).shape == (1, 3)


def test_the_documented_snippet():
    text = (Path(__file__).parents[2] / "docs" / "shipping.md").read_text()
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", text, re.S) if "features_only" in c)
    found = {}
    exec(code, found)
    assert len(found["maps"]) == 3


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["vit_9_p4+lsa", "cait_24_p4", "swin_tiny_p2", "hct_s_p8"])
def test_features_in_one_graph(name):
    net, images = build(name, features_only=True)
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(images), net(images), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["pit_tiny_p2", "hct2_s_p8"])
def test_features_are_exported_with_a_dynamic_batch(name):
    net, images = build(name, features_only=True)
    batch = torch.export.Dim("batch")
    program = torch.export.export(net, (images,), dynamic_shapes=({0: batch},))
    wide = torch.randn(5, *images.shape[1:])
    for ours, theirs in zip(program.module()(wide), net(wide), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
