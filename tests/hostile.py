"""Files that try to run code: if anything in one runs, there is a folder called canary."""

import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Change = Callable[[str, bytes], bytes | None]


class Payload:
    """Makes a folder as soon as it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.makedirs, (self.canary, 0o777, True)


def source(canary: Path) -> str:
    """The same as an expression of Python."""
    return f"__import__('os').makedirs({str(canary)!r}, exist_ok=True)"


def command(canary: Path) -> str:
    """The same as a command of the shell."""
    return f"mkdir -p {canary}"


def pickled(canary: Path) -> bytes:
    return pickle.dumps({"model": Payload(canary)})


def torch_zip(canary: Path) -> bytes:
    """A file as torch.save writes it today."""
    file = io.BytesIO()
    torch.save({"model": Payload(canary), "weight": torch.zeros(2)}, file)
    return file.getvalue()


def torch_legacy(canary: Path) -> bytes:
    """As it wrote them before 1.6."""
    file = io.BytesIO()
    torch.save({"model": Payload(canary)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def torch_tar(canary: Path) -> bytes:
    """And before 0.1.10: a tar file of pickles."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            data = pickled(canary)
            item = tarfile.TarInfo(name)
            item.size = len(data)
            archive.addfile(item, io.BytesIO(data))
    return file.getvalue()


def torch_script(canary: Path) -> bytes:
    """A compiled module, which holds code by design; the canary is named by a pickle beside it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/constants.pkl", pickled(canary))
        archive.writestr("archive/data.pkl", pickled(canary))
        archive.writestr("archive/code/__torch__.py", f"op_version_set = 1\n{source(canary)}\n")
    return file.getvalue()


def npy(canary: Path) -> bytes:
    """An array of objects."""
    file = io.BytesIO()
    np.save(file, np.array([Payload(canary)], object), allow_pickle=True)
    return file.getvalue()


def npy_header(canary: Path) -> bytes:
    """An array whose header is an expression instead of a literal."""
    text = f"{{'descr': {source(canary)}, 'fortran_order': False, 'shape': (1,)}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(32)


def npz(path: Path, **members: bytes | np.ndarray) -> Path:
    """Images of two classes, with some members replaced."""
    random = np.random.default_rng(0)
    plain: dict[str, Any] = {
        "images": random.integers(0, 256, (8, 8, 8, 3), np.uint8),
        "labels": np.arange(8) % 2,
        "split": np.array(["train", "test"] * 4),
        "classes": np.array(["a", "b"]),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in {**plain, **members}.items():
            if isinstance(value, np.ndarray):
                file = io.BytesIO()
                np.save(file, value, allow_pickle=False)
                value = file.getvalue()
            archive.writestr(f"{name}.npy", value)
    return path


def safetensors(tensors: dict[str, torch.Tensor], **metadata: str) -> bytes:
    from safetensors.torch import save

    return save(tensors, metadata)


def parquet(path: Path, canary: Path, rows: dict[str, list[str]]) -> Path:
    """A table whose column claims a Python type that is pickled in its metadata."""
    import pyarrow
    from pyarrow import parquet as writer

    about = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Payload(canary)),
    }
    fields = [pyarrow.field(name, pyarrow.string(), metadata=about) for name in rows]
    schema = pyarrow.schema(fields, metadata={b"pandas": pickled(canary)})
    writer.write_table(pyarrow.table(rows, schema=schema), path)
    return path


def exported(card: str) -> bytes:
    """A small graph as a .pt2 file with a card."""
    program = torch.export.export(
        Doubled(),
        (torch.zeros(3, 4, 5, 3, dtype=torch.uint8),),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={"smallvit.json": card})
    return file.getvalue()


class Doubled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = images.flatten(1, 2).float().mean(1)
        return flat @ self.weight + flat.shape[0]


def rewritten(data: bytes, change: Change, extra: dict[str, bytes] | None = None) -> bytes:
    """An archive with its members changed; `change` gets their names without the folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for item in old.infolist():
            changed = change(item.filename.partition("/")[2], old.read(item))
            if changed is not None:
                new.writestr(item.filename, changed)
        for name, value in (extra or {}).items():
            new.writestr(f"archive/{name}", value)
    return file.getvalue()


def _json_changed(name: str, edit: Callable[[Any], Any]) -> Change:
    def change(member: str, data: bytes) -> bytes:
        return json.dumps(edit(json.loads(data))).encode() if member == name else data

    return change


def _every(key: str, value: Any) -> Callable[[Any], Any]:
    """Replaces the value of every key of that name, at any depth."""

    def edit(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {k: value if k == key else edit(v) for k, v in tree.items()}
        return [edit(item) for item in tree] if isinstance(tree, list) else tree

    return edit


def pt2_formula(data: bytes, canary: Path) -> bytes:
    """Sizes are formulas, which torch evaluates."""
    return rewritten(data, _json_changed("models/model.json", _every("expr_str", source(canary))))


def pt2_sample_inputs(data: bytes, canary: Path) -> bytes:
    """Sample inputs are a pickle, and prediction goes on as if nothing were."""
    hostile = torch_zip(canary)
    return rewritten(data, lambda name, old: hostile if "sample_inputs" in name else old)


def pt2_weights(data: bytes, canary: Path) -> bytes:
    """Each weight may be a pickle if it says so."""
    change = _json_changed("data/weights/model_weights_config.json", _every("use_pickle", True))

    def both(name: str, old: bytes) -> bytes | None:
        return torch_zip(canary) if name == "data/weights/weight_0" else change(name, old)

    return rewritten(data, both)


def pt2_operator(data: bytes, canary: Path) -> bytes:
    """Operators are looked up by name below torch, and torch has imported os."""

    def edit(tree: Any) -> Any:
        node = tree["graph_module"]["graph"]["nodes"][-1]
        node["target"] = "torch.os.system"
        node["inputs"] = [{"name": "command", "arg": {"as_string": command(canary)}, "kind": 1}]
        return tree

    return rewritten(data, _json_changed("models/model.json", edit))


def pt2_guards(data: bytes, canary: Path) -> bytes:
    """Conditions on inputs are source code."""
    edit = _every("guards_code", [source(canary)])
    return rewritten(data, _json_changed("models/model.json", edit))


def pt2_constants(data: bytes, canary: Path) -> bytes:
    """Constants may be objects."""
    meta = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    change = _json_changed(
        "data/constants/model_constants_config.json", lambda _: {"config": {"c": meta}}
    )
    return rewritten(data, change, {"data/constants/opaque_obj_0": pickle.dumps(Payload(canary))})


def pt2_library(data: bytes, canary: Path) -> bytes:
    """A compiled library beside the graph; it need not even be one."""
    library = {"data/aotinductor/model/model.so": os.fsencode(command(canary))}
    return rewritten(data, lambda _, old: old, library)
