"""safetensors: the weights, their card in the metadata."""

from pathlib import Path

from torch import nn

from smallvit.files import read_tensors, tensors_to_bytes, write_bytes
from smallvit.formats.loaded import Loaded, eager
from smallvit.formats.shipped import Check, Shipped, outputs_of
from smallvit.models.build import make_model
from smallvit.runs.card import KEY, Card


def write(path: Path, card: Card, model: nn.Module, check: Check) -> None:
    """Writes the weights."""
    from safetensors.torch import load as tensors_of

    data = tensors_to_bytes(model.state_dict(), {"format": "pt", KEY: card.to_json()})
    again = make_model(**card.model)
    again.load_state_dict(tensors_of(data))
    check(outputs_of(Shipped(again, card).eval()))
    write_bytes(path, data)


def load(path: Path, device: str) -> Loaded:
    """Builds the model that the card describes and gives it the weights."""
    card, tensors = read_card(path), read_tensors(path)
    try:
        model = make_model(**card.model)
        model.load_state_dict(tensors)
    except (TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{path} is damaged: its weights and the model that it describes do not fit: {reason}"
        ) from error
    return eager(card, model.eval(), device)


def read_card(path: Path) -> Card:
    """The card in the metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as tensors:
            text = (tensors.metadata() or {}).get(KEY)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error
    return Card.from_json(text, str(path))
