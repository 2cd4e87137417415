"""Fused attention beside torch's, forward and backward, at the shapes of the models.

    python -m benchmarks.attention [--shapes vit_9,swin_1] [--batches 128,1024] [--json out.json]
    python -m benchmarks.attention --sweep [--shapes …]

For each shape, milliseconds of one layer's attention, forward and backward, in bf16, from the
packed projection to where the next layer reads:

- today: scaled_dot_product_attention as the layers called it: queries times a scale per head, a
  mask for the diagonal, windows cut and rolled by copies, talking heads unfused;
- unmasked: scaled_dot_product_attention with neither mask, bias, learned scale nor talking heads;
- ours: the fused operator;
- floor: the bytes that must be moved (q, k, v, out; then those again with their gradients), at
  the speed of a copy measured beside.

The first two are compiled by Inductor. All run as captured graphs; times are medians of repeats
with CUDA events. Then the errors against float64 beside those of today's path. Every shape is
prepared in a process of its own, all at once, and measured while the others wait. --sweep times
block sizes, warps and stages of the programs instead.
"""

import argparse
import functools
import json
import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from benchmarks.gpu import bandwidth, capture, milliseconds, run_all
from benchmarks.machine import machine
from smallvit.layers.kernels import Windows, fused_attention, fusible

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Shape:
    """One layer's attention.

    Attributes:
        layers: How many of them the model has.
        tokens: Of an image.
        heads: Number of heads.
        width: Of a head.
        local: Has LSA's mask and temperatures.
        windows: Swin's.
        dropout: On the weights.
        talking: Mixes heads around the softmax.
    """

    layers: int
    tokens: int
    heads: int
    width: int
    local: bool = True
    windows: Windows | None = None
    dropout: float = 0.0
    talking: bool = False


SHAPES = {
    "vit_9": Shape(9, 65, 12, 16),
    "swin_1": Shape(2, 256, 3, 32, windows=Windows(16, 16, 4, 4, 2, 2)),
    "swin_2": Shape(6, 64, 6, 32, windows=Windows(8, 8, 4, 4, 2, 2)),
    "swin_3": Shape(4, 16, 12, 32, windows=Windows(4, 4, 4, 4)),
    "pit_1": Shape(2, 257, 2, 48),
    "pit_2": Shape(6, 65, 4, 48),
    "pit_3": Shape(4, 17, 8, 48),
    "t2t_1": Shape(1, 256, 1, 64),
    "t2t_2": Shape(12, 65, 4, 64),
    "cct_7": Shape(7, 256, 4, 64, local=False, dropout=0.1),
    "cait_24": Shape(24, 64, 4, 64, talking=True),
}


def split(qkv, heads):
    return qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def today(shape, qkv, scale, bias, before, after, mask):
    """The layers' code before the fused operator."""
    w, heads = shape.windows, shape.heads
    if w is None:
        q, k, v = split(qkv, heads)
    else:
        x = qkv.unflatten(1, (w.rows, w.columns)).roll((-w.up, -w.left), (1, 2))
        x = x.view(
            -1, w.rows // w.height, w.height, w.columns // w.width, w.width, 3, heads, shape.width
        )
        q, k, v = x.permute(5, 0, 1, 3, 6, 2, 4, 7).flatten(5, 6).flatten(2, 4).unbind(0)
        scale = scale.repeat(w.number)
        bias = bias.repeat(w.number, 1, 1) if mask is None else (bias + mask[:, None]).flatten(0, 1)
    if scale is not None:
        q = (q * scale.view(-1, 1, 1)).to(q.dtype)
    factor = 1.0 if scale is not None else shape.width**-0.5
    hidden = torch.eye(q.shape[-2], dtype=torch.bool, device=q.device) if shape.local else None
    if shape.talking:
        scores = torch.einsum("bhij,hg->bgij", q @ k.transpose(-2, -1), before.to(q.dtype))
        wide = torch.promote_types(q.dtype, torch.float32)
        weight = scores.masked_fill(hidden, -math.inf).softmax(-1, dtype=wide)
        weight = torch.einsum("bhij,hg->bgij", weight, after)
        y = weight.to(v.dtype) @ v
    else:
        allowed = None if hidden is None else ~hidden
        if bias is not None:
            allowed = bias.to(q.dtype).masked_fill(hidden, -math.inf)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, dropout_p=shape.dropout, scale=factor
        )
    if w is None:
        return y.transpose(1, 2).flatten(2)
    y = y.view(-1, w.rows // w.height, w.columns // w.width, heads, w.height, w.width, shape.width)
    y = y.permute(0, 1, 4, 2, 5, 3, 6).flatten(5).flatten(3, 4).flatten(1, 2)
    return y.roll((w.up, w.left), (1, 2)).flatten(1, 2)


def unmasked(shape, qkv):
    """Torch's attention alone; windows are images of their own, so that nothing is cut."""
    if shape.windows is not None:
        qkv = qkv.view(-1, shape.windows.tokens, qkv.shape[-1])
    q, k, v = split(qkv, shape.heads)
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=shape.dropout)
    return y.transpose(1, 2).flatten(2)


