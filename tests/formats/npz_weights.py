"""A made-up export format: weights and their card as NumPy arrays."""

import io

import numpy as np
import torch

from smallvit.files import write_bytes
from smallvit.formats.loaded import eager
from smallvit.formats.shipped import Shipped, outputs_of
from smallvit.models.build import make_model
from smallvit.runs import Card


def write(path, card, model, check):
    file = io.BytesIO()
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    np.savez(file, smallvit=card.to_json(), **tensors)
    file.seek(0)
    check(outputs_of(Shipped(_model(np.load(file), card), card).eval()))
    write_bytes(path, file.getvalue())


def load(path, device):
    card = read_card(path)
    return eager(card, _model(np.load(path), card), device)


def read_card(path):
    return Card.from_json(str(np.load(path)["smallvit"]), str(path))


def _model(arrays, card):
    model = make_model(**card.model)
    names = set(arrays) - {"smallvit"}
    model.load_state_dict({name: torch.from_numpy(arrays[name]) for name in names})
    return model.eval()
