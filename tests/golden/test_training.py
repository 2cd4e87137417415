"""A paper's recipe trains our models exactly as its released code trains the authors'.

Each file in training/ is named after a recipe and holds `changes`, a partial config for a schedule
that is short enough, and `runs`. A run is named after an entry of reference_outputs.json and holds
what the authors' own code gave in float64: `rates` and `losses`, the learning rate of each step and
the loss before it, and `logits` in evaluation mode after the last step, a row for each image.
`norms`, where recorded, are those of the parameters after the last step, by our names: they show a
weight decay that is missing on a temperature, which moves no logit by much. (Without `qkv.bias`:
keys' biases have no gradient but that of rounding, which Adam enlarges.) `tolerance` is that of the
losses where the authors' own float32 is farther from its float64 than that of the others.

A run of a smaller model has its `config` (our name and options), its `keys` and what is `fixed`
itself. The perceptron of dense relative localization is among the keys; it compared the pairs of
tokens that our objective draws, in batches in the order of our loader.

There the authors' model started with the weights of `reference.state_dict`, and dropped nothing
(dropout and stochastic depth at 0). Every step saw all of `training_images` as one batch (or with
drloc half of them), normalised with these images' own mean and standard deviation (with drloc,
those of the recipe), with label smoothing 0.1 and no augmentation. Optimiser, parameter groups,
schedule and loss were built as their training script builds them.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import smallvit
from smallvit.augment import AugmentConfig
from smallvit.losses import DRLoc
from smallvit.runs.config import ModelConfig
from smallvit.training import classification
from tests.golden.reference import ENTRIES, filled, our_name, training_images

FILES = sorted((Path(__file__).parent / "training").glob("*.json"))
RECORDED = {path.stem: json.loads(path.read_text()) for path in FILES}
RUNS = [(recipe, entry) for recipe, recorded in RECORDED.items() for entry in recorded["runs"]]

#: Drops nothing, whatever the model's family could drop.
WHOLE = {"dropout": 0.0, "attn_dropout": 0.0, "drop_path": 0.0}


def train(recipe, entry, folder):
    """A run of a recipe from the authors' weights."""
    recorded = RECORDED[recipe]["runs"][entry]
    own = "config" in recorded
    about = recorded["config"] if own else ENTRIES[entry]["config"]
    name = about["model"] if own else our_name(entry)
    classes, size = about["num_classes"], about["image_size"]
    images, labels = training_images(size)
    names = np.array([f"class {number}" for number in range(classes)])
    np.savez(folder / "images.npz", images=images, labels=labels, class_names=names)
    torch.save(filled(recorded if own else ENTRIES[entry]), folder / "start.pth")
    fixed = {
        "data": {"image_size": size, "val": 0.0, "test": 0.0},
        "loop": {"precision": "fp32", "every": 1, "device": "cpu"},
    }
    config = smallvit.plan(folder / "images.npz", recipe=recipe, model=name, changes=fixed).config
    config = config.changed(RECORDED[recipe]["changes"])
    options = {**WHOLE, **about.get("options", {})}
    model = ModelConfig(name=name, pretrained=str(folder / "start.pth"), options=options)
    augment = AugmentConfig(smoothing=config.augment.smoothing)
    return smallvit.train(
        replace(config, model=model, augment=augment), out=folder / "run", shown=False
    )


def known_perceptron(recorded):
    """DRLoc, which starts with the authors' weights."""

    def made(*arguments, **options):
        loss = DRLoc(*arguments, **options)
        theirs = [value for key, value in filled(recorded).items() if key.startswith("drloc.")]
        for parameter, value in zip(loss.parameters(), theirs, strict=True):
            parameter.data.copy_(value)
        return loss

    return made


@pytest.mark.parametrize(("recipe", "entry"), RUNS)
def test_losses_rates_and_logits(recipe, entry, tmp_path, monkeypatch):
    expected = RECORDED[recipe]["runs"][entry]
    monkeypatch.setattr(classification, "DRLoc", known_perceptron(expected))
    run = train(recipe, entry, tmp_path)
    steps = [line for line in run.log() if line["kind"] == "train"]
    assert [step["lr"] for step in steps] == pytest.approx(expected["rates"], rel=1e-6)
    tolerance = expected.get("tolerance", 2e-4)
    assert [step["loss"] for step in steps] == pytest.approx(expected["losses"], abs=tolerance)
    dataset, model = run.dataset(), run.model().eval()
    with torch.inference_mode():
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in dataset.statistics)
        images = torch.from_numpy(np.array(dataset.pixels("train")))
        logits = model((images / 255 - mean) / std)
    wanted = torch.tensor(expected["logits"])
    torch.testing.assert_close(logits, wanted, rtol=0, atol=2.5 * tolerance)
    parameters = dict(model.named_parameters())
    norms = {name: parameters[name].double().norm().item() for name in expected.get("norms", ())}
    assert norms == pytest.approx(expected.get("norms", {}), rel=5e-5)
