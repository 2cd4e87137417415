"""Any tree of arrays as a safetensors file, exact."""

from os import PathLike
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path, tree_unflatten
from safetensors import SafetensorError
from safetensors.flax import load_file, save_file


def save(tree: Any, path: str | PathLike[str]) -> None:
    """Writes every leaf of a tree (variables, gradients, a training state) under its path."""
    leaves, _ = tree_flatten_with_path(tree)
    arrays = {keystr(key, simple=True, separator="."): jax.numpy.asarray(x) for key, x in leaves}
    save_file(arrays, path)


def load(path: str | PathLike[str], like: Any = None) -> Any:
    """Reads a file of `save`.

    Args:
        like: A tree of the same structure, such as a fresh training state. Without it the result
            is made of nested dicts.

    Raises:
        ValueError: It is no safetensors file, or its names or shapes are not those of `like`.
        OSError: There is no such file.
    """
    try:
        arrays = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file, or is damaged: {error}") from error
    if like is None:
        tree: dict[str, Any] = {}
        for name, value in arrays.items():
            *parents, last = name.split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        return tree
    leaves, structure = tree_flatten_with_path(like)
    names = [keystr(key, simple=True, separator=".") for key, _ in leaves]
    faults = [f"{name} is missing" for name in names if name not in arrays]
    faults += [f"{name} is not expected" for name in arrays if name not in set(names)]
    faults += [
        f"{name} is {arrays[name].shape} and not {leaf.shape}"
        for name, (_, leaf) in zip(names, leaves, strict=True)
        if name in arrays and arrays[name].shape != leaf.shape
    ]
    if faults:
        raise ValueError(f"{path} does not fit: {'; '.join(faults[:6])}")
    return tree_unflatten(structure, [arrays[name] for name in names])