def ours(shape, qkv, scale, bias, before, after):
    return fused_attention(
        qkv,
        shape.heads,
        scale=shape.width**-0.5 if scale is None else scale,
        masked=shape.local,
        bias=bias,
        windows=shape.windows,
        dropout=shape.dropout,
        mixing=(before, after) if shape.talking else None,
    )


def arguments(shape, batch, dtype=torch.bfloat16, seed=0):
    """Packed projection, temperatures, bias, mixing matrices; the window mask; a gradient."""
    torch.manual_seed(seed)
    inner, n = shape.heads * shape.width, shape.windows.tokens if shape.windows else shape.tokens
    given = [torch.randn(batch, shape.tokens, 3 * inner, device=DEVICE, dtype=dtype)]
    scale = torch.rand(shape.heads, device=DEVICE) * shape.width**-0.5 + 0.1
    given.append(scale if shape.local else None)
    bias = torch.randn(shape.heads, n, n, device=DEVICE)
    given.append(bias if shape.windows else None)
    mixing = [torch.randn(shape.heads, shape.heads, device=DEVICE) for _ in range(2)]
    given += mixing if shape.talking else [None, None]
    mask = None
    if shape.windows and (shape.windows.up or shape.windows.left):
        mask = shape.windows.apart(torch.device(DEVICE)) * -100.0
    grad = torch.randn(batch, shape.tokens, inner, device=DEVICE, dtype=dtype)
    given = [x if x is None else x.requires_grad_() for x in given]
    return given, mask, grad


def variants(shape, batch):
    """Each variant as a function that runs forward and backward once."""
    given, mask, grad = arguments(shape, batch)
    leaves = [x for x in given if x is not None]

    def step(function, leaves, grad):
        return lambda: torch.autograd.grad(function(), leaves, grad)

    once = torch.compile(lambda *args: today(shape, *args, mask), dynamic=False)
    bare = torch.compile(lambda qkv: unmasked(shape, qkv), dynamic=False)
    bare_grad = (
        grad if shape.windows is None else grad.view(-1, shape.windows.tokens, grad.shape[-1])
    )
    return {
        "today": step(lambda: once(*given), leaves, grad),
        "unmasked": step(lambda: bare(given[0]), leaves[:1], bare_grad),
        "ours": step(lambda: ours(shape, *given), leaves, grad),
    }


def errors(shape):
    """Distances from float64 of ours and of today's path, for the output and each gradient."""
    shape = replace(shape, dropout=0.0)
    given, mask, grad = arguments(shape, 8)

    def run(function, dtype):
        leaves = [
            x if x is None else x.detach().to(dtype or x.dtype).requires_grad_() for x in given
        ]
        y = function(leaves)
        there = [x for x in leaves if x is not None]
        return [y.detach(), *torch.autograd.grad(y, there, grad.to(y.dtype))]

    exact = run(lambda leaves: today(shape, *leaves, mask), torch.float64)
    names = [
        n
        for n, x in zip(["qkv", "scale", "bias", "before", "after"], given, strict=True)
        if x is not None
    ]
    found = {}
    for label, function in {
        "ours": lambda leaves: ours(shape, *leaves),
        "today": lambda leaves: today(shape, *leaves, mask),
    }.items():
        far = [
            ((a.double() - b).norm() / b.norm()).item()
            for a, b in zip(run(function, None), exact, strict=True)
        ]
        found[label] = dict(zip(["out", *names], far, strict=True))
    return found


