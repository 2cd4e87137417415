"""What a block keeps for its backward pass, and what it computes again.

Of a transformer block's activations, those that a matrix made wider (queries, keys and values side
by side, the hidden layer of the MLP) take most of the memory and are the cheapest to compute again:
one product each, from an input that is kept anyway. Attention is never computed again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

Recompute = Literal["nothing", "wide", "everything"]
_KEPT = ("attention", "bmm", "softmax", "batch_norm")  # attention in one kernel or in three
_MATRIX = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1}


def _keeps(_: Any, op: Any, *args: Any, **__: Any) -> CheckpointPolicy:
    """Keeps attention, products no wider than what came in, and batch norms, which count passes."""
    kept = any(part in str(op) for part in _KEPT)
    if op in _MATRIX:
        x, matrix = args[_MATRIX[op] :][:2]
        kept = matrix.shape[-1] <= x.shape[-1]
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _keeps_on_gpu(context: Any, op: Any, *args: Any, **named: Any) -> CheckpointPolicy:
    """Also keeps what was drawn: a captured graph cannot wind the generator back."""
    if torch.Tag.nondeterministic_seeded in getattr(op, "tags", ()):
        return CheckpointPolicy.MUST_SAVE
    return _keeps(context, op, *args, **named)


def recomputed(what: Recompute, function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """Calls a function of tensors, and has its backward pass compute `what` again."""
    if what == "nothing":
        return function(*args)
    result: Tensor
    if what == "everything":
        result = checkpoint(function, *args, use_reentrant=False)
        return result
    on_gpu = args[0].is_cuda
    policy = _keeps_on_gpu if on_gpu else _keeps
    contexts = partial(create_selective_checkpoint_contexts, policy)
    result = checkpoint(
        function,
        *args,
        use_reentrant=False,
        context_fn=contexts,
        preserve_rng_state=not on_gpu,
    )
    return result
