"""Attention with talking heads as an operator of torch; see `operator`."""

from typing import Any

import torch
from torch import Tensor

from smallvit.layers.kernels.plain import precision_of_sums


def _launch() -> Any:
    """The launching module; importing it imports Triton."""
    from smallvit.layers.kernels import talking_launch

    return talking_launch


@torch.library.custom_op("smallvit::talking_attention", mutates_args=())
def talking_attention(
    qkv: Tensor,
    before: Tensor,
    after: Tensor,
    seed: Tensor | None,
    num_heads: int,
    masked: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Attention of packed queries, keys and values; `before` holds the temperatures too."""
    launch = _launch()
    task = launch.TalkingTask(num_heads, masked, dropout)
    out: tuple[Tensor, Tensor] = launch.launch_talking(qkv, before, after, seed, task)
    return out


@talking_attention.register_fake
def _(
    qkv: Tensor,
    before: Tensor,
    after: Tensor,
    seed: Tensor | None,
    num_heads: int,
    masked: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    images, tokens, packed = qkv.shape
    sums = qkv.new_empty((images, num_heads, tokens), dtype=precision_of_sums(qkv))
    return qkv.new_empty(images, tokens, packed // 3), sums


@torch.library.custom_op("smallvit::talking_attention_backward", mutates_args=())
def talking_backward(
    grad: Tensor,
    qkv: Tensor,
    lse: Tensor,
    before: Tensor,
    after: Tensor,
    seed: Tensor | None,
    num_heads: int,
    masked: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Gradients of qkv, and of both mixings, (2, heads, heads)."""
    launch = _launch()
    task = launch.TalkingTask(num_heads, masked, dropout)
    dqkv, parts = launch.launch_talking_backward(
        grad.contiguous(), qkv, lse, before, after, seed, task
    )
    return dqkv, parts.sum(0)


@talking_backward.register_fake
def _(
    grad: Tensor,
    qkv: Tensor,
    lse: Tensor,
    before: Tensor,
    after: Tensor,
    seed: Tensor | None,
    num_heads: int,
    masked: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    mixings = qkv.new_empty((2, num_heads, num_heads), dtype=torch.float32)
    return qkv.new_empty(qkv.shape), mixings


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, before, after, seed, *task = inputs
    ctx.set_materialize_grads(False)
    ctx.task = task
    ctx.save_for_backward(qkv, before, after, seed, output[1])


def _pull(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    none = (None,) * (4 + len(ctx.task))
    if grad is None:
        return none
    qkv, before, after, seed, lse = ctx.saved_tensors
    dqkv, mixings = talking_backward(grad, qkv, lse, before, after, seed, *ctx.task)
    return dqkv, mixings[0], mixings[1], *none[3:]


talking_attention.register_autograd(_pull, setup_context=_keep)
