"""ONNX: a graph with its preprocessing, and a script beside it that uses it.

Opening a file needs onnxruntime and no PyTorch.
"""

import os
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, UInt8

from smallvit.data.parallel import cores
from smallvit.extras import require
from smallvit.files import write_bytes
from smallvit.formats.loaded import Loaded, coloured
from smallvit.runs.card import KEY, Card

if TYPE_CHECKING:
    from torch import nn

    from smallvit.formats.shipped import Check, Shipped

_OPSET = 18


def write(path: Path, card: Card, model: "nn.Module", check: "Check") -> None:
    """Writes the graph, and for models of grey or colour images the script."""
    from smallvit.formats.shipped import Shipped

    shipped = Shipped(model, card)
    data = onnx_bytes(shipped, card)
    session = _session(data, "cpu", "the new ONNX model")
    check(lambda images: session.run(["logits", "probabilities"], {"images": images}))
    write_bytes(path, data)
    if shipped.input_channels == 3:
        script = files("smallvit.formats").joinpath("standalone.py").read_bytes()
        write_bytes(path.with_suffix(".py"), script)


def load(path: Path, device: str) -> Loaded:
    """Opens the graph in ONNX Runtime."""
    session = _session(path, device, str(path))
    card = _card(session, path)
    if len(session.get_inputs()) != 1:
        raise ValueError(f"{path} has {len(session.get_inputs())} inputs: expected one, the images")
    # Older files call their input "pictures".
    name = session.get_inputs()[0].name

    def forward(pixels: UInt8[np.ndarray, "B h w C"]) -> Float32[np.ndarray, "B K"]:
        images = {name: np.ascontiguousarray(coloured(pixels))}
        logits: Float32[np.ndarray, "B K"] = session.run(["logits"], images)[0]
        return logits

    return card, forward, None


def read_card(path: Path) -> Card:
    """The card in the metadata."""
    return _card(_session(path, "cpu", str(path)), path)


def _card(session: Any, path: Path) -> Card:
    return Card.from_json(session.get_modelmeta().custom_metadata_map.get(KEY), str(path))


def _session(model: Path | bytes, device: str, title: str) -> Any:
    """A session of ONNX Runtime on as many threads as this process may use."""
    onnxruntime = require("onnxruntime", "onnx", "reading an .onnx file")
    available = onnxruntime.get_available_providers()
    providers = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
    devices = [name for name, provider in providers.items() if provider in available]
    kind = device.partition(":")[0]
    if kind != "auto" and kind not in devices:
        raise ValueError(f"device is {device!r}: this onnxruntime has {', '.join(devices)}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors are raised; warnings would go to the terminal
    # By default it pins one thread to each core of the machine, also those of other processes.
    limit = os.environ.get("OMP_NUM_THREADS", "")
    options.intra_op_num_threads = min(cores(), int(limit) if limit.isdecimal() else cores()) or 1
    chosen = [providers[name] for name in (devices if kind == "auto" else [kind])]
    try:
        return onnxruntime.InferenceSession(model, options, providers=chosen)
    except Exception as error:  # pylint: disable=broad-exception-caught
        # onnxruntime's exceptions share no class of their own.
        raise ValueError(f"{title} is damaged or not an ONNX model: {error}") from error


def onnx_bytes(shipped: "Shipped", card: Card) -> bytes:
    """The module as an ONNX file, its card in the metadata."""
    import torch

    from smallvit.formats.shipped import traced

    program: Any = torch.onnx.export(
        traced(shipped),
        dynamo=True,
        external_data=False,
        verbose=False,
        opset_version=_OPSET,
        input_names=["images"],
        output_names=["logits", "probabilities"],
    )
    program.model.metadata_props[KEY] = card.to_json()
    program.model.producer_name, program.model.producer_version = KEY, card.versions[KEY]
    proto = program.model_proto
    _name_sides(proto.graph)
    try:
        data: bytes = proto.SerializeToString()
    except ValueError as error:
        raise ValueError(f"the model is too large for one .onnx file: {error}") from error
    return data


def _name_sides(graph: Any) -> None:
    """Calls the sides of inputs and outputs by name; the exporter numbers them."""
    from smallvit.formats.shipped import SIDES

    (images,) = graph.input
    sides = images.type.tensor_type.shape.dim
    names = {side.dim_param: name for side, name in zip(sides, SIDES, strict=False)}
    for value in (images, *graph.output):
        for side in value.type.tensor_type.shape.dim:
            if side.dim_param in names:
                side.dim_param = names[side.dim_param]
    del graph.value_info[:]  # they use the old names, and runtimes infer them
