"""timm: a folder that timm loads: config.json, model.safetensors and a README that says how."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from smallvit.files import write_bytes, write_json, write_tensors
from smallvit.formats import safetensors
from smallvit.formats.loaded import Loaded
from smallvit.formats.shipped import Check, Shipped, outputs_of
from smallvit.models.names import parse_name
from smallvit.runs.card import KEY, Card

_WEIGHTS = "model.safetensors"

_README = """# {architecture}

Trained with smallvit {version}: {count} classes, images of {height}×{width} pixels, {channels} \
channels.

```python
import timm
{needed}
model = timm.create_model("local-dir:{folder}", pretrained=True).eval()
```

The model takes images brought to {height}×{width} by "{fit}" (grey bars and no cropping for \
letterbox), divided by 255, minus mean {mean}, divided by std {std}. timm's own transforms have no \
letterbox; `smallvit.data.fit_image` does it. Divide logits by {temperature} before the softmax \
for calibrated probabilities. Classes, in the order of the logits: `label_names` in config.json.
"""


def write(path: Path, card: Card, model: nn.Module, check: Check) -> None:
    """Writes the folder, has timm load it, checks that and only then gives it its name."""
    import timm

    import smallvit.models.timm_names  # noqa: F401  # our names in timm's registry

    described = config(card)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        write_json(temporary / "config.json", described)
        about = {"format": "pt", KEY: card.to_json()}
        write_tensors(temporary / _WEIGHTS, model.state_dict(), **about)
        write_bytes(temporary / "README.md", _readme(path, card, described).encode())
        loaded = timm.create_model(f"local-dir:{temporary}", pretrained=True)
        check(outputs_of(Shipped(loaded, card).eval()))
        temporary.chmod(0o755)
        if path.exists():
            _remove(path)
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(path: Path, device: str) -> Loaded:
    """Opens the weights in the folder."""
    return safetensors.load(path / _WEIGHTS, device)


def read_card(path: Path) -> Card:
    """The card of the weights in the folder."""
    return safetensors.read_card(path / _WEIGHTS)


def config(card: Card) -> dict[str, Any]:
    """What timm reads.

    Raises:
        ValueError: timm could not build this model by a name.
    """
    name, options = str(card.model["name"]), dict(card.model["options"])
    parts = parse_name(name)
    if parts.ours:
        from smallvit.models.timm_names import timm_name

        architecture = timm_name(name)
        classifier: Any = "head"
        sized = {"img_size": list(card.image_size)}
    elif parts.timm and not parts.addons:
        import timm

        architecture = parts.timm.partition(".")[0]
        known = timm.get_pretrained_cfg(parts.timm)
        classifier = known.classifier if known else None
        sized = {"img_size": list(card.image_size)} if known and known.fixed_input_size else {}
    else:
        raise ValueError(
            f"{name} is not a model that timm can build by a name: choose another --format"
        )
    return {
        "architecture": architecture,
        "num_classes": len(card.classes),
        "label_names": list(card.classes),
        "model_args": {**options, **sized, "in_chans": card.channels},
        "pretrained_cfg": {
            "input_size": [card.channels, *card.image_size],
            "mean": list(card.mean),
            "std": list(card.std),
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "num_classes": len(card.classes),
            "first_conv": None,  # older versions of timm would adapt weights that fit as they are
            "classifier": classifier,  # which timm leaves out for another number of classes
        },
        "smallvit": json.loads(card.to_json()),
    }


def _readme(path: Path, card: Card, described: dict[str, Any]) -> str:
    ours = described["architecture"].startswith("smallvit_")
    return _README.format(
        architecture=described["architecture"],
        version=card.versions["smallvit"],
        count=len(card.classes),
        height=card.image_size[0],
        width=card.image_size[1],
        channels=card.channels,
        needed="import smallvit.models.timm_names  # registers this model's name\n" if ours else "",
        folder=path.name,
        fit=card.fit,
        mean=", ".join(f"{value:.4f}" for value in card.mean),
        std=", ".join(f"{value:.4f}" for value in card.std),
        temperature=f"{card.temperature:.4f}",
    )


def _remove(path: Path) -> None:
    """Removes an older export; a folder with other files in it is refused."""
    others = {item.name for item in path.iterdir()} - {"config.json", _WEIGHTS, "README.md"}
    if others:
        raise ValueError(
            f"{path} holds {min(others)}, which no export wrote: choose another folder"
        )
    shutil.rmtree(path)
