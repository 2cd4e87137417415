"""Our models under timm's names, in timm's hands."""

import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_data_config, resolve_model_data_config
from timm.models import load_checkpoint, model_parameters, save_for_hf
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from timm.utils import ModelEmaV3
from torch import nn

from smallvit.models.build import make_model
from smallvit.models.names import MODELS
from smallvit.models.parameters import depths
from smallvit.models.timm_names import TimmModel, timm_name
from tests.models.shrunk import FAMILIES, NAMES, shrunk, small_size

CCT = "smallvit_cct_2_3x1"
CASES = [
    name + addon
    for name in FAMILIES
    for addon in ("", "+spt+lsa")
    if MODELS[name].model.takes_lsa or not addon
]


def pair(name):
    """One of our models and timm's of the same name, with the same weights."""
    torch.manual_seed(0)
    ours = shrunk(name).eval()
    theirs = timm.create_model(timm_name(name), **vars(ours.config)).eval()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs, torch.randn(2, 3, *small_size(name))


def test_importing_registers_everything_in_silence():
    code = (
        "import timm; before = timm.list_models('smallvit*'); import smallvit.models.timm_names;"
        "assert not before and timm.create_model('smallvit_cct_7_3x1', num_classes=10)"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    names = timm.list_models("smallvit*")
    assert sorted(names) == sorted(map(timm_name, NAMES))
    assert "smallvit_vit_9_p4_spt_lsa" in names
    assert not timm.list_models("smallvit*", pretrained=True)


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("hct")])
def test_our_own_family_is_timms_too(name):
    model = timm.create_model(f"smallvit_{name}", num_classes=3, img_size=32).eval()
    images = torch.randn(2, 3, 32, 32)
    tokens = model.forward_features(images)
    assert model(images).shape == (2, 3)
    assert torch.equal(model.forward_head(tokens), model(images))
    ours = make_model(name, num_classes=3, image_size=32).eval()
    ours.load_state_dict(model.state_dict())
    assert torch.equal(ours(images), model(images))


def test_entry_points_are_names_of_the_module():
    import smallvit.models.timm_names as module

    assert timm_name("cct_7_3x1") in module.__all__
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_builds_at_its_papers_size(name):
    with torch.device("meta"):
        model = timm.create_model(timm_name(name), num_classes=7)
    side = MODELS[name.partition("+")[0]].image_size
    assert isinstance(model, TimmModel)
    assert model.config.image_size == (side, side)
    assert model.pretrained_cfg["input_size"] == (3, side, side)
    assert model.default_cfg is model.pretrained_cfg
    assert model.pretrained_cfg["architecture"] == timm_name(name)
    assert (model.num_classes, model.get_classifier().out_features) == (7, 7)
    assert model.get_classifier().in_features == model.num_features == model.head_hidden_size
    parameters = dict(model.named_parameters())
    assert model.no_weight_decay() <= set(parameters)
    first = model.pretrained_cfg["first_conv"]
    assert first is None or parameters[f"{first}.weight"].shape[1] == 3
    classifier = model.pretrained_cfg["classifier"]
    assert f"{classifier}.weight" in parameters


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_it_is_our_model_by_timms_protocol(name):
    ours, theirs, images = pair(name)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    features, tokens = ours.forward_features(images), theirs.forward_features(images)
    prefix = theirs.num_prefix_tokens
    assert torch.equal(tokens[:, prefix:], features.tokens)
    assert tokens.shape == (2, prefix + features.tokens.shape[1], theirs.num_features)
    assert torch.equal(theirs(images), ours(images))
    assert torch.equal(theirs.forward_head(tokens), ours(images))
    assert torch.equal(theirs.forward_head(tokens, pre_logits=True), features.pooled)
    for mine, maps in zip(ours.attention_maps(images), theirs.attention_maps(images), strict=True):
        assert torch.equal(mine, maps)


def test_the_same_seed_gives_the_same_start():
    torch.manual_seed(3)
    ours = shrunk("cct_2_3x1")
    torch.manual_seed(3)
    theirs = timm.create_model(CCT, **vars(ours.config))
    for key, value in theirs.state_dict().items():
        assert torch.equal(value, ours.state_dict()[key])


def test_options_by_timms_names_or_ours():
    by_timm = timm.create_model(
        CCT,
        num_classes=3,
        img_size=(32, 64),
        in_chans=1,
        drop_path_rate=0.2,
        attn_drop_rate=0.3,
        proj_drop_rate=0.4,
        embed_dim=64,
    )
    by_us = timm.create_model(
        CCT,
        num_classes=3,
        image_size=(32, 64),
        in_channels=1,
        drop_path=0.2,
        attn_dropout=0.3,
        dropout=0.4,
        dim=64,
    )
    assert by_timm.config == by_us.config
    assert by_timm(torch.randn(2, 1, 32, 64)).shape == (2, 3)
    with pytest.raises(ValueError, match="img_size was passed twice"):
        timm.create_model(CCT, img_size=32, image_size=32)
    with pytest.raises(ValueError, match="no option 'drop_pth'; did you mean 'drop_path'"):
        timm.create_model(CCT, drop_pth=0.1)
    with pytest.raises(ValueError, match="multiples of 4"):
        timm.create_model("smallvit_vit_9_p4", img_size=30)


