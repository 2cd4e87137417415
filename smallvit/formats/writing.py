"""`export`: a run as a file for other programs, checked before it is written."""

import io
import logging
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from smallvit.extras import require
from smallvit.files import tensors_to_bytes, write_bytes
from smallvit.formats.checking import Answer, check
from smallvit.formats.shipped import Shipped
from smallvit.formats.timm_folder import write_folder
from smallvit.inference.predictor import EXTRA
from smallvit.runs.card import KEY, Card, accuracy_of
from smallvit.runs.folder import Run

if TYPE_CHECKING:
    from torch.export import ExportedProgram

logger = logging.getLogger(__name__)

Format = Literal["onnx", "pt2", "safetensors", "timm"]

_OPSET = 18
_SIDES = ("batch", "height", "width")


def export(
    run: str | os.PathLike[str] | Run,
    out: str | os.PathLike[str] | None = None,
    *,
    format: Format = "onnx",
    force: bool = False,
) -> Path:
    """Writes a run's model for other programs.

    The graphs of onnx and pt2 take decoded images: bytes, (batch, height, width, 3), a batch of
    any one size. They resize, normalise and calibrate, and return logits and probabilities. Beside
    an .onnx file a script of the same name shows how to use it.

    Args:
        run: The run folder.
        out: The file, or for timm the folder; model.FORMAT or timm in the run folder if left out.
        format: onnx; pt2, for `torch.export.load`; safetensors, the weights alone; or timm, a
            folder for `timm.create_model("local-dir:…", pretrained=True)`.
        force: Whether something that is there already is replaced.

    Returns:
        What was written.

    Raises:
        ValueError: It is no run, the file exists, the model has no such form, or the export
            disagrees with the model.
    """
    if format not in get_args(Format):
        raise ValueError(f"format is {format!r}: allowed are {', '.join(get_args(Format))}")
    run = Run.open(run)
    default = run.folder / ("timm" if format == "timm" else f"model.{format}")
    path = _place(Path(out) if out is not None else default, format, force)
    job = _Job(run, Card.of(run, accuracy_of(run)), run.model(), path)
    _FORMATS[format](job)
    return path


class _Job(NamedTuple):
    run: Run
    card: Card
    model: nn.Module
    path: Path


def _place(path: Path, format: Format, force: bool) -> Path:
    """Where to write, after a look at what is there."""
    suffix = "" if format == "timm" else f".{format}"
    if suffix and path.suffix.lower() != suffix:
        raise ValueError(f"{path} is no name for {format}: it must end with {suffix}")
    taken = [path, path.with_suffix(".py")] if format == "onnx" else [path]
    for each in taken:
        if each.exists() and not force:
            raise ValueError(
                f"{each} exists and is not overwritten: choose another name, or --force"
            )
    if path.exists() and path.is_dir() != (format == "timm"):
        kind = "a folder" if path.is_dir() else "a file"
        raise ValueError(f"{path} is {kind}: choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def traced(shipped: Shipped) -> "ExportedProgram":
    """The module as a graph for batches of any size and images of any shape."""
    # Sizes that the exporter cannot mistake for constants or for each other.
    given = torch.zeros((3, 37, 53, shipped.given), dtype=torch.uint8)
    dynamic = {place: torch.export.Dim(name) for place, name in enumerate(_SIDES)}
    with torch.no_grad():
        return torch.export.export(shipped.eval(), (given,), dynamic_shapes=(dynamic,))


def _write_onnx(job: _Job) -> None:
    runtime = require("onnxruntime", "onnx", "exporting to ONNX")
    for module in ("onnx", "onnxscript"):
        require(module, "onnx", "exporting to ONNX")
    shipped = Shipped(job.model, job.card)
    data = onnx_bytes(shipped, job.card)
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def answer(images: Any) -> Any:
        return session.run(["logits", "probabilities"], {"images": images})

    _checked(answer, shipped, job)
    write_bytes(job.path, data)
    if shipped.given == 3:
        script = files("smallvit.formats").joinpath("standalone.py").read_bytes()
        write_bytes(job.path.with_suffix(".py"), script)


def onnx_bytes(shipped: Shipped, card: Card) -> bytes:
    """The module as an ONNX file, its card in the metadata."""
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
    (given,) = graph.input
    sides = given.type.tensor_type.shape.dim
    names = {side.dim_param: name for side, name in zip(sides, _SIDES, strict=False)}
    for value in (given, *graph.output):
        for side in value.type.tensor_type.shape.dim:
            if side.dim_param in names:
                side.dim_param = names[side.dim_param]
    del graph.value_info[:]  # they speak of the old names, and runtimes infer them


def _write_pt2(job: _Job) -> None:
    shipped = Shipped(job.model, job.card)
    memory = io.BytesIO()
    torch.export.save(traced(shipped), memory, extra_files={EXTRA: job.card.to_json()})
    module = torch.export.load(io.BytesIO(memory.getvalue())).module()

    def answer(images: Any) -> Any:
        with torch.no_grad():
            return [part.numpy() for part in module(torch.from_numpy(images))]

    _checked(answer, shipped, job)
    write_bytes(job.path, memory.getvalue())


def _write_tensors(job: _Job) -> None:
    from safetensors.torch import load

    from smallvit.models.build import make_model

    data = tensors_to_bytes(job.model.state_dict(), {"format": "pt", KEY: job.card.to_json()})
    again = make_model(**job.card.model)
    again.load_state_dict(load(data))
    _checked(_eager(again, job.card), Shipped(job.model, job.card), job)
    write_bytes(job.path, data)


def _write_timm(job: _Job) -> None:
    def check_folder(loaded: nn.Module) -> None:
        _checked(_eager(loaded, job.card), Shipped(job.model, job.card), job)

    write_folder(job.path, job.card, job.model, check_folder)


def _eager(model: nn.Module, card: Card) -> Answer:
    shipped = Shipped(model, card).eval()

    def answer(images: Any) -> Any:
        with torch.no_grad():
            return [part.numpy() for part in shipped(torch.from_numpy(images))]

    return answer


def _checked(answer: Answer, shipped: Shipped, job: _Job) -> None:
    worst = check(answer, shipped.eval(), job.run, str(job.path))
    logger.info("%s agrees with the model to %.1g", job.path, worst)


_FORMATS: dict[Format, Callable[[_Job], None]] = {
    "onnx": _write_onnx,
    "pt2": _write_pt2,
    "safetensors": _write_tensors,
    "timm": _write_timm,
}
