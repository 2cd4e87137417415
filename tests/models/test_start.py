"""How the weights start, where a paper or its code says so."""

import pytest
import torch

from smallvit import create_model


def build(name):
    torch.manual_seed(0)
    return create_model(name, num_classes=100, image_size=32)


def test_vit_of_the_spt_paper():
    model = build("vit_9_p4+lsa")
    assert model.positions.table.std().item() == pytest.approx(1, abs=0.05)
    assert model.pool.token.std().item() == pytest.approx(1, abs=0.2)
    weight = model.blocks[0].mlp.fc1.weight
    assert weight.std().item() == pytest.approx((2 / (192 + 384)) ** 0.5, rel=0.05)
    assert torch.equal(model.blocks[0].attention.scale, torch.full((12,), 16**-0.5))


def test_compact():
    model = build("cct_7_3x1")
    assert model.positions.table.std().item() == pytest.approx(0.2, rel=0.05)
    assert model.blocks[0].mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.tokenizer.convs[0].weight.std().item() == pytest.approx((2 / 27) ** 0.5, rel=0.05)


def test_layer_scale_of_cait():
    model = build("cait_24_p4")
    starts = [block.scale1.factor[0].item() for block in model.blocks]
    assert starts == pytest.approx([0.1] * 18 + [1e-5] * 6)
    assert [block.scale2.factor[0].item() for block in model.class_blocks] == pytest.approx(
        [0.1] * 2
    )


def test_temperature_of_the_token_transformer_starts_at_its_input_width():
    for name, width in (("t2t_12+lsa", 27), ("t2t_12+spt+lsa", 135)):
        scale = build(name).tokenizer.transformers[0].attention.scale
        assert scale.tolist() == pytest.approx([width**-0.5])


def test_performer_rows_are_orthogonal_and_fixed():
    with torch.device("cpu"):
        model = create_model("t2t_14", num_classes=3, image_size=32)
    rows = model.tokenizer.transformers[0].rows
    assert not rows.requires_grad
    torch.testing.assert_close(rows @ rows.T, 32 * torch.eye(32), rtol=1e-4, atol=1e-4)
