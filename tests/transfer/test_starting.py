"""Fine-tuning starts: from runs, the authors' files, timm's files and timm's names."""

import argparse
import json
import socket
from dataclasses import replace

import pytest
import timm
import torch
from safetensors.torch import save_file, save_model
from timm.models.volo import VOLO
from torch import nn

import smallvit.models.timm_names  # noqa: F401  # our names in timm's registry
from smallvit import load_reference
from smallvit.files import hash_bytes
from smallvit.layers import resample
from smallvit.models import create_model
from smallvit.models.build import describe, make_model
from smallvit.transfer.start import start_from
from smallvit.transfer.state_dicts import adapt, for_timm
from tests.golden.reference import state_dict
from tests.models.shrunk import FAMILIES, shrunk
from tests.models.timm_makers import MAKERS, local_parts, spts, stir
from tests.transfer.runs import save_run

TINY = {"embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 4}
VIT = "timm/vit_tiny_patch16_224"
SWIN = {"patch_size": 2, "window_size": 4, "depths": [2, 1], "embed_dim": 24, "num_heads": [2, 4]}
OTHERS = {
    VIT: TINY,
    f"{VIT}+spt+lsa": TINY,
    "timm/swin_tiny_patch4_window7_224": SWIN,
    "timm/cait_xxs24_224": {"patch_size": 4, "depth": 1, "embed_dim": 48},
    "cifar_resnet56": {"width": 4},
    "resnet18": {},
}


def same(**changes):
    return {"num_classes": 3, "image_size": 32, "in_channels": 3, **changes}


def trained(model):
    """Weights as after training, with norms that stay near one."""
    torch.manual_seed(0)
    return stir(model, 0.02).eval()


def equal(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def said(notes, *words):
    return [note for note in notes if all(word in note for word in words)]


@pytest.fixture
def make(tmp_path):
    def run(name, options=None, **changes):
        model = trained(make_model(name, **same(**changes), options=options))
        return save_run(tmp_path / "run", model), model

    return run


@pytest.fixture
def family(tmp_path, request):
    model = trained(shrunk(request.param))
    return save_run(tmp_path / "run", model), model


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
@torch.no_grad()
def test_a_run_goes_on_as_it_was(family):
    folder, model = family
    size = model.config.image_size
    again, name, notes = start_from(folder, num_classes=3, image_size=size, in_channels=3)
    images = torch.randn(2, 3, *size)
    assert torch.equal(again.eval()(images), model(images))
    assert (name, describe(again)) == (model.name, describe(model))
    assert notes == ["the head was kept: it has as many classes"]


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
@torch.no_grad()
def test_a_run_of_ours_for_other_classes_and_size(family):
    folder, model = family
    size = tuple(2 * side for side in model.config.image_size)
    new, _, notes = start_from(folder, num_classes=7, image_size=size, in_channels=3)
    images = torch.randn(2, 3, *size)
    features = new.eval().forward_features(images)
    if hasattr(model.config, "num_splits"):  # they would follow the size
        model.config = replace(model.config, num_splits=len(model.config.splits))
    equal(features.pooled, model.resized(size).forward_features(images).pooled)
    assert new(images).shape == (2, 7)
    assert said(notes, "started fresh: head.weight, head.bias")
    assert said(notes, "not used of the checkpoint: head.weight, head.bias")
    tables = [key for key in new.state_dict() if key.endswith("positions.table")]
    assert bool(said(notes, "resampled", "positions.table")) == bool(tables)
    rebuilt = make_model(**describe(new))
    rebuilt.load_state_dict(new.state_dict())


@pytest.mark.parametrize(
    "name", [*FAMILIES, "vit_9_p4+spt", "cct_2_3x2+spt", "hct_s_p8+spt", "t2t_12+spt+lsa"]
)
@torch.no_grad()
def test_grey_images_look_like_grey_colour_images(name, tmp_path):
    torch.manual_seed(0)
    model = shrunk(name).eval()
    folder, size = save_run(tmp_path / "run", model), model.config.image_size
    grey = torch.randn(2, 1, *size)
    one, _, notes = start_from(folder, num_classes=3, image_size=size, in_channels=1)
    equal(one.eval()(grey), model(grey.repeat(1, 3, 1, 1)))
    assert said(notes, "input channels 3 → 1", "summed")
    more, _, notes = start_from(folder, num_classes=3, image_size=size, in_channels=6)
    equal(more.eval()(grey.repeat(1, 6, 1, 1)), model(grey.repeat(1, 3, 1, 1)))
    assert said(notes, "input channels 3 → 6", "multiplied with 3/6")
    back = save_run(tmp_path / "grey", one)
    three = start_from(back, num_classes=3, image_size=size, in_channels=3)[0]
    equal(three.eval()(grey.repeat(1, 3, 1, 1)), one(grey))


def test_channels_by_hand():
    conv = torch.arange(12.0).view(1, 6, 1, 2)  # two views of three channels
    summed = adapt(conv, 3, 1)
    assert summed.tolist() == [[[[0 + 2 + 4, 1 + 3 + 5]], [[6 + 8 + 10, 7 + 9 + 11]]]]
    four = adapt(conv, 3, 4)[0, :, 0, 0] / 0.75
    assert four.tolist() == [0, 2, 4, 0, 6, 8, 10, 6], "each view by itself"
    places = torch.arange(6.0)  # two places of three channels
    assert adapt(places, 3, 1, averaged=True).tolist() == [1, 4]
    assert adapt(places, 3, 2, averaged=True).tolist() == [0, 1, 3, 4]
    outer = torch.arange(6.0)[None]  # three channels of two places
    assert adapt(outer, 3, 1, after=2).tolist() == [[0 + 2 + 4, 1 + 3 + 5]]


@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_runs_of_timms_models_and_baselines(name, make):
    folder, model = make(name, OTHERS[name])
    again, same_name, notes = start_from(folder, **same())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again.eval()(images), model(images))
    assert same_name == name
    assert notes == ["the head was kept: it has as many classes"]

    new, _, notes = start_from(folder, **same(num_classes=7, image_size=(48, 64), in_channels=1))
    assert new.eval()(torch.randn(2, 1, 48, 64)).shape == (2, 7)
    assert said(notes, "started fresh: ", "head" if name != "resnet18" else "fc")
    assert said(notes, "input channels 3 → 1")
    assert bool(said(notes, "resampled")) == (name.startswith("timm/") and "swin" not in name)
    rebuilt = make_model(**json.loads(json.dumps(describe(new)))).eval()
    rebuilt.load_state_dict(new.state_dict())

    grey = start_from(folder, **same(in_channels=1))[0].eval()
    if "spt" not in name:  # a trained norm is averaged, so shifted branches are near, not equal
        equal(grey(images[:, :1]), model(images[:, :1].repeat(1, 3, 1, 1)))


def test_relative_biases_of_timms_are_resampled(make):
    folder, model = make("timm/swin_tiny_patch4_window7_224", SWIN, image_size=8)
    assert model.layers[1].blocks[0].attn.relative_position_bias_table.shape == (9, 4)
    new, _, notes = start_from(folder, **same())
    key = "layers.1.blocks.0.attn.relative_position_bias_table"
    assert said(notes, "resampled", key)
    expected = resample(model.get_parameter(key)[None], (3, 3), (7, 7))[0]
    assert torch.equal(new.get_parameter(key), expected)
    folder, model = make("timm/swin_tiny_patch4_window7_224", SWIN, image_size=(8, 32))
    new = start_from(folder, **same())[0]
    expected = resample(model.get_parameter(key)[None], (3, 7), (7, 7))[0]
    assert torch.equal(new.get_parameter(key), expected), "each side by itself"


@torch.no_grad()
def test_positions_of_other_families_are_resampled(make):
    options = {"patch_size": 4, "depth": 1, "embed_dim": 24, "num_heads": 3}
    folder, model = make("timm/beit_base_patch16_224", options, image_size=16)
    new = start_from(folder, **same())[0]
    key = "blocks.0.attn.relative_position_bias_table"
    table = model.get_parameter(key)
    expected = torch.cat([resample(table[None, :-3], (7, 7), (15, 15))[0], table[-3:]])
    assert torch.equal(new.get_parameter(key), expected), "the class token's three stay"

    options = {"patch_size": 8, "stride": 4, "depth": [1], "base_dims": [8], "heads": [2]}
    folder, model = make("timm/pit_ti_224", options)
    new = start_from(folder, **same(image_size=64))[0]
    assert new.pos_embed.shape == (1, 16, 15, 15)
    assert new.pos_embed.mean() == pytest.approx(model.pos_embed.mean().item(), abs=0.01)

    sizes = {"layers": (1, 1), "embed_dims": (16, 16), "num_heads": (2, 2), "stem_hidden_dim": 8}
    old, new = (VOLO(img_size=size, num_classes=3, **sizes) for size in (32, 64))
    state, notes = for_timm(dict(old.state_dict()), new)
    assert (old.pos_embed.shape[1:3], state["pos_embed"].shape) == ((2, 2), new.pos_embed.shape)
    assert said(notes, "resampled", "pos_embed")


@torch.no_grad()
def test_a_rectangle_of_timms_is_resampled_as_one(make):
    folder, model = make(VIT, TINY, image_size=(16, 64))
    new = start_from(folder, **same(image_size=(32, 64)))[0]
    assert torch.equal(new.pos_embed, resample(model.pos_embed, (4, 16), (8, 16), 1))


def test_a_weights_file_in_a_run_folder_knows_its_run(make):
    folder, model = make("cct_2_3x1")
    stir(model)
    save_model(model, str(folder / "last.safetensors"))
    last = start_from(folder / "last.safetensors", **same())[0]
    assert torch.equal(last.head.weight, model.head.weight)
    assert not torch.equal(start_from(folder, **same())[0].head.weight, model.head.weight)


def test_options_of_a_run_are_kept_and_can_be_added_to(make):
    folder, _ = make("vit_9_p4", {"dim": 24, "depth": 2, "num_heads": 2, "pool": "mean"})
    new = start_from(folder, **same(), options={"drop_path": 0.4})[0]
    config = new.config
    assert (config.dim, config.pool, config.drop_path) == (24, "mean", 0.4)


@torch.no_grad()
def test_lsa_on_a_run_of_ours(make):
    options = {"dim": 24, "depth": 2, "num_heads": 2}
    folder, model = make("vit_9_p4", options)
    new, name, notes = start_from(folder, name="vit_9_p4+lsa", **same())
    assert name == new.name == "vit_9_p4+lsa"
    assert said(notes, "started fresh: ", "blocks.0.attention.scale")
    assert start_from(folder, name="+lsa", **same())[1] == name
    open_ = start_from(folder, name="+lsa", **same(), options={"masked": False})[0].eval()
    images = torch.randn(2, 3, 32, 32)
    equal(open_(images), model(images))
    assert not torch.allclose(new.eval()(images), model(images))


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
@torch.no_grad()
def test_spt_on_a_run_of_ours(family):
    folder, model = family
    size = model.config.image_size
    name = f"{model.name}+spt"
    new, given, notes = start_from(folder, name=name, **same(image_size=size))
    assert given == new.name == name
    images = torch.randn(2, 3, *size)
    kept = model.name.startswith(("cct", "cvt", "hct"))
    if kept:
        equal(new.eval()(images), model(images))
        assert said(notes, "starts at zero for the shifted copies")
    else:
        assert said(notes, "started fresh: ", "tokenizer.")
        assert said(notes, "not used of the checkpoint: ", "tokenizer.")
    state, old = new.state_dict(), model.state_dict()
    body = [key for key in old if key.startswith(("blocks", "stages", "norm", "head"))]
    assert all(torch.equal(state[key], old[key]) for key in body)


def test_what_cannot_be_added_gets_a_sentence(make):
    folder, _ = make("cifar_resnet56", {"width": 4})
    with pytest.raises(ValueError, match="cannot localize a CifarResNet"):
        start_from(folder, name="+lsa", **same())
    folder = save_run(folder, shrunk("cvt_13"))
    with pytest.raises(ValueError, match=r"CvT has no \+lsa"):
        start_from(folder, name="cvt_13+lsa", **same())
    folder = save_run(folder, shrunk("hct_s_p8"))
    with pytest.raises(ValueError, match=r"hct_s_p8\+lsa: HCT has LSA built in; leave \+lsa out"):
        start_from(folder, name="+lsa", **same())


def test_add_ons_of_a_run_stay(make):
    options = {"dim": 24, "depth": 2, "num_heads": 2}
    folder, model = make("vit_9_p4+lsa", options)
    assert start_from(folder, **same())[1] == "vit_9_p4+lsa"
    both, name, _ = start_from(folder, name="+spt", **same())
    assert name == both.name == "vit_9_p4+spt+lsa"
    assert torch.equal(both.blocks[0].attention.scale, model.blocks[0].attention.scale)
    with pytest.raises(ValueError, match=r"a run of vit_9_p4\+lsa, which cannot become vit_9_p4$"):
        start_from(folder, name="vit_9_p4", **same())


@pytest.mark.parametrize(
    ("entry", "stored"), [("vit_32", ()), ("spt_vit_32", ("spt",)), ("spt_lsa_vit_32", None)]
)
def test_an_authors_checkpoint_may_have_the_add_ons_or_get_them(entry, stored, tmp_path):
    path = tmp_path / "authors.pth"
    torch.save(state_dict(entry), path)
    new, name, notes = start_from(path, name="vit_9_p4+spt+lsa", **same())
    assert name == new.name == "vit_9_p4+spt+lsa"
    fresh = said(notes, "started fresh: ")[0]
    assert ("tokenizer." in fresh) == (stored == ())
    assert ("attention.scale" in fresh) == (stored is not None)


@torch.no_grad()
def test_the_authors_checkpoints(tmp_path):
    path = tmp_path / "authors.pth"
    state = state_dict("vit_2_4_32")
    torch.save({"model": {**state, "drloc.layers.0.weight": torch.zeros(3)}}, path)
    new, name, notes = start_from(
        path, name="vit_lite_2_p4", num_classes=7, image_size=48, in_channels=1
    )
    assert name == "vit_lite_2_p4"
    old = load_reference(state, model=name, image_size=48).eval()
    grey = torch.randn(2, 1, 48, 48)
    colour = old.forward_features(grey.repeat(1, 3, 1, 1))
    equal(new.eval().forward_features(grey).pooled, colour.pooled)
    assert said(notes, "not used of the checkpoint: drloc.layers.0.weight")
    assert said(notes, "started fresh: head")


def test_the_authors_swin_at_a_size_its_windows_do_not_know(tmp_path):
    path = tmp_path / "authors.safetensors"
    save_file(state_dict("swin_32"), path)
    new, _, notes = start_from(path, name="swin_tiny_p2", **same(image_size=16, num_classes=100))
    assert new.config.image_size == (16, 16)
    assert said(notes, "resampled", "stages.2.0.attention.bias_table", "positions.table")


def test_the_authors_checkpoint_keeps_what_its_shapes_say(tmp_path):
    state = state_dict("vit_2_4_32")
    del state["classifier.positional_emb"]
    path = tmp_path / "authors.pth"
    torch.save(state, path)
    new = start_from(path, name="vit_lite_2_p4", **same())[0]
    assert describe(new)["options"] == {"position": "none"}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@torch.no_grad()
def test_a_file_of_timms(suffix, tmp_path):
    model = trained(MAKERS["vit"]())
    path = tmp_path / f"vit{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": model.state_dict(), "epoch": 3}, path)
    else:
        save_model(model, str(path))
    options = {"patch_size": 4, "depth": 2}
    new, name, notes = start_from(path, name=VIT, **same(image_size=48), options=options)
    assert name == VIT
    expected = resample(model.pos_embed, (8, 8), (12, 12), 1)
    assert torch.equal(new.pos_embed, expected)
    assert said(notes, "resampled", "pos_embed")
    assert said(notes, "started fresh: head.weight, head.bias")

    local, name, notes = start_from(
        path, name=f"{VIT}+spt+lsa", **same(num_classes=5), options=options
    )
    assert name == f"{VIT}+spt+lsa"
    assert spts(local)
    assert len(local_parts(local)) == 2
    assert said(notes, "localized: SPT AND LSA added")
    assert torch.equal(local.head.weight, model.head.weight)
    again = make_model(**describe(local))
    again.load_state_dict(local.state_dict())

    with_lsa = start_from(path, name=f"{VIT}+lsa", **same(num_classes=5), options=options)[0]
    torch.save(stir(with_lsa).state_dict(), tmp_path / "lsa.pth")
    both, _, notes = start_from(
        tmp_path / "lsa.pth", name=f"{VIT}+spt+lsa", **same(num_classes=5), options=options
    )
    assert said(notes, "localized: SPT added")
    assert torch.equal(both.blocks[0].attn.scale, with_lsa.blocks[0].attn.scale)