def same_compiled(shape):
    """Whether Inductor's program with the operator gives the operator's own numbers."""
    shape = replace(shape, dropout=0.0)  # Inductor draws other seeds
    given, _, grad = arguments(shape, 8)
    leaves = [x for x in given if x is not None]
    results = []
    call = functools.partial(ours, shape)
    for function in (call, torch.compile(call, fullgraph=True, dynamic=False)):
        y = function(*given)
        results.append([y, *torch.autograd.grad(y, leaves, grad)])
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def prepare(shape, batches):
    """Compiles and captures all; returns a function that measures."""
    qkv = arguments(shape, 2)[0][0]
    options = {"windows": shape.windows, "dropout": shape.dropout, "talking": shape.talking}
    found = {"fusible": fusible(qkv, shape.heads, **options)}
    for label, check in {"errors": errors, "same_compiled": same_compiled}.items():
        try:
            found[label] = check(shape)
        except Exception as error:
            found[label] = f"failed: {type(error).__name__}: {str(error)[:300]}"
    graphs = {}
    for batch in batches:
        for label, function in variants(shape, batch).items():
            try:
                # The graph reads tensors that only the function keeps alive.
                graphs[batch, label] = capture(function), function
            except Exception as error:
                found[f"{label} {batch}"] = f"failed: {type(error).__name__}: {str(error)[:300]}"

    def measure():
        for (batch, label), (graph, _) in graphs.items():
            found.setdefault("ms", {}).setdefault(str(batch), {})[label] = milliseconds(graph)
        return found

    return measure


def table(results, batches, speed):
    head = f"{'shape':8} {'batch':>5} {'layers':>6} {'floor':>7} {'today':>8} {'unmasked':>8}"
    print(f"{head} {'ours':>8} {'×floor':>7} {'today/':>7} {'unmasked/':>9}   ms of one layer")
    for name, found in results.items():
        shape = SHAPES[name]
        for batch in batches:
            ms = found.get("ms", {}).get(str(batch), {})
            size = batch * shape.tokens * shape.heads * shape.width * 2
            floor = 12 * size / speed * 1e3
            found.setdefault("floor", {})[str(batch)] = floor
            nan = math.nan
            today_, bare, mine = (ms.get(key, nan) for key in ("today", "unmasked", "ours"))
            print(
                f"{name:8} {batch:5} {shape.layers:6} {floor:7.4f} {today_:8.4f} {bare:8.4f}"
                f" {mine:8.4f} {mine / floor:7.2f} {today_ / mine:7.2f} {bare / mine:9.2f}"
            )
    print()
    for name, found in results.items():
        for key, value in found.items():
            if key == "errors" and isinstance(value, dict):
                parts = (
                    f"{part} {far:.1e} ({value['today'][part]:.1e})"
                    for part, far in value["ours"].items()
                )
                print(f"{name:8} error of ours (today): " + ", ".join(parts))
            elif isinstance(value, str) or value is False:
                print(f"{name:8} {key}: {value}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--batches", default="128,1024")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    names, batches = args.shapes.split(","), [int(batch) for batch in args.batches.split(",")]
    facts = {**machine(), "bytes_per_second": bandwidth()}
    torch.cuda.empty_cache()
    print(", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
    if args.sweep:
        from benchmarks.attention_sweep import sweep

        results = sweep(names, batches[-1])
    else:
        results = run_all(prepare, {name: (SHAPES[name], batches) for name in names})
        table(results, batches, facts["bytes_per_second"])
    if args.json:
        with open(args.json, "w") as file:
            json.dump({**facts, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