def test_dropout_stands_in_front_of_the_head():
    model = timm.create_model(CCT, drop_rate=0.5, drop_path=0.0, attn_dropout=0.0)
    tokens = torch.randn(4, 256, 128)
    dropped = model.train().forward_head(tokens, pre_logits=True)
    kept = model.eval().forward_head(tokens, pre_logits=True)
    assert 0.3 < (dropped == 0).float().mean() < 0.7
    torch.testing.assert_close(dropped[dropped != 0], 2 * kept[dropped != 0])


@torch.no_grad()
def test_the_classifier_can_be_replaced():
    model = timm.create_model(CCT, num_classes=10).eval()
    images = torch.randn(2, 3, 32, 32)
    tokens = model.forward_features(images)
    pooled = model.forward_head(tokens, pre_logits=True)
    model.reset_classifier(4)
    assert (model.num_classes, model(images).shape) == (4, (2, 4))
    model.reset_classifier(0)
    assert torch.equal(model(images), pooled)
    model.reset_classifier(0, "avg")
    assert torch.equal(model(images), tokens.mean(1))
    model.reset_classifier(0, "")
    assert torch.equal(model(images), tokens)
    model.reset_classifier(5, "seq")
    assert model(images).shape == (2, 5)
    with pytest.raises(ValueError, match="global_pool is 'token'"):
        model.reset_classifier(5, "token")
    bare = timm.create_model("smallvit_vit_9_p4", num_classes=0, global_pool="").eval()
    assert bare(images).shape == (2, 65, 192)
    bare.reset_classifier(0, "avg")
    torch.testing.assert_close(bare(images), bare.forward_features(images)[:, 1:].mean(1))
    half = timm.create_model(CCT).bfloat16()
    half.reset_classifier(3)
    assert half.head.weight.dtype == torch.bfloat16


@torch.no_grad()
def test_another_size_keeps_everything():
    model = timm.create_model(CCT, num_classes=3, drop_rate=0.1, global_pool="avg").eval()
    wide = model.resized((32, 48))
    assert (wide.drop_rate, wide.global_pool) == (0.1, "avg")
    assert wide.pretrained_cfg["input_size"] == (3, 32, 48)
    assert model.pretrained_cfg["input_size"] == (3, 32, 32)
    assert wide(torch.randn(1, 3, 32, 48)).shape == (1, 3)


def test_timm_prepares_the_images():
    model = timm.create_model(CCT, img_size=48)
    config = resolve_data_config({}, model=model)
    assert (config["input_size"], config["crop_pct"]) == ((3, 48, 48), 1.0)
    image = create_transform(**config)(Image.new("RGB", (80, 60), "red"))
    assert model(image[None]).shape == (1, 1000)
    grey = timm.create_model(CCT, in_chans=1, num_classes=2)
    config = resolve_model_data_config(grey)
    image = create_transform(**config)(Image.new("L", (32, 32), 128))
    assert grey(image[None]).shape == (1, 2)


@pytest.mark.parametrize("name", CASES)
def test_timm_groups_the_parameters(name):
    model = pair(name)[1]
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.1)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    decayed = {
        names[id(parameter)]
        for group in optimizer.param_groups
        if group["weight_decay"]
        for parameter in group["params"]
    }
    free = {key for key, p in model.named_parameters() if p.requires_grad} - decayed
    spared = ("table", "token", "scale", "bias")
    assert not [key for key in decayed if key.endswith(spared)]
    matrices = {key for key in free if model.get_parameter(key).ndim > 1}
    assert matrices <= model.no_weight_decay()

    groups = param_groups_layer_decay(model, layer_decay=0.5)
    scale = {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}
    assert set(scale) == {key for key, p in model.named_parameters() if p.requires_grad}
    order = [
        scale[key]
        for key in names.values()
        if key.startswith(("blocks.", "stages.")) and key.endswith("attention.proj.weight")
    ]
    assert order == sorted(order)
    assert len(set(order)) == len(order), "every block is a layer"
    stages = model.stacks()
    for number, (stage, blocks, maker) in enumerate(stages):
        if maker.startswith(("mergings.", "poolings.")):
            first = [value for key, value in scale.items() if key.startswith(f"{stage}.0.")]
            lowest = min(first) if number and blocks else 1.0 if number else min(scale.values())
            made = {value for key, value in scale.items() if key.startswith(f"{maker}.")}
            assert made == {lowest}, "what makes the tokens of a stage belongs to its first layer"
    assert scale["head.weight"] == max(scale.values()) == 1
    assert min(scale.values()) in {
        scale[k] for k in scale if "tokenizer" in k or "embeddings.0" in k
    }
    layers, last = depths(model)
    fine, coarse = (
        timm.models.group_parameters(model, model.group_matcher(coarse), reverse=True)
        for coarse in (False, True)
    )
    assert fine == layers
    count = sum(1 for _, blocks, _ in stages if blocks) if len(stages) > 1 else last - 1
    assert set(coarse.values()) == set(range(count + 2))


