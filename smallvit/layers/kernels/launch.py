"""How the programs of fused attention are launched: block sizes, warps, and memory for sums.

Imports Triton; nothing outside this folder does so through it before a kernel runs.
"""

import contextlib
import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from smallvit.layers.kernels.backward import backward
from smallvit.layers.kernels.backward_tiled import backward_tiled
from smallvit.layers.kernels.forward import forward
from smallvit.layers.kernels.plain import Windows, precision_of_sums, threshold_of

#: Programs a backward launch that sums over the batch is cut into; enough to fill a large GPU.
_PROGRAMS = 4096


class Task(NamedTuple):
    """What is computed, apart from the tensors.

    Attributes:
        num_heads: Number of heads.
        scale: Multiplies the scores.
        masked: Hides every token from itself.
        dropout: Probability of dropping a weight.
        windows: What attends to what.
    """

    num_heads: int
    scale: float
    masked: bool
    dropout: float
    windows: Windows

    @property
    def diagonal(self) -> bool:
        """Whether a diagonal is hidden; a single token keeps its own."""
        return self.masked and self.windows.tokens > 1


class Plan(NamedTuple):
    """How it is computed.

    Attributes:
        block_q: Queries of a block.
        block_k: Keys of a tile.
        warps: Of a program.
        stages: Of the loop's pipeline.
        registers: Of a thread, at most; 0 leaves it to the compiler.
        whole: One program takes all queries of a head. Backward it then holds all keys too,
            in one tile and a tail; otherwise blocks of queries are as large as those of keys.
    """

    block_q: int
    block_k: int
    warps: int
    stages: int = 2
    registers: int = 0
    whole: bool = True

    @property
    def options(self) -> dict[str, int]:
        """As Triton takes them at a launch."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return options | ({"maxnreg": self.registers} if self.registers else {})


def power(x: int) -> int:
    """The next power of 2, and no less than the 16 a matrix instruction takes."""
    return max(16, triton.next_power_of_2(x))


def tail_of(n: int, block: int) -> int:
    """Size of the tile for the tokens that fill no whole one."""
    return power(n % block) if n % block else 0


def tile_of(n: int) -> int:
    """The largest power of 2 up to n, or 16."""
    return power(n // 2 + 1)


def forward_plan(n: int, width: int, size: int = 2) -> Plan:
    """Blocks and warps of the forward program.

    Args:
        n: Tokens of a group.
        width: Of a head.
        size: Bytes of a number.
    """
    if size > 2:
        if n <= 96:
            return Plan(16, tile_of(n), 1 if width <= 32 else 4)
        return Plan(32, 32, 4 if width <= 64 else 8, 1, whole=False)
    if 48 < n <= 96 and 32 < width <= 64:
        return Plan(64, tile_of(n), 4)
    if n <= 144:
        return Plan(16, tile_of(n), 1 if width <= 64 and n <= 96 else 4)
    return Plan(64, 64, 4, whole=False)


def backward_plan(n: int, width: int, size: int = 2) -> Plan:
    """Blocks and warps of the backward program; see `forward_plan`."""
    if n <= 32:
        return Plan(power(n), tile_of(n), 1 if width <= 32 else 2 if size == 2 else 4)
    if size > 2 and n <= 96 and width <= 64:
        return Plan(16, tile_of(n), 4 if width <= 32 else 8, 1)
    if size > 2 or width > 64:
        return Plan(32, 32, 4 if width <= 64 else 8, 1, whole=False)
    if n <= 144:
        return Plan(16, tile_of(n), 4 if n > 96 else 1 if width <= 16 else 2)
    return Plan(32, 256, 8) if n == 256 else Plan(64, 64, 4, whole=False)


def _common(qkv: Tensor, temperatures: Tensor | None, bias: Tensor | None, task: Task) -> Any:
    """The arguments every program takes by name."""
    n, width = task.windows.tokens, qkv.shape[2] // 3 // task.num_heads
    return {
        "temperatures": qkv if temperatures is None else temperatures,
        "bias": qkv if bias is None else bias,
        "image_stride": qkv.stride(0),
        "token_stride": qkv.stride(1),
        "scale": task.scale,
        "threshold": threshold_of(task.dropout),
        "upscale": 1.0 / (1.0 - task.dropout),
        "n": n,
        "heads": task.num_heads,
        "width": width,
        "layout": tuple(task.windows),
        "masked": task.diagonal,
        "tempered": temperatures is not None,
        "biased": bias is not None,
        "dropped": task.dropout > 0,
        "block_e": power(width),
        "enable_fp_fusion": fused_sums(qkv),
    }


def fused_sums(x: Tensor) -> bool:
    """Whether products may go unrounded into a sum: not where they would differ backward."""
    return x.dtype != torch.float32


def on_device(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def launch_forward(
    qkv: Tensor,
    temperatures: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    task: Task,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:
    """Output, and the logarithms of the sums that the backward program needs.

    Args:
        qkv: As the projection left it; its last axis without gaps.
        temperatures: One per head.
        bias: (heads, n, n), without gaps.
        seed: Of dropout.
        task: What to compute.
        plan: How; by default from a table.
    """
    n, width = task.windows.tokens, qkv.shape[2] // 3 // task.num_heads
    plan = plan or forward_plan(n, width, qkv.element_size())
    groups = qkv.shape[0] * task.windows.number
    out = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)
    lse = qkv.new_empty((groups, task.num_heads, n), dtype=precision_of_sums(qkv))
    rows = triton.cdiv(n, plan.block_q) * plan.block_q if plan.whole else plan.block_q
    with on_device(qkv):
        forward[(groups * task.num_heads, triton.cdiv(n, rows))](
            qkv,
            out,
            lse,
            seeds=qkv if seed is None else seed,
            rows=rows,
            block_q=plan.block_q,
            block_k=plan.block_k,
            tail=tail_of(n, plan.block_k),
            **plan.options,
            **_common(qkv, temperatures, bias, task),
        )
    return out, lse


def launch_backward(
    grad: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    temperatures: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    task: Task,
    *,
    sloped: bool,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of qkv, and those of temperatures and bias in parts to be summed.

    Args:
        grad: Of the output, without gaps.
        qkv: As given to the forward program.
        out: What it returned.
        lse: What it returned beside.
        temperatures: As given to the forward program.
        bias: As given to the forward program.
        seed: As given to the forward program.
        task: As given to the forward program.
        sloped: The bias needs its gradient.
        plan: How to compute; by default from a table.

    Returns:
        The gradient of qkv; parts (a, heads) of the temperatures'; parts (a, heads, n, n) of the
        bias's. Parts that are not needed have a = 0.
    """
    n, width, heads = task.windows.tokens, qkv.shape[2] // 3 // task.num_heads, task.num_heads
    plan = plan or backward_plan(n, width, qkv.element_size())
    if plan.whole and n >= 2 * plan.block_k:
        raise ValueError(f"{n} tokens are more than one tile of {plan.block_k} and a tail")
    groups = qkv.shape[0] * task.windows.number
    tail = tail_of(n, plan.block_k)
    tiles = 1 if plan.whole else n // plan.block_k + (tail > 0)
    repeat = 1
    if sloped:
        # A power of 2, so that batches of other sizes seldom compile programs of their own.
        repeat = triton.next_power_of_2(triton.cdiv(groups * heads * tiles, _PROGRAMS))
        repeat = math.gcd(groups, repeat)
    turns = groups // repeat
    dqkv = qkv.new_empty(qkv.shape)
    # A head's parts lie side by side: of few long columns, torch's sum is many times slower.
    shape = (heads, 0 if temperatures is None else turns, tiles)
    warm = qkv.new_empty(shape, dtype=torch.float32)
    parts = qkv.new_empty((turns if sloped else 0, heads, n, n), dtype=torch.float32)
    blocks = {"block_q": plan.block_q, "block_k": plan.block_k}
    program: Any = backward if plan.whole else backward_tiled
    with on_device(qkv):
        program[(turns * heads, tiles)](
            qkv,
            *(() if plan.whole else (out,)),
            lse,
            grad,
            dqkv,
            seeds=qkv if seed is None else seed,
            temperature_parts=warm,
            bias_parts=parts,
            sloped=sloped,
            repeat=repeat,
            tail=tail,
            **plan.options,
            **(blocks if plan.whole else {"block": plan.block_k}),
            **_common(qkv, temperatures, bias, task),
        )
    return dqkv, warm.flatten(1).t(), parts
