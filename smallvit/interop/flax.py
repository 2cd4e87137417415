"""Weights between PyTorch and `smallvit.flax`, exact both ways.

Both sides name their parts alike; only the layout of a weight differs:

| PyTorch | Flax | layout |
|---|---|---|
| `blocks.0.` | `blocks_0.` | |
| `weight`, one axis | `scale` | same |
| `weight`, two axes | `kernel` | transposed |
| `weight`, four axes | `kernel` | (out, in, h, w) to (h, w, in, out) |
| `pool.` | `pooling.` | |
| fixed sinusoid positions | collection "constants" | same |
"""

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from smallvit.config_io import flattened
from smallvit.interop.references import is_sinusoid

Variables = dict[str, Any]

_LEAVES = {"weight", "bias", "scale", "table", "token"}
_LISTS = {"blocks", "convs", "perceptron"}
"""What the Flax models have several of, numbered."""


def to_flax(source: nn.Module | Mapping[str, Tensor] | str | PathLike[str]) -> Variables:
    """Variables for `smallvit.flax` as NumPy arrays.

    Args:
        source: A model, a state dict, a safetensors file of one, or the folder of a run.

    Raises:
        ValueError: A tensor does not exist in the Flax models.
    """
    fixed = None
    if isinstance(source, nn.Module):
        position = getattr(getattr(source, "config", None), "position", None)
        fixed = None if position is None else position == "sine"
        source = source.state_dict()
    elif isinstance(source, str | PathLike):
        source = _read(Path(source))
    variables: Variables = {"params": {}}
    for key, tensor in source.items():
        *parents, leaf = re.sub(r"\.(\d+)\.", r"_\1.", key).split(".")
        lists = set(re.findall(r"(\w+)\.\d+\.", key))
        if leaf not in _LEAVES or not lists <= _LISTS:
            raise ValueError(
                f"{key} does not exist in smallvit.flax, which has ViT, ViT-Lite, CVT and CCT"
            )
        collection = "params"
        if leaf == "table" and (is_sinusoid(tensor) if fixed is None else fixed):
            collection = "constants"
        value = _array(tensor)
        if leaf == "weight":
            leaf = "scale" if value.ndim == 1 else "kernel"
            value = value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
        node = variables.setdefault(collection, {})
        for parent in parents:
            node = node.setdefault("pooling" if parent == "pool" else parent, {})
        node[leaf] = np.array(value, order="C")
    return variables


def to_torch(source: Mapping[str, Any] | str | PathLike[str]) -> dict[str, Tensor]:
    """The state dict of the PyTorch model with these weights.

    Args:
        source: Variables of a Flax model, with or without the outer collections, or a file of
            `smallvit.flax.save`.
    """
    if isinstance(source, Mapping):
        arrays = flattened(source)
    else:
        arrays = {name: _array(tensor) for name, tensor in _read(Path(source)).items()}
    state: dict[str, Tensor] = {}
    for name, array in arrays.items():
        *parents, leaf = name.removeprefix("params.").removeprefix("constants.").split(".")
        value = np.asarray(array)
        if leaf == "kernel":
            value = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
        if leaf == "kernel" or (leaf == "scale" and parents[-1].startswith("norm")):
            leaf = "weight"
        parents = ["pool" if parent == "pooling" else parent for parent in parents]
        state[re.sub(r"_(\d+)\.", r".\1.", ".".join([*parents, leaf]))] = _tensor(value)
    return state


def _read(path: Path) -> Mapping[str, Tensor]:
    from safetensors.torch import load_file

    from smallvit.runs.places import WEIGHTS

    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"no weights at {file}: give a safetensors file or a run's folder")
    return load_file(file)


def _array(tensor: Tensor) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    if tensor.dtype != torch.bfloat16:  # NumPy knows it only by JAX's extension
        return tensor.numpy()
    import ml_dtypes

    return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def _tensor(array: NDArray[Any]) -> Tensor:
    copy = np.array(array, order="C")
    if copy.dtype.name != "bfloat16":
        return torch.from_numpy(copy)
    return torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16)
