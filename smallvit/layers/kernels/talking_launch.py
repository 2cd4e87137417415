"""How the programs of talking heads are launched.

Imports Triton; nothing outside this folder does so through it before a kernel runs.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from smallvit.layers.kernels.launch import Plan, fused_sums, on_device, power
from smallvit.layers.kernels.plain import precision_of_sums, threshold_of
from smallvit.layers.kernels.talking_backward import talking_backward_keys, talking_backward_queries
from smallvit.layers.kernels.talking_forward import talking_forward
from smallvit.layers.kernels.talking_whole import talking_backward_whole


class TalkingTask(NamedTuple):
    """What is computed, apart from the tensors.

    Attributes:
        num_heads: Number of heads.
        masked: Hides every token from itself.
        dropout: Probability of dropping a weight.
    """

    num_heads: int
    masked: bool
    dropout: float


class TalkingPlans(NamedTuple):
    """Blocks and warps of the programs; most own a block of one kind of tokens.

    Attributes:
        forward: Owns queries.
        queries: Owns queries, backward.
        keys: Owns keys, backward.
        whole: Owns an image, backward, instead of these two; None where a tile is too small.
    """

    forward: Plan
    queries: Plan
    keys: Plan
    whole: Plan | None = None


def talking_plans(n: int, heads: int, width: int, size: int = 2) -> TalkingPlans:
    """Plans for n tokens; `size` counts the bytes of a number.

    Tiles are such that those of all heads fit the memory of a multiprocessor.
    """
    small = heads * power(width) * size <= 512 and heads <= 4
    tile = min(power(n), 64 if small else 32)
    warps = 4 if small else 8
    return TalkingPlans(
        Plan(tile if small else 16, tile, warps),
        Plan(16, tile, warps, 1),
        Plan(tile if small else 16, 16, 8, 1),
        Plan(16, tile, 8, 1) if small and n <= tile else None,
    )


def _common(
    qkv: Tensor,
    before: Tensor,
    after: Tensor,
    seed: Tensor | None,
    task: TalkingTask,
    plan: Plan,
) -> dict[str, Any]:
    """The arguments every program takes by name."""
    n, width = qkv.shape[1], qkv.shape[2] // 3 // task.num_heads
    return {
        "before": before,
        "after": after,
        "seeds": qkv if seed is None else seed,
        "image_stride": qkv.stride(0),
        "token_stride": qkv.stride(1),
        "threshold": threshold_of(task.dropout),
        "upscale": 1.0 / (1.0 - task.dropout),
        "n": n,
        "heads": task.num_heads,
        "width": width,
        "masked": task.masked and n > 1,
        "dropped": task.dropout > 0,
        "block_q": plan.block_q,
        "block_k": plan.block_k,
        "block_e": power(width),
        "enable_fp_fusion": fused_sums(qkv),
        **plan.options,
    }


def launch_talking(
    qkv: Tensor,
    before: Tensor,
    after: Tensor,
    seed: Tensor | None,
    task: TalkingTask,
    plans: TalkingPlans | None = None,
) -> tuple[Tensor, Tensor]:
    """Output, and the logarithms of the sums that the backward programs need.

    Args:
        qkv: As the projection left it; its last axis without gaps.
        before: Mixing of the scores, scale and temperatures in it; float32, without gaps.
        after: Mixing of the weights; likewise.
        seed: Of dropout.
        task: What to compute.
        plans: How; by default from a table.
    """
    images, n, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    plans = plans or talking_plans(n, task.num_heads, inner // task.num_heads, qkv.element_size())
    plan = plans.forward
    out = qkv.new_empty(images, n, inner)
    lse = qkv.new_empty((images, task.num_heads, n), dtype=precision_of_sums(qkv))
    with on_device(qkv):
        talking_forward[(images, triton.cdiv(n, plan.block_q))](
            qkv, out, lse, **_common(qkv, before, after, seed, task, plan)
        )
    return out, lse


def launch_talking_backward(
    grad: Tensor,
    qkv: Tensor,
    lse: Tensor,
    before: Tensor,
    after: Tensor,
    seed: Tensor | None,
    task: TalkingTask,
    plans: TalkingPlans | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradient of qkv, and those of both mixings, (a, 2, heads, heads), in parts to be summed.

    Args:
        grad: Of the output, without gaps.
        qkv: As given to the forward program.
        lse: What it returned beside the output.
        before: As given to the forward program.
        after: As given to the forward program.
        seed: As given to the forward program.
        task: As given to the forward program.
        plans: How to compute; by default from a table.
    """
    images, n, heads = qkv.shape[0], qkv.shape[1], task.num_heads
    width = qkv.shape[2] // 3 // heads
    plans = plans or talking_plans(n, heads, width, qkv.element_size())
    blocks = triton.cdiv(n, plans.queries.block_q)
    dqkv = qkv.new_empty(qkv.shape)
    if plans.whole:
        length = images * triton.cdiv(n, plans.whole.block_q) * plans.whole.block_k
        parts = qkv.new_empty((2, heads, heads, length), dtype=torch.float32)
        with on_device(qkv):
            talking_backward_whole[(images,)](
                qkv, lse, grad, dqkv, parts=parts,
                **_common(qkv, before, after, seed, task, plans.whole),
            )  # fmt: skip
        return dqkv, parts.permute(3, 0, 1, 2)
    deltas = qkv.new_empty(lse.shape, dtype=torch.float32)
    # The parts of a number lie side by side: of few long columns, torch's sum is many times slower.
    parts = qkv.new_empty((2, heads, heads, images * blocks), dtype=torch.float32)
    with on_device(qkv):
        talking_backward_queries[(images, blocks)](
            qkv, lse, deltas, grad, dqkv, parts=parts,
            **_common(qkv, before, after, seed, task, plans.queries),
        )  # fmt: skip
        talking_backward_keys[(images, triton.cdiv(n, plans.keys.block_k))](
            qkv, lse, deltas, grad, dqkv,
            **_common(qkv, before, after, seed, task, plans.keys),
        )  # fmt: skip
    return dqkv, parts.permute(3, 0, 1, 2)
