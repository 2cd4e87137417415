"""Our models give the authors' numbers on the authors' weights."""

import pytest
import torch

from smallvit import load_reference
from tests.golden.reference import ENTRIES, images, logits, our_name, state_dict

DROPPED_PARAMETERS = {"t2t": 1152}  # tokens_to_token.norm: weight and bias of 576


@pytest.mark.parametrize("entry", ENTRIES)
def test_logits_and_parameter_count(entry):
    config = ENTRIES[entry]["config"]
    model = load_reference(
        state_dict(entry), model=our_name(entry), image_size=config["image_size"]
    ).eval()
    with torch.inference_mode():
        ours = model(images(entry))
    torch.testing.assert_close(ours, logits(entry), rtol=0, atol=1e-4)

    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == ENTRIES[entry]["params"] - DROPPED_PARAMETERS.get(config["model"], 0)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trainable == ENTRIES[entry]["trainable"] - DROPPED_PARAMETERS.get(config["model"], 0)


@pytest.mark.parametrize("entry", ["spt_lsa_swin_32", "cvt_13_224"])
def test_computed_buffers_may_be_present(entry):
    image_size = ENTRIES[entry]["config"]["image_size"]
    plain, full = (
        load_reference(
            state_dict(entry, computed=computed), model=our_name(entry), image_size=image_size
        )
        for computed in (False, True)
    )
    for key, value in plain.state_dict().items():
        assert torch.equal(value, full.state_dict()[key]), key
