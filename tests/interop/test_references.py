"""Reading the authors' checkpoints: every tensor used, or a sentence that names it."""

import argparse
import logging

import pytest
import torch
from safetensors.torch import save_file

from smallvit import load_reference
from smallvit.layers import resample, sinusoid
from tests.golden.reference import ENTRIES, state_dict

ENTRY, NAME = "vit_2_4_32", "vit_lite_2_p4"


def load(state, model=NAME, image_size=32, **options):
    return load_reference(state, model=model, image_size=image_size, **options)


@pytest.fixture
def state():
    return state_dict(ENTRY)


@pytest.mark.parametrize("wrapper", ["model", "state_dict", "model_state_dict"])
def test_wrappers_and_prefixes(state, wrapper):
    plain = load(state).state_dict()
    wrapped = {wrapper: {f"module.{key}": value for key, value in state.items()}, "epoch": 3}
    again = load(wrapped).state_dict()
    assert all(torch.equal(value, again[key]) for key, value in plain.items())


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_files(state, suffix, tmp_path):
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save({"model": state, "epoch": 3}, path)
    else:
        save_file(state, path)
    for given in (path, str(path)):
        assert torch.equal(load(given).head.weight, state["classifier.fc.weight"])


def test_a_file_that_would_run_code_is_refused(state, tmp_path):
    path = tmp_path / "weights.pth"
    torch.save({"model": state, "args": argparse.Namespace(lr=1)}, path)
    with pytest.raises(ValueError, match="holds more than tensors, and reading it could run code"):
        load(path)


def test_a_file_that_is_no_checkpoint(tmp_path):
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"hello")
    with pytest.raises(ValueError, match=r"could not be read as a checkpoint|more than tensors"):
        load(broken)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"hello")
    with pytest.raises(ValueError, match="could not be read as a checkpoint"):
        load(broken)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.pth")
    scalar = tmp_path / "scalar.pth"
    torch.save(torch.zeros(3), scalar)
    with pytest.raises(ValueError, match="holds a Tensor, not a state dict"):
        load(scalar)
    with pytest.raises(ValueError, match="not a state dict"):
        load({})
    with pytest.raises(ValueError, match=r"not a state dict: \['lr'\]"):
        load({"lr": 0.1})


def test_a_tensor_too_many_is_named(state):
    with pytest.raises(ValueError, match=r"classifier\.extra\.weight is not in the model"):
        load({**state, "classifier.extra.weight": torch.zeros(3)})


def test_a_missing_tensor_is_named(state):
    del state["classifier.blocks.1.linear1.bias"]
    with pytest.raises(ValueError, match=r"blocks\.1\.mlp\.fc1\.bias is not in the checkpoint"):
        load(state)


def test_a_tensor_of_another_shape_is_named(state):
    state["classifier.norm.weight"] = torch.zeros(7)
    with pytest.raises(ValueError, match=r"classifier\.norm\.weight is \(7,\).* \(128,\)"):
        load(state)


def test_the_wrong_model_gets_a_sentence(state):
    with pytest.raises(ValueError, match="not a checkpoint of vit_lite_4_p4"):
        load(state, model="vit_lite_4_p4")
    with pytest.raises(ValueError, match="not a checkpoint of vit_lite_7_p8"):
        load(state, model="vit_lite_7_p8")
    with pytest.raises(ValueError, match="not a checkpoint of swin_t"):
        load(state, model="swin_t", image_size=224)
    with pytest.raises(
        ValueError, match=r"not a checkpoint of vit_lite_2_p4\+lsa.*attention\.scale"
    ):
        load(state, model="vit_lite_2_p4+lsa")


@pytest.mark.parametrize(
    ("entry", "model"), [("vit_32", "vit_9_p8"), ("spt_vit_32", "vit_9_p8+spt")]
)
def test_another_patch_size_gets_a_sentence(entry, model):
    with pytest.raises(ValueError, match=f"not a checkpoint of {model}".replace("+", r"\+")):
        load(state_dict(entry), model=model, image_size=64)