def test_checkpoints_that_do_not_fit_are_refused(tmp_path, make):
    path = tmp_path / "vit.pth"
    torch.save(MAKERS["vit"]().state_dict(), path)
    options = {"patch_size": 4, "depth": 3}
    with pytest.raises(ValueError, match=r"vit.pth as timm/.*blocks\.2\.norm1\.weight is not in"):
        start_from(path, name=VIT, **same(), options=options)
    with pytest.raises(ValueError, match=r"blocks\.1\.\S+ is not in the model, .* more"):
        start_from(path, name=VIT, **same(), options={**options, "depth": 1})
    with pytest.raises(ValueError, match=r"does not fit: cls_token is not in the model.* more"):
        start_from(path, name="timm/resnet18", **same())
    with pytest.raises(ValueError, match=r"vit\.pth: .*not a checkpoint of cct_2_3x1"):
        start_from(path, name="cct_2_3x1", **same())
    with pytest.raises(ValueError, match=r"vit\.pth does not say which model it holds"):
        start_from(path, **same())
    folder, _ = make("cct_2_3x1")
    with pytest.raises(ValueError, match=r"is a run of cct_2_3x1, which cannot become cct_4_3x1"):
        start_from(folder, name="cct_4_3x1", **same())
    with pytest.raises(ValueError, match=r"the trained cct_2_3x1 does not fit: .*mlp"):
        start_from(folder, **same(), options={"mlp_ratio": 2})
    with pytest.raises(ValueError, match=r"multiples of 4"):
        start_from(save_run(folder, shrunk("vit_9_p4")), **same(image_size=30))


