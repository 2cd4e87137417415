"""`Predictor`: decoded images to probabilities, whatever file the model is in."""

import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, UInt8
from PIL.Image import Image

from smallvit.data.fit import fit_image
from smallvit.data.images import Decoded, to_channels
from smallvit.data.parallel import cores
from smallvit.evaluation.calibration import check_logits, flip_average, softmax
from smallvit.extras import require
from smallvit.runs.card import KEY, Card
from smallvit.sizes import Size

if TYPE_CHECKING:
    from torch import nn

    from smallvit.runs.folder import Run

Ask = Callable[[UInt8[np.ndarray, "B h w C"]], Float32[np.ndarray, "B K"]]
"""From images of the model's size and channels to logits."""

AnyImage = Image | np.ndarray
"""`Decoded`, where many are given whose shapes differ."""

EXTRA = f"{KEY}.json"
"""The card's file inside a .pt2 archive."""


class Predictor:
    """A trained model that takes decoded images. `Predictor.open` makes one.

    Images are fitted one by one with `fit_image`, so they may differ in size, and a run, its
    .onnx and its .pt2 see the same bytes. It may be asked from several threads at once.

    Attributes:
        card: What the model is.
        model: The run's model; None for an exported file.
    """

    def __init__(self, card: Card, ask: Ask, model: "nn.Module | None" = None) -> None:
        self.card, self.model = card, model
        self._ask = ask

    @classmethod
    def open(
        cls, source: "str | os.PathLike[str] | Run | Predictor", device: str = "auto"
    ) -> "Predictor":
        """Loads a run folder, or an .onnx, .pt2 or .safetensors file of `export`.

        Args:
            source: The folder or file; a predictor is returned as it is.
            device: auto, cpu, cuda or mps; auto is a GPU if there is one.

        Raises:
            ValueError: It is none of them, is damaged, was written by a newer version, or there is
                no such device.
            ImportError: It needs a package that is not installed.
        """
        if isinstance(source, Predictor):
            return source
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            kind = path.suffix.lower()
            if path.is_file() and kind in _OPENERS:
                return cls(*_OPENERS[kind](path, device))
            if path.is_file() or (not path.exists() and kind in _OPENERS):
                state = "is none of them" if path.exists() else "is not there"
                raise ValueError(
                    f"{path} {state}: expected a run folder, or an .onnx, .pt2 or .safetensors "
                    "file of `smallvit export`"
                )
        return cls(*_run(source, device))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the probabilities."""
        return self.card.classes

    @property
    def image_size(self) -> Size:
        """Height and width of the images the model sees."""
        return self.card.image_size

    @property
    def channels(self) -> int:
        """Of the images the model sees."""
        return self.card.channels

    def prepare(self, image: Decoded) -> UInt8[np.ndarray, "h w c"]:
        """A decoded image as the model sees it.

        Raises:
            UnreadableError: It has channels that the model cannot take.
        """
        return fit_image(to_channels(image, self.channels), self.image_size, self.card.fit)

    def logits(
        self, images: Sequence[AnyImage], *, flip: bool = False
    ) -> Float32[np.ndarray, "N K"]:
        """What the model says of decoded images of any sizes.

        Args:
            images: Pillow's images or arrays of bytes, channels last.
            flip: Asks for the mirror image of each too. The result is then the logarithm of the
                mean of both probabilities, as in `evaluate`.

        Raises:
            ValueError: An image has channels that the model cannot take, or the model gives what
                is not finite.
        """
        if not len(images):
            return np.empty((0, len(self.classes)), np.float32)
        pixels = np.stack([self.prepare(image) for image in images])
        return self.ask(pixels, flip=flip)

    def predict(
        self, images: Sequence[AnyImage], *, flip: bool = False
    ) -> Float32[np.ndarray, "N K"]:
        """Calibrated probabilities of decoded images of any sizes; see `logits`."""
        return self.probabilities(self.logits(images, flip=flip))

    def probabilities(self, logits: Float32[np.ndarray, "N K"]) -> Float32[np.ndarray, "N K"]:
        """Calibrated probabilities of logits."""
        return softmax(logits, self.card.temperature).astype(np.float32)

    def ask(
        self, pixels: UInt8[np.ndarray, "N h w C"], *, flip: bool = False
    ) -> Float32[np.ndarray, "N K"]:
        """`logits` of images that went through `prepare` already."""
        if flip:
            return flip_average(self.ask, pixels, axis=2)
        logits = self._ask(np.ascontiguousarray(pixels))
        check_logits(logits)
        return logits


def _run(source: "str | os.PathLike[str] | Run", device: str) -> tuple[Card, Ask, "nn.Module"]:
    from smallvit.runs.folder import Run

    run = Run.open(source)
    return _eager(Card.of(run), run.model(), device)


def _tensors(path: Path, device: str) -> tuple[Card, Ask, "nn.Module"]:
    from smallvit.files import read_tensors
    from smallvit.models.build import make_model

    card, tensors = read_card(path), read_tensors(path)
    model = make_model(**card.model)
    model.load_state_dict(tensors)
    return _eager(card, model.eval(), device)


def _eager(card: Card, model: "nn.Module", device: str) -> tuple[Card, Ask, "nn.Module"]:
    from smallvit.devices import choose_device
    from smallvit.evaluation import logits_of

    place = choose_device(device)
    model.to(place)

    def ask(pixels: UInt8[np.ndarray, "B h w C"]) -> Float32[np.ndarray, "B K"]:
        planes = np.moveaxis(pixels, 3, 1)
        return logits_of(
            model, planes, mean=card.mean, std=card.std, device=place, batch_size=len(pixels)
        )

    return card, ask, model


def _coloured(pixels: UInt8[np.ndarray, "B h w C"]) -> UInt8[np.ndarray, "B h w c"]:
    """Exported graphs take colour; equal red, green and blue are exactly that grey there."""
    return np.repeat(pixels, 3, axis=3) if pixels.shape[3] == 1 else pixels


def _session(path: Path, device: str) -> Any:
    """A session of onnxruntime on as many threads as this process may use."""
    onnxruntime = require("onnxruntime", "onnx", "reading an .onnx file")
    there = onnxruntime.get_available_providers()
    wanted = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
    known = [name for name, provider in wanted.items() if provider in there]
    kind = device.partition(":")[0]
    if kind != "auto" and kind not in known:
        raise ValueError(f"device is {device!r}: this onnxruntime has {', '.join(known)}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors are raised; warnings would go to the terminal
    # Left alone it would pin a thread to each core of the machine, its neighbours' included.
    asked = os.environ.get("OMP_NUM_THREADS", "")
    options.intra_op_num_threads = min(cores(), int(asked) if asked.isdecimal() else cores()) or 1
    providers = [wanted[name] for name in (known if kind == "auto" else [kind])]
    try:
        return onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:  # pylint: disable=broad-exception-caught
        # onnxruntime's exceptions share no class of their own.
        raise ValueError(f"{path} is damaged or no ONNX model: {error}") from error


def _onnx(path: Path, device: str) -> tuple[Card, Ask]:
    session = _session(path, device)
    card = Card.from_json(session.get_modelmeta().custom_metadata_map.get(KEY), str(path))

    def ask(pixels: UInt8[np.ndarray, "B h w C"]) -> Float32[np.ndarray, "B K"]:
        given = {"images": np.ascontiguousarray(_coloured(pixels))}
        logits: Float32[np.ndarray, "B K"] = session.run(["logits"], given)[0]
        return logits

    return card, ask


def read_card(path: Path) -> Card:
    """The card of an exported file, without its weights where that is possible.

    Raises:
        ValueError: It has none, or is damaged.
        ImportError: It needs a package that is not installed.
    """
    text = None
    kind = path.suffix.lower()
    if kind == ".onnx":
        text = _session(path, "cpu").get_modelmeta().custom_metadata_map.get(KEY)
    elif kind == ".pt2":
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.endswith(f"/{EXTRA}")]
                text = archive.read(names[0]).decode() if names else None
        except (zipfile.BadZipFile, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is damaged or no .pt2 file: {error}") from error
    elif kind == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "np") as tensors:
                text = (tensors.metadata() or {}).get(KEY)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error
    return Card.from_json(text, str(path))


def _pt2(path: Path, device: str) -> tuple[Card, Ask]:
    import torch

    from smallvit.devices import choose_device

    card = read_card(path)
    written, here = card.versions.get("torch", "0"), torch.__version__
    if _release(written) > _release(here):
        raise ValueError(
            f"{path} was exported with torch {written} and this is torch {here}: a .pt2 file is "
            "read by the same or a newer version; upgrade torch, or export the run again with "
            "this one"
        )
    place = choose_device(device)
    try:
        program = torch.export.load(path)
    except Exception as error:  # pylint: disable=broad-exception-caught
        # Whatever a damaged archive meets first is raised: zip, JSON, schema…
        raise ValueError(f"{path} is damaged or no .pt2 file: {error}") from error
    if place.type != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, place)
    module = program.module()

    def ask(pixels: UInt8[np.ndarray, "B h w C"]) -> Float32[np.ndarray, "B K"]:
        given = torch.from_numpy(np.array(_coloured(pixels))).to(place)
        with torch.no_grad():
            logits: Float32[np.ndarray, "B K"] = module(given)[0].cpu().numpy()
        return logits

    return card, ask


def _release(version: str) -> tuple[int, ...]:
    """Major and minor number."""
    return tuple(int(part) for part in version.split(".")[:2])


_OPENERS: dict[str, Callable[[Path, str], tuple[Any, ...]]] = {
    ".onnx": _onnx,
    ".pt2": _pt2,
    ".safetensors": _tensors,
}