def test_the_training_head_is_dropped_and_said(caplog):
    state = {**state_dict("swin_tiny_224"), "drloc.layers.0.weight": torch.zeros(512, 1536)}
    with caplog.at_level(logging.INFO, "smallvit"):
        load(state, model="swin_t", image_size=224)
    assert "dropped drloc.layers.0.weight" in caplog.text


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize(
    ("entry", "model", "key"),
    [
        ("vit_32", "vit_9_p4", "to_patch_embedding.1.weight"),
        ("cct_2_3x2_32", "cct_2_3x2", "tokenizer.conv_layers.0.0.weight"),
        ("pit_32", "pit_tiny_p2", "to_patch_embedding.0.weight"),
    ],
)
def test_channels_are_read_from_the_shapes(entry, model, key, channels):
    state = state_dict(entry)
    old = state[key]
    width = old.shape[1] // 3 * channels
    state[key] = torch.zeros(old.shape[0], width, *old.shape[2:])
    assert load(state, model=model).config.in_channels == channels


def test_classes_are_read_from_the_shapes(state):
    state["classifier.fc.weight"] = torch.zeros(7, 128)
    state["classifier.fc.bias"] = torch.zeros(7)
    assert load(state).config.num_classes == 7
    del state["classifier.fc.weight"], state["classifier.fc.bias"]
    assert load(state).config.num_classes == 0


def test_positions_are_resampled_to_the_size_asked_for(state, caplog):
    with caplog.at_level(logging.INFO, "smallvit"):
        model = load(state, image_size=(32, 48))
    table = state["classifier.positional_emb"]
    assert torch.equal(model.positions.table, resample(table, (8, 8), (8, 12), 1))
    assert "positions resampled from 8×8 to 8×12" in caplog.text


def test_kinds_of_positions(state):
    assert load(state).config.position == "learned"
    state["classifier.positional_emb"] = sinusoid(65, 128)
    fixed = load(state)
    assert fixed.config.position == "sine"
    assert not fixed.positions.table.requires_grad
    del state["classifier.positional_emb"]
    assert load(state).config.position == "none"


def test_sinusoids_of_angles_in_float32_are_known_as_such():
    """As the authors compute them: at 256 tokens some entries are wrong by 8e-6."""
    keys = dict(ENTRIES["cct_7_3x1_32"]["keys"])
    _, tokens, width = keys["classifier.positional_emb"]
    column = torch.arange(width, dtype=torch.float64)
    angle = torch.arange(tokens)[:, None] / 10000 ** (2 * (column // 2) / width)
    angle = angle.float()
    table = torch.where(column % 2 == 0, angle.sin(), angle.cos())[None]
    assert (table - sinusoid(tokens, width)).abs().max() > 2e-6
    model = load({**state_dict("cct_7_3x1_32"), "classifier.positional_emb": table}, "cct_7_3x1")
    assert model.config.position == "sine"
    assert not model.positions.table.requires_grad
    assert torch.equal(model.positions.table, table)


def test_swin_with_and_without_absolute_positions():
    state = state_dict("swin_32")
    assert load(state, model="swin_tiny_p2").config.absolute
    del state["absolute_pos_embed"]
    assert not load(state, model="swin_tiny_p2").config.absolute


def test_the_three_splits_of_t2t_at_64_pixels():
    """The same layout with one more token transformer."""
    state = state_dict("spt_lsa_t2t_32")
    first = {k: v for k, v in state.items() if "attention1." in k}
    for key, value in first.items():
        shape = [576 if side == 135 else side for side in value.shape]
        state[key.replace("attention1", "attention2")] = torch.zeros(shape)
    model = load(state, model="t2t_12+spt+lsa", image_size=64)
    assert len(model.tokenizer.transformers) == 2
    assert model.grid == (8, 8)


def test_options_reach_the_model(state):
    assert load(state, drop_path=0.3).config.drop_path == 0.3


def test_golden_file_is_whole():
    assert len(ENTRIES) == 28
