"""The shape checker of these tests finds wrong shapes, and only those."""

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from torch import Tensor

from tests.shapes import check


@jaxtyped(typechecker=check)
def add(a: Float[Tensor, " N"], b: Float[Tensor, " N"] | None, word: int) -> Float[Tensor, " N"]:
    return a if b is None else torch.cat([a, b]) if word == 1 else a + b


def test_checker():
    three, four = torch.zeros(3), torch.zeros(4)
    add(three, three, "not an int")
    add(three, None, 0)
    with pytest.raises(TypeCheckError):
        add(three, four, 0)
    with pytest.raises(TypeCheckError):
        add(three, three, 1)