def test_torn_runs_and_wrong_paths_are_refused(tmp_path, make):
    folder, _ = make("cct_2_3x1")
    save_model(nn.Linear(2, 2), str(folder / "weights.safetensors"))
    with pytest.raises(
        ValueError, match=r"weights\.safetensors does not fit: .*weight is not in the model"
    ):
        start_from(folder, **same())
    (folder / "weights.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="could not be read as a checkpoint"):
        start_from(folder, **same())
    (folder / "weights.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no weights\.safetensors"):
        start_from(folder, **same())
    (folder / "weights.safetensors").touch()
    (folder / "run.json").write_text('{"format": 1, "model": {"name": "cct_2_3x1"}}')
    with pytest.raises(ValueError, match=r"run.json does not say which model .* \('options'\)"):
        start_from(folder, **same())
    with pytest.raises(ValueError, match=r"run folder: it has no run.json"):
        start_from(tmp_path, **same())
    for source in (tmp_path / "absent", "runs/absent", "absent.pth"):
        with pytest.raises(FileNotFoundError, match="there is no file or run folder"):
            start_from(source, **same())


def test_weights_that_a_finished_run_did_not_write_are_refused(make):
    folder, model = make("cct_2_3x1")
    weights, info = folder / "weights.safetensors", json.loads((folder / "run.json").read_text())
    hashes = {weights.name: hash_bytes(weights.read_bytes())}
    (folder / "run.json").write_text(json.dumps({**info, "hashes": hashes}))
    start_from(folder, **same())
    save_model(stir(model, 0.1), str(weights))
    for source in (folder, weights):
        with pytest.raises(ValueError, match="is not the file that was written"):
            start_from(source, **same())


def test_a_run_below_the_home_folder(make, monkeypatch):
    folder, model = make("cct_2_3x1")
    monkeypatch.setenv("HOME", str(folder.parent))
    again, _, _ = start_from("~/run", **same())
    assert all(torch.equal(again.state_dict()[k], v) for k, v in model.state_dict().items())
    with pytest.raises(FileNotFoundError, match="there is no file or run folder ~nobody"):
        start_from("~nobody-of-this-name/run", **same())


def test_nothing_in_a_checkpoint_runs(tmp_path):
    path = tmp_path / "vit.pth"
    torch.save({"state_dict": {}, "args": argparse.Namespace(lr=1)}, path)
    for name in (VIT, "cct_2_3x1", "cifar_resnet56"):
        with pytest.raises(ValueError, match="could run code"):
            start_from(path, name=name, **same())


@pytest.fixture
def offline(monkeypatch, tmp_path):
    from huggingface_hub import constants

    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(torch.hub, "_hub_dir", str(cache))

    def refuse(*_, **__):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return cache


@pytest.mark.parametrize("source", ["timm/resnet18.a1_in1k", "resnet18", "timm/gcvit_tiny"])
def test_without_a_network_one_sentence_says_where_it_looked(offline, source):
    with pytest.raises(OSError, match="could not be fetched") as caught:
        start_from(source, **same())
    sentence = str(caught.value)
    assert source.removeprefix("timm/") in sentence
    assert str(offline) in sentence
    assert "--pretrained FILE.safetensors --model timm/" in sentence
    assert "\n" not in sentence


def test_names_without_weights_get_a_sentence(offline):
    with pytest.raises(ValueError, match="cct_7_3x1 has no weights to fetch"):
        start_from("cct_7_3x1", **same())
    with pytest.raises(ValueError, match=r"no trained weights called resnet18\.x; it has resnet18"):
        start_from("timm/resnet18.x", **same())
    with pytest.raises(ValueError, match="it has none for this architecture"):
        start_from("timm/smallvit_cct_7_3x1", **same())
    with pytest.raises(ValueError, match="timm has no model 'resnt18'; did you mean"):
        start_from("resnt18", **same())
    with pytest.raises(ValueError, match="are of resnet18, which cannot become timm/resnet50"):
        start_from("resnet18", name="timm/resnet50", **same())


def cached(folder, name):
    """A cache as the hub lays it out; the weights are ours."""
    config = timm.get_pretrained_cfg(name)
    model = trained(timm.create_model(name))
    repository = folder / f"models--{config.hf_hub_id}".replace("/", "--")
    commit = "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    file = repository / "snapshots" / commit / "model.safetensors"
    save_model(model, str(file))
    return model, file


@torch.no_grad()
def test_a_name_whose_weights_are_cached(offline):
    name = "mobilenetv3_small_050.lamb_in1k"
    model, file = cached(offline, name)
    new, given, notes = start_from(f"timm/{name}", **same(in_channels=1))
    assert given == f"timm/{name}"
    grey = torch.randn(2, 1, 64, 64)
    expected = model.forward_features(grey.repeat(1, 3, 1, 1))
    equal(new.eval().forward_features(grey), expected)
    assert said(notes, "input channels 3 → 1: conv_stem.weight summed")
    assert said(notes, "started fresh: classifier.weight, classifier.bias")
    with pytest.raises(ValueError, match="cannot localize a MobileNetV3"):
        start_from(f"timm/{name}+lsa", **same())
    file.write_bytes(b"torn")
    with pytest.raises(OSError, match=f"the weights of {name} are broken"):
        start_from(f"timm/{name}", **same())


@pytest.mark.parametrize(
    ("suffix", "name"),
    [("+spt+lsa", None), ("+spt", "+lsa"), ("", "timm/deit_tiny_patch16_224+spt+lsa")],
)
def test_a_timm_name_with_add_ons(offline, suffix, name):
    tag = "deit_tiny_patch16_224.fb_in1k"
    model, _ = cached(offline, tag)
    new, given, notes = start_from(f"timm/{tag}{suffix}", name=name, **same())
    assert given == f"timm/{tag}+spt+lsa"
    assert spts(new)
    assert len(local_parts(new)) == len(model.blocks)
    assert torch.equal(new.blocks[3].mlp.fc1.weight, model.blocks[3].mlp.fc1.weight)
    assert said(notes, "localized: SPT AND LSA added")
    assert describe(make_model(**describe(new))) == describe(new)


def test_created_models_describe_themselves():
    model = create_model("t2t_12", num_classes=3, image_size=32)
    assert describe(model) == {
        "name": "t2t_12",
        "options": {},
        "image_size": [32, 32],
        "in_channels": 3,
        "num_classes": 3,
    }
