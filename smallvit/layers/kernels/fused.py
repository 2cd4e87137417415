"""Fused attention for short sequences, and when it can be used."""

import importlib.util

import torch
from jaxtyping import Float, Int
from torch import Tensor

from smallvit.layers.kernels.operator import attention
from smallvit.layers.kernels.plain import Windows

#: Tokens that attend to each other, and widths of a head, for which the programs were made.
LONGEST = 1024
WIDTHS = range(16, 129)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


_known: dict[torch.device, bool] = {}


# The answer cannot change while a program runs, so a tracer may take it as it is. (It would trace
# what functools.cache wraps.)
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _runs_on(device: torch.device) -> bool:
    """Whether Triton is there and the GPU has the matrix units its programs need."""
    if device not in _known:
        there = importlib.util.find_spec("triton") is not None and torch.version.hip is None
        _known[device] = there and torch.cuda.get_device_capability(device) >= (8, 0)
    return _known[device]


def exporting() -> bool:
    """Whether a graph is being exported.

    In torch 2.11 `torch.compiler.is_exporting` says so of every compiled program as well; the flag
    behind it is right.
    """
    flag: bool = torch.compiler._is_exporting_flag
    return flag


def fusible(
    qkv: Float[Tensor, "B N MEs"],
    num_heads: int,
    *,
    windows: Windows | None = None,
    dropout: float = 0.0,
) -> bool:
    """Whether `fused_attention` can take these arguments here.

    Not on CPUs and older GPUs, not in a graph that is exported, not in float64, and not for
    lengths and widths the programs were not made for. The caller keeps a plain path for these,
    and for when the weights are asked for.
    """
    if not qkv.is_cuda:  # autocast does not know every device
        return False
    dtype = qkv.dtype
    if torch.is_autocast_enabled(qkv.device.type):
        dtype = torch.get_autocast_dtype(qkv.device.type)
    tokens = qkv.shape[1] if windows is None else windows.tokens
    return (
        not exporting()
        and dtype in _DTYPES
        and qkv.shape[2] // 3 // num_heads in WIDTHS
        and tokens <= LONGEST
        and dropout < 1.0
        and qkv.shape[0] > 0
        and _runs_on(qkv.device)
    )


def fused_attention(
    qkv: Float[Tensor, "B N MEs"],
    num_heads: int,
    *,
    scale: Tensor | float,
    masked: bool = False,
    bias: Float[Tensor, "M n n"] | None = None,
    windows: Windows | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "B N ME"]:
    """softmax(scale · q kᵀ + bias) v, read from and written to where the projections are.

    Nothing of size N × N reaches memory. Gradients go to qkv, and to scale and bias where they
    need one; they are sums in a fixed order.

    Args:
        qkv: Queries, keys and values of all heads beside each other, as one projection makes
            them.
        num_heads: Number of heads.
        scale: A number, or one per head.
        masked: Hides every token from itself; a single token keeps itself.
        bias: Added to the scores of every group of tokens.
        windows: Tokens attend inside windows of the image. Those that only a roll brought
            together get −100 between them.
        dropout: Probability of dropping a weight.
        seed: Of dropout; drawn from torch's generator when not given.
    """
    tokens = qkv.shape[1]
    windows = windows or Windows(1, tokens, 1, tokens)
    kind = qkv.device.type
    if torch.is_autocast_enabled(kind):
        qkv = qkv.to(torch.get_autocast_dtype(kind))
    if qkv.stride(2) != 1:
        qkv = qkv.contiguous()
    temperatures, factor = (scale, 1.0) if isinstance(scale, Tensor) else (None, scale)
    if dropout and seed is None:
        seed = torch.randint(2**62, (1,), device=qkv.device)
    return attention(
        qkv,
        None if temperatures is None else temperatures.flatten(),
        None if bias is None else bias.contiguous(),
        seed if dropout else None,
        num_heads,
        factor,
        masked,
        dropout,
        windows,
    )[0]
