"""The authors' checkpoints: state dicts in the layouts of the three reference repositories.

A reference key becomes ours by the substitutions of its layout, in order; the keys themselves show
which layout it is. Shapes that differ only in how a matrix is written (a linear patch embedding, a
1×1 convolution) are rewritten. Every tensor is used, or is listed in `DROPPED`, or the call fails
and names it. timm's plain ViT layout is read too, for `vit_base`, `vit_large` and `vit_huge`.
"""

import logging
import math
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smallvit.arguments import checked
from smallvit.layers import resample, sinusoid
from smallvit.models.base import Backbone
from smallvit.models.build import create_model, make_config
from smallvit.models.names import find_variant
from smallvit.models.parameters import input_sizes
from smallvit.sizes import Size
from smallvit.text import some

logger = logging.getLogger(__name__)

#: Tensors a checkpoint may carry and a model does not need, and why.
DROPPED = {
    r"tokens_to_token\.norm\.(weight|bias)": "in T2T's checkpoints, never used",
    r".*attn_mask": "computed from the grid",
    r".*relative_position_index": "computed from the window",
    r".*num_batches_tracked": "counts training steps only",
    r"drloc\..*": "the training head of dense relative localization",
}


def is_dropped(key: str) -> bool:
    """Whether a tensor is one of `DROPPED`."""
    return any(re.fullmatch(pattern, key) for pattern in DROPPED)


Substitution = tuple[str, str | Callable[[re.Match[str]], str]]


def _halved(name: str) -> Callable[[re.Match[str]], str]:
    """PiT numbers stages and the poolings between them together."""
    return lambda match: f"{name}.{int(match[1]) // 2}."


