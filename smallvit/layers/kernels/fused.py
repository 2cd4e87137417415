"""Fused attention for short sequences, and when it can be used."""

import importlib.util

import torch
from jaxtyping import Float, Int
from torch import Tensor

from smallvit.layers.kernels.operator import attention
from smallvit.layers.kernels.plain import Windows
from smallvit.layers.kernels.talking_operator import talking_attention

#: Tokens that attend to each other, and widths of a head, for which the programs were made: those
#: of 32×32 patches, and class tokens.
LONGEST = 1040
WIDTHS = range(16, 129)
#: Talking heads are held at once: how many, and bytes of a token in all of them.
TALKERS = 8
TALK_BYTES = 1024
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


_known: dict[torch.device, bool] = {}


def runs_on(device: torch.device) -> bool:
    """Whether Triton is there and the GPU has the matrix units its programs need."""
    if device not in _known:
        there = importlib.util.find_spec("triton") is not None and torch.version.hip is None
        _known[device] = there and torch.cuda.get_device_capability(device) >= (8, 0)
    return _known[device]


# The answer cannot change while a program runs, so a tracer may take it as it is. (It would trace
# what functools.cache wraps.) This is all that torch.compiler.assume_constant_result does, but that
# imports the compiler, which takes longer than all of ours.
runs_on._dynamo_marked_constant = True  # type: ignore[attr-defined]


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
    talking: bool = False,
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
    if talking and not (
        num_heads <= TALKERS
        and qkv.shape[2] // 3 * dtype.itemsize <= TALK_BYTES
        and windows is None
    ):
        return False
    return (
        not exporting()
        and dtype in DTYPES
        and qkv.shape[2] // 3 // num_heads in WIDTHS
        and tokens <= LONGEST
        and dropout < 1.0
        and qkv.shape[0] > 0
        and runs_on(qkv.device)
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
    mixing: tuple[Tensor, Tensor] | None = None,
) -> Float[Tensor, "B N ME"]:
    """softmax(scale · q kᵀ + bias) v, read from and written to where the projections are.

    Nothing of size N × N reaches memory. Gradients go to qkv, and to scale, bias and mixing where
    they need one; they are sums in a fixed order.

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
        mixing: Of talking heads: two matrices of heads × heads. Before the mask, and again after
            the softmax, new head g is the sum over heads h of matrix[h, g] · map h. Not with a
            bias or windows.
    """
    tokens = qkv.shape[1]
    if mixing is not None and (bias is not None or windows is not None):
        raise ValueError("talking heads with a bias or windows have no fused kernel: use attend()")
    windows = windows or Windows(1, tokens, 1, tokens)
    kind = qkv.device.type
    if torch.is_autocast_enabled(kind):
        qkv = qkv.to(torch.get_autocast_dtype(kind))
    if qkv.stride(2) != 1:
        qkv = qkv.contiguous()
    temperatures, factor = (scale, 1.0) if isinstance(scale, Tensor) else (None, scale)
    if dropout and seed is None:
        seed = torch.randint(2**62, (1,), device=qkv.device)
    if mixing is not None:
        before, after = (matrix.to(torch.float32) for matrix in mixing)
        if temperatures is not None:  # of the map that is mixed, so of its row
            before = before * temperatures.to(torch.float32).view(-1, 1)
        before = (before * factor).contiguous()
        return talking_attention(
            qkv, before, after.contiguous(), seed if dropout else None, num_heads, masked, dropout
        )[0]
    return attention(
        qkv,
        None if temperatures is None else temperatures.flatten(),
        None if bias is None else bias.contiguous(),
        seed if dropout else None,
        num_heads,
        factor,
        masked,
        dropout,
        list(windows),  # a named tuple in a graph keeps torch from caching it
    )[0]
