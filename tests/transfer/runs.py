"""Run folders, as far as fine-tuning reads them."""

import json

from safetensors.torch import save_model

from smallvit.models.build import describe


def save_run(folder, model):
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"format": 1, "model": describe(model)}))
    (folder / "config.yaml").write_text("seed: 0\n")
    save_model(model, str(folder / "weights.safetensors"))
    return folder