_EMBEDDING: list[Substitution] = [
    (r"^pos_embedding$", "positions.table"),
    (r"^cls_token$", "pool.token"),
    (r"^to_patch_embedding\.(0\.)?merging\.1\.", "tokenizer.norm."),
    (r"^to_patch_embedding\.(0\.)?merging\.2\.", "tokenizer.proj."),
    (r"^to_patch_embedding\.[01]\.", "tokenizer.proj."),
    (r"^mlp_head\.0\.", "norm."),
    (r"^mlp_head\.1\.", "head."),
]
# Inside a residual branch: 0 is attention, 1 the MLP; CaiT wraps both once more for LayerScale.
_BRANCHES: list[Substitution] = [
    (r"\.fn\.(fn|norm)\.", r".\1."),
    (r"\.0\.scale$", ".scale1.factor"),
    (r"\.1\.scale$", ".scale2.factor"),
    (r"\.0\.norm\.", ".norm1."),
    (r"\.1\.norm\.", ".norm2."),
    (r"\.0\.fn\.", ".attention."),
    (r"\.1\.fn\.net\.0\.", ".mlp.fc1."),
    (r"\.1\.fn\.net\.3\.", ".mlp.fc2."),
    (r"\.mix_heads_pre_attn$", ".talking.before"),
    (r"\.mix_heads_post_attn$", ".talking.after"),
    (r"\.to_qkv\.", ".qkv."),
    (r"\.to_out\.0\.", ".proj."),
]
_VIT: list[Substitution] = [
    *_EMBEDDING,
    (r"^transformer\.layers\.", "blocks."),
    *_BRANCHES,
]
_CAIT: list[Substitution] = [
    *_EMBEDDING,
    (r"^patch_transformer\.layers\.", "blocks."),
    (r"^cls_transformer\.layers\.", "class_blocks."),
    *_BRANCHES,
]
_PIT: list[Substitution] = [
    *_EMBEDDING,
    (r"^layers\.(\d+)\.layers\.", _halved("stages")),
    (r"^layers\.(\d+)\.", _halved("poolings")),
    (r"\.downsample\.net\.0\.", ".depthwise."),
    (r"\.downsample\.net\.1\.", ".proj."),
    (r"\.(cls_ff|class_linear)\.", ".class_proj."),
    (r"\.merging\.1\.", ".spt.norm."),
    (r"\.merging\.2\.", ".spt.proj."),
    *_BRANCHES,
]
_CVT: list[Substitution] = [
    (r"^layers\.(\d+)\.2\.layers\.", r"stages.\1."),
    *_BRANCHES,
    (r"\.to_(q|kv)\.net\.0\.", r".\1.conv."),
    (r"\.to_(q|kv)\.net\.1\.", r".\1.norm."),
    (r"\.to_(q|kv)\.net\.2\.", r".\1.proj."),
    (r"^layers\.(\d+)\.0\.", r"embeddings.\1.conv."),
    (r"^layers\.(\d+)\.1\.", r"embeddings.\1.norm."),
    (r"\.g$", ".weight"),
    (r"\.b$", ".bias"),
]
_SWIN: list[Substitution] = [
    (r"^absolute_pos_embed$", "positions.table"),
    (r"^patch_embed\.merging\.1\.", "tokenizer.norm."),
    (r"^patch_embed\.merging\.2\.", "tokenizer.proj."),
    (r"^patch_embed\.", "tokenizer."),
    (r"^layers\.(\d+)\.blocks\.", r"stages.\1."),
    (r"^layers\.(\d+)\.downsample\.merging\.1\.", r"mergings.\1.spt.norm."),
    (r"^layers\.(\d+)\.downsample\.merging\.2\.", r"mergings.\1.spt.proj."),
    (r"^layers\.(\d+)\.downsample\.reduction\.", r"mergings.\1.proj."),
    (r"^layers\.(\d+)\.downsample\.", r"mergings.\1."),
    (r"\.attn\.relative_position_bias_table$", ".attention.bias_table"),
    (r"\.attn\.", ".attention."),
]
_TIMM_VIT: list[Substitution] = [
    (r"^cls_token$", "pool.token"),
    (r"^pos_embed$", "positions.table"),
    (r"^patch_embed\.", "tokenizer."),
    (r"\.attn\.", ".attention."),
]
_T2T: list[Substitution] = [
    (
        r"^tokens_to_token\.attention(\d+)\.",
        lambda match: f"tokenizer.transformers.{int(match[1]) - 1}.",
    ),
    (r"^tokens_to_token\.project\.", "tokenizer.proj."),
    (r"\.w$", ".rows"),
    (r"\.mlp\.0\.", ".mlp.fc1."),
    (r"\.mlp\.2\.", ".mlp.fc2."),
    *_TIMM_VIT,
]
_COMPACT: list[Substitution] = [
    (r"^tokenizer\.conv_layers\.(\d+)\.0\.", r"tokenizer.convs.\1."),
    (r"^classifier\.class_emb$", "pool.token"),
    (r"^classifier\.positional_emb$", "positions.table"),
    (r"^classifier\.attention_pool\.", "pool.score."),
    (r"^classifier\.fc\.", "head."),
    (r"^classifier\.", ""),
    (r"\.norm1\.", ".norm2."),
    (r"\.pre_norm\.", ".norm1."),
    (r"\.self_attn\.", ".attention."),
    (r"\.linear([12])\.", r".mlp.fc\1."),
]
#: A key that shows a layout, and its substitutions; the first that matches counts.
_LAYOUTS: list[tuple[str, list[Substitution]]] = [
    (r"transformer\.layers\.", _VIT),
    (r"patch_transformer\.", _CAIT),
    (r"layers\.\d+\.layers\.", _PIT),
    (r"layers\.\d+\.2\.layers\.", _CVT),
    (r"layers\.\d+\.blocks\.", _SWIN),
    (r"tokens_to_token\.", _T2T),
    # A convolution with a bias cuts patches; those of the compact tokenizer have none.
    (
        r"tokenizer\.conv_layers\.0\.0\.bias",
        [(r"^tokenizer\.conv_layers\.0\.0\.", "tokenizer.proj."), *_COMPACT],
    ),
    (r"classifier\.", _COMPACT),
    (r"patch_embed\.proj\.", _TIMM_VIT),
]


@checked
def load_reference(
    source: str | PathLike[str] | Mapping[str, Any],
    *,
    model: str,
    image_size: int | Size,
    **options: Any,
) -> Backbone:
    """Builds our model with the weights of an authors' checkpoint.

    Classes and channels are read from the shapes. Positions made for another grid are resampled
    to the one of `image_size`.

    Args:
        source: A state dict, or a file: safetensors, or a PyTorch file that holds tensors only.
        model: Our name of the model, with its add-ons.
        image_size: One number, or (height, width).
        options: Further options of `create_model`.

    Raises:
        ValueError: The file holds more than tensors, or a tensor does not fit into the model.
    """
    raw = unwrap(read_checkpoint(source) if isinstance(source, str | PathLike) else source)
    state, origin = rename(raw)
    known = {field.name for field in fields(find_variant(model).model.Config)}
    shown = {name: read(state) for name, read in _SHOWN_BY_TENSORS.items() if name in known}
    options = {"image_size": image_size, **shown, **options}
    options.setdefault("in_channels", _channels(state, model, options))
    built = create_model(model, **options)
    built.load_state_dict(_rewrite(state, origin, built))
    return built


def read_checkpoint(path: str | PathLike[str]) -> Mapping[str, Any]:
    """What a checkpoint file holds, wrappers and all; refuses what could run code."""
    try:
        if Path(path).suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than tensors, and reading it could run code. Save its state dict "
            "alone where you trust it: torch.save(torch.load(path, weights_only=False)['model'], "
            "new_path)"
        ) from error
    except Exception as error:  # a broken file fails in as many ways as it has bytes
        raise ValueError(f"{path} could not be read as a checkpoint: {error}") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a state dict")
    return content


