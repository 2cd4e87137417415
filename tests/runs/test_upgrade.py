"""Configs of older versions, in today's keys."""

import pytest

from smallvit.runs import RunConfig
from smallvit.runs.changes import changes_of, read_changes, upgrade


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (
            {"name": "vit_9_p4", "pretrained": "runs/x", "spt": True, "lsa": True},
            "vit_9_p4+spt+lsa",
        ),
        ({"name": "vit_9_p4+spt", "pretrained": "runs/x", "lsa": True}, "vit_9_p4+spt+lsa"),
        ({"name": "", "pretrained": "timm/vit_tiny_patch16_224", "lsa": True}, "+lsa"),
        ({"name": "vit_9_p4", "pretrained": "runs/x", "spt": False, "lsa": False}, "vit_9_p4"),
        # What never had an effect gets none.
        ({"name": "vit_9_p4", "pretrained": None, "spt": True, "lsa": False}, "vit_9_p4"),
        ({"name": "vit_9_p4", "spt": True}, "vit_9_p4+spt"),
    ],
)
def test_switches_of_add_ons_are_suffixes_now(model, name, tmp_path):
    config = RunConfig.from_dict({"seed": 3, "model": model})
    assert (config.model.name, config.seed) == (name, 3)
    assert config.model.pretrained == model.get("pretrained")
    assert not {"spt", "lsa"} & config.to_dict()["model"].keys()
    assert RunConfig.from_yaml(config.to_yaml()) == config
    file = tmp_path / "old.yaml"
    file.write_text(RunConfig(seed=3).to_yaml())
    assert read_changes(file)["seed"] == 3
    assert upgrade({"model": model})["model"]["name"] == name


def test_setting_an_old_switch_is_refused():
    with pytest.raises(ValueError, match=r"unknown key 'model\.spt'"):
        RunConfig().changed(changes_of(["model.spt=true"]))


def test_what_is_not_a_config_is_left_to_the_checks():
    for wrong in ([], "text", {"model": "vit_9_p4"}):
        with pytest.raises(ValueError, match="expected keys and values"):
            RunConfig.from_dict(wrong)
