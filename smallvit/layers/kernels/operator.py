"""Fused attention as an operator of torch, with its gradients and what a tracer needs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smallvit.layers.kernels.plain import Windows, precision_of_sums


def _launch() -> Any:
    """The launching module; importing it imports Triton."""
    from smallvit.layers.kernels import launch

    return launch


@torch.library.custom_op("smallvit::attention", mutates_args=())
def attention(
    qkv: Tensor,
    temperatures: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    num_heads: int,
    scale: float,
    masked: bool,
    dropout: float,
    windows: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Attention of packed queries, keys and values; `fused_attention` is its friendly face."""
    launch = _launch()
    task = launch.Task(num_heads, scale, masked, dropout, Windows(*windows))
    return launch.launch_forward(qkv, temperatures, bias, seed, task)


@attention.register_fake
def _(
    qkv: Tensor,
    temperatures: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    num_heads: int,
    scale: float,
    masked: bool,
    dropout: float,
    windows: Sequence[int],
) -> tuple[Tensor, Tensor]:
    layout = Windows(*windows)
    out = qkv.new_empty(qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3)
    sums = (qkv.shape[0] * layout.number, num_heads, layout.tokens)
    return out, qkv.new_empty(sums, dtype=precision_of_sums(qkv))


@torch.library.custom_op("smallvit::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    temperatures: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    num_heads: int,
    scale: float,
    masked: bool,
    dropout: float,
    windows: Sequence[int],
    sloped: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of qkv, temperatures and bias; the last two are empty where not needed."""
    launch = _launch()
    task = launch.Task(num_heads, scale, masked, dropout, Windows(*windows))
    dqkv, warm, slope = launch.launch_backward(
        grad.contiguous(), qkv, out, lse, temperatures, bias, seed, task, sloped=sloped
    )
    warm = warm.new_empty(0) if temperatures is None else warm.sum(0)
    return dqkv, warm, slope.sum(0) if sloped else slope.new_empty(0)


@attention_backward.register_fake
def _(
    grad: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    temperatures: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    num_heads: int,
    scale: float,
    masked: bool,
    dropout: float,
    windows: Sequence[int],
    sloped: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    n = Windows(*windows).tokens
    return (
        qkv.new_empty(qkv.shape),
        qkv.new_empty(0 if temperatures is None else num_heads, dtype=torch.float32),
        qkv.new_empty((num_heads, n, n) if sloped else (0,), dtype=torch.float32),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, temperatures, bias, seed, *task = inputs
    ctx.set_materialize_grads(False)
    ctx.task = task
    ctx.save_for_backward(qkv, temperatures, bias, seed, *output)


def _pull(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    none = (None,) * (4 + len(ctx.task))
    if grad is None:
        return none
    qkv, temperatures, bias, seed, out, lse = ctx.saved_tensors
    sloped = bias is not None and ctx.needs_input_grad[2]
    dqkv, warm, slope = attention_backward(
        grad, qkv, out, lse, temperatures, bias, seed, *ctx.task, sloped
    )
    return (
        dqkv,
        None if temperatures is None else warm.to(temperatures.dtype),
        slope.to(bias.dtype) if sloped else None,
        *none[3:],
    )


attention.register_autograd(_pull, setup_context=_keep)