def test_timm_averages_the_weights():
    model = timm.create_model(CCT, num_classes=3)
    average = ModelEmaV3(model, decay=0.5)
    before = model.head.weight.clone()
    with torch.no_grad():
        model.head.weight.add_(1)
    average.update(model)
    torch.testing.assert_close(average.module.head.weight, before + 0.5)
    assert average(torch.randn(1, 3, 32, 32)).shape == (1, 3)
    assert len(list(model_parameters(model, exclude_head=True))) == len([*model.parameters()]) - 2


@torch.no_grad()
def test_timm_loads_checkpoints(tmp_path):
    ours = shrunk("cct_2_3x1")
    torch.save({"state_dict": ours.state_dict()}, tmp_path / "weights.pth")
    save_file(ours.state_dict(), tmp_path / "weights.safetensors")
    options = vars(ours.config)
    for file in ("weights.pth", "weights.safetensors"):
        path = str(tmp_path / file)
        loaded = timm.create_model(CCT, **options)
        load_checkpoint(loaded, path)
        created = timm.create_model(CCT, checkpoint_path=path, **options)
        overlay = {"file": path, "num_classes": 3}
        pretrained = timm.create_model(
            CCT, pretrained=True, pretrained_cfg_overlay=overlay, **options
        )
        for model in (loaded, created, pretrained):
            for key, value in ours.state_dict().items():
                assert torch.equal(model.state_dict()[key], value), key


@torch.no_grad()
def test_timm_saves_and_reads_folders(tmp_path):
    model = timm.create_model(CCT, num_classes=3, img_size=24, global_pool="avg").eval()
    save_for_hf(model, tmp_path, model_args={"global_pool": "avg"}, safe_serialization=True)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.randn(2, 3, 24, 24)
    assert torch.equal(again(images), model(images))


def test_what_is_not_there_is_refused():
    with pytest.raises(RuntimeError, match=f"No pretrained weights exist for {CCT}"):
        timm.create_model(CCT, pretrained=True)


@pytest.mark.parametrize("name", ["vit_9_p4+lsa", "cait_24_p4", "swin_tiny_p2+spt", "cvt_13"])
def test_activations_can_be_computed_again(name):
    model = pair(name)[1].train()
    images = torch.randn(2, 3, *small_size(name))

    def gradients(enable):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        kept = 0

        def count(tensor):
            nonlocal kept
            kept += tensor.numel()
            return tensor

        torch.manual_seed(0)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            loss = nn.functional.cross_entropy(model(images), torch.tensor([0, 1]))
        loss.backward()
        named = model.named_parameters()
        return kept, {key: p.grad.clone() for key, p in named if p.grad is not None}

    kept, plain = gradients(False)
    again, checkpointed = gradients(True)
    assert again < 0.7 * kept
    assert plain.keys() == checkpointed.keys()
    for key, value in plain.items():
        torch.testing.assert_close(checkpointed[key], value)
    assert len(model.attention_maps(images)) > 0
    assert type(copy.deepcopy(model)) is type(model)
    assert gradients(False)[0] == kept


def test_a_whole_model_can_be_saved(tmp_path):
    model = timm.create_model(CCT, num_classes=3).eval()
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(again(images), model(images))


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["cct_2_3x2+spt", "vit_9_p4+spt+lsa", "swin_tiny_p2+lsa"])
def test_one_graph(name):
    model, images = pair(name)[1:]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_trained_weights_fit_other_sizes_and_classes(name, tmp_path):
    ours, theirs, images = pair(name)
    (height, width), path = small_size(name), tmp_path / "weights.safetensors"
    save_file(ours.state_dict(), path)
    overlay = {
        "file": str(path),
        "input_size": (3, height, width),
        "num_classes": ours.config.num_classes,
    }
    options = {**vars(ours.config), "pretrained_cfg_overlay": overlay}

    def trained(**changes):
        return timm.create_model(timm_name(name), pretrained=True, **{**options, **changes}).eval()

    assert torch.equal(trained()(images), ours(images))
    features = theirs.forward_features(images)
    assert torch.equal(trained(num_classes=5).forward_features(images), features)
    pooled = theirs.forward_head(features, pre_logits=True)
    assert torch.equal(trained(num_classes=0)(images), pooled)
    size = (2 * height, 2 * width)
    larger = ours.resized(size)
    if larger.config == replace(ours.config, image_size=size):  # T2T may take one more soft split
        enlarged = torch.randn(1, 3, *size)
        assert torch.equal(trained(image_size=size)(enlarged), larger(enlarged))
