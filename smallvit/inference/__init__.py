"""Trained models in use: a run or an exported file, one interface.

Importing this, and predicting with an .onnx file, needs no PyTorch.
"""

from smallvit.inference.predictor import Predictor, Row, predict
from smallvit.inference.rows import COLUMNS, Column, write_rows
from smallvit.runs.card import Card

__all__ = ["COLUMNS", "Card", "Column", "Predictor", "Row", "predict", "write_rows"]
