"""Files that are there whole or not at all."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file beside its place, forces it to disk and moves it there."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """The same for plain data."""
    write_bytes(path, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Plain data from a file.

    Raises:
        ValueError: It is no JSON object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return data


def tensors_to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Safetensors; tensors may lie on any device and share memory."""
    from safetensors.torch import save

    own = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    return save(own, dict(metadata))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """A safetensors file, whole or not at all."""
    write_bytes(path, tensors_to_bytes(tensors, metadata))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file.

    Raises:
        ValueError: It is not there or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error