def unwrap(source: Mapping[str, Any]) -> dict[str, Tensor]:
    """Takes off wrappers and the prefix that data-parallel training leaves."""
    for wrapper in ("model", "state_dict", "model_state_dict"):
        if isinstance(source.get(wrapper), Mapping):
            return unwrap(source[wrapper])
    pairs = source.items()
    strange = [k for k, value in pairs if not isinstance(k, str) or not isinstance(value, Tensor)]
    if strange or not source:
        raise ValueError(f"not a state dict: {strange[:3] or 'nothing'} in it is not a tensor")
    return {key.removeprefix("module."): value for key, value in source.items()}


def rename(raw: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by our names, and for each the name it had; those of `DROPPED` are left out."""
    layout = next(
        (steps for pattern, steps in _LAYOUTS if any(re.match(pattern, key) for key in raw)), []
    )
    state: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for key, value in raw.items():
        if is_dropped(key):
            logger.info("dropped %s", key)
            continue
        new = key
        for pattern, replacement in layout:
            new = re.sub(pattern, replacement, new)
        state[new] = value
        origin[new] = key
    for key in [key for key in state if key.endswith("to_q.weight")]:
        base = key.removesuffix("to_q.weight")
        if f"{base}to_kv.weight" in state:
            parts = state.pop(key), state.pop(f"{base}to_kv.weight")
            state[f"{base}qkv.weight"] = torch.cat(parts)
            origin[f"{base}qkv.weight"] = origin[key]
    return state, origin


def is_sinusoid(table: Tensor) -> bool:
    """Whether a position table is the fixed one, up to the rounding of angles in float32."""
    fixed = sinusoid(table.shape[1], table.shape[2])
    return torch.allclose(table.float(), fixed, rtol=0, atol=1e-4)


def _position(state: Mapping[str, Tensor]) -> str:
    table = state.get("positions.table")
    return "none" if table is None else "sine" if is_sinusoid(table) else "learned"


#: Fields of a config whose value the tensors show.
_SHOWN_BY_TENSORS: dict[str, Callable[[Mapping[str, Tensor]], Any]] = {
    "num_classes": lambda state: len(state.get("head.weight", ())),
    "position": _position,
    "absolute": lambda state: "positions.table" in state,
}


def _channels(state: Mapping[str, Tensor], model: str, options: Mapping[str, Any]) -> int:
    """Channels from the first tensor whose size depends on them."""
    sizes = input_sizes(find_variant(model).model, make_config(model, **options))
    key, entries = next(iter(sizes.items()))
    if key not in state:
        raise ValueError(f"this is not a checkpoint of {model}: no tensor for {key}")
    return max(state[key].numel() // entries, 1)


def _rewrite(
    state: dict[str, Tensor], origin: dict[str, str], model: Backbone
) -> dict[str, Tensor]:
    """Writes each tensor in our shape; fails with everything that does not fit."""
    target = model.state_dict()
    counters = {key: value for key, value in target.items() if key.endswith("num_batches_tracked")}
    faults = [f"{origin[key]} is not in the model" for key in state if key not in target]
    missing = [key for key in target if key not in state and key not in counters]
    faults += [f"{key} is not in the checkpoint" for key in missing]
    fitted: dict[str, Tensor] = dict(counters)
    for key in sorted(state.keys() & target.keys()):
        value, shape = state[key], target[key].shape
        if key == "positions.table":
            value = _stretch(value, model)
        elif value.ndim == 2 and len(shape) == 4 and value.numel() == shape.numel():
            # A linear patch embedding reads row, column, channel; a convolution channel first.
            value = value.reshape(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
        elif value.numel() == shape.numel() and _bare(value.shape) == _bare(shape):
            value = value.reshape(shape)
        if value.shape == shape:
            fitted[key] = value
        else:
            has, needs = tuple(value.shape), tuple(shape)
            faults.append(f"{origin[key]} is {has} and the model's {key} is {needs}")
    if faults:
        raise ValueError(f"this is not a checkpoint of {model.name}: {some(faults, 6)}")
    return fitted


def _bare(shape: torch.Size) -> list[int]:
    """A shape without its axes of length one."""
    return [side for side in shape if side != 1]


def _stretch(table: Tensor, model: Backbone) -> Tensor:
    """A position table for the model's grid; one for another grid must have been square."""
    positions: Any = model.get_submodule("positions")
    tokens = table.shape[1] - positions.prefix
    if tokens == positions.grid[0] * positions.grid[1]:
        return table
    side = math.isqrt(tokens)
    if side * side != tokens:
        return table
    logger.info("positions resampled from %d×%d to %d×%d", side, side, *positions.grid)
    return resample(table, (side, side), positions.grid, positions.prefix)
