"""ReLU and max-pool of a feature map in one pass, as an operator of torch, and its plain twin."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from smallvit.layers.kernels.fused import DTYPES, exporting, runs_on


def _launch() -> Any:
    """The launching module; importing it imports Triton."""
    from smallvit.layers.kernels import pool_programs

    return pool_programs


def pooled(side: int) -> int:
    """Rows or columns after the pool."""
    return (side - 1) // 2 + 1


@torch.library.custom_op("smallvit::relu_pool", mutates_args=())
def relu_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """relu(max_pool(x)), channels last, and where each number came from."""
    out: tuple[Tensor, Tensor] = _launch().launch_pool(x)
    return out


@relu_pool.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    out = x.new_empty((x.shape[0], pooled(x.shape[2]), pooled(x.shape[3]), x.shape[1]))
    return out, torch.empty_like(out, dtype=torch.uint8)


@torch.library.custom_op("smallvit::relu_pool_backward", mutates_args=())
def relu_pool_backward(grad: Tensor, codes: Tensor, height: int, width: int) -> Tensor:
    """The gradient of the map, channels last."""
    dx: Tensor = _launch().launch_pool_backward(grad.contiguous(), codes, height, width)
    return dx


@relu_pool_backward.register_fake
def _(grad: Tensor, codes: Tensor, height: int, width: int) -> Tensor:
    return grad.new_empty((codes.shape[0], height, width, codes.shape[3]))


def _keep(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.size = inputs[0].shape[2:]
    ctx.save_for_backward(output[1])


def _pull(ctx: Any, grad: Tensor | None, _: Tensor | None) -> Tensor | None:
    if grad is None:
        return None
    (codes,) = ctx.saved_tensors
    return relu_pool_backward(grad, codes, *ctx.size).permute(0, 3, 1, 2)


relu_pool.register_autograd(_pull, setup_context=_keep)


def poolable(x: Tensor) -> bool:
    """Whether `fused_pool` can take this map here: on GPUs from Ampere on, not in an export."""
    here = x.is_cuda and not exporting() and x.dtype in DTYPES and x.numel() > 0
    return here and runs_on(x.device)


def fused_pool(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C h w"]:
    """relu(max_pool(x)) with windows of 3×3, stride 2, padding 1; channels last in memory.

    The backward pass needs one byte for each pooled number, and the map not at all.
    """
    out: Tensor = relu_pool(x)[0]
    return out.permute(0, 3, 1, 2)


def plain_pool(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C h w"]:
    """The same in plain PyTorch."""
    return F.relu(F.max_pool2d(x, 3, 2, 1))  # the same in either order, and a quarter of the work
