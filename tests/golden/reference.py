"""The authors' state dicts of reference_outputs.json, rebuilt from their names and shapes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.golden.weights import image, sinusoid, weight

ENTRIES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "reference_outputs.json").read_text()
)

#: The authors' names and ours.
NAMES = {
    "vit": "vit_9_p4",
    "cait": "cait_24_p4",
    "pit": "pit_tiny_p2",
    "swin": "swin_tiny_p2",
    "t2t": "t2t_12",
    "vit_2_4_32": "vit_lite_2_p4",
    "cvt_7_4_32": "compact_vit_7_p4",
    "cct_2_3x2_32": "cct_2_3x2",
    "cct_7_3x1_32": "cct_7_3x1",
    "cct_7_7x2_224_sine": "cct_7_7x2",
    "swin_tiny": "swin_t",
    "cvt_13": "cvt_13",
    "t2t_vit_14": "t2t_14",
}
COMPUTED = ("attn_mask", "relative_position_index", "num_batches_tracked")


TRAINING_IMAGES = 16


def training_images(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The images of all golden trainings, (16, size, size, 3) in uint8, and their labels."""
    random = np.random.RandomState(0)
    coarse = random.randint(0, 256, (TRAINING_IMAGES, 8, 8, 3))
    images = coarse.repeat(size // 8, 1).repeat(size // 8, 2).astype(np.uint8)
    return images, np.arange(TRAINING_IMAGES) % 4


def our_name(entry: str) -> str:
    config = ENTRIES[entry]["config"]
    addons = [addon for addon in ("spt", "lsa") if config.get(addon)]
    return "+".join([NAMES[config["model"]], *addons])


def state_dict(entry: str, *, computed: bool = False) -> dict[str, Tensor]:
    """The authors' state dict; computed buffers are junk where asked for: nobody may read them."""
    return filled(ENTRIES[entry], computed=computed)


def filled(about: dict[str, Any], *, computed: bool = False) -> dict[str, Tensor]:
    """The state dict of what lists its keys with their shapes, and those that are a sinusoid."""
    state = {}
    for key, shape in about["keys"]:
        if key.endswith(COMPUTED):
            if computed:
                state[key] = torch.full(shape, 77)
        elif key in about["fixed"]:
            state[key] = torch.from_numpy(sinusoid(shape))
        else:
            state[key] = torch.from_numpy(weight(key, tuple(shape)))
    return state


def images(entry: str) -> Tensor:
    about = ENTRIES[entry]["image"]
    return torch.from_numpy(image(about["seed"], tuple(about["shape"])))


def logits(entry: str) -> Tensor:
    return torch.tensor(ENTRIES[entry]["logits"])
