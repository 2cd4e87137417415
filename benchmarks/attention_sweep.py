"""Block sizes, warps and stages of the fused attention, tried: `benchmarks.attention --sweep`."""

import itertools
import time

import torch

from benchmarks.attention import SHAPES, arguments
from benchmarks.gpu import capture, milliseconds, run_all
from smallvit.layers.kernels import Windows
from smallvit.layers.kernels.launch import (
    Plan,
    Task,
    launch_backward,
    launch_forward,
    power,
    tile_of,
)
from smallvit.layers.kernels.talking_launch import (
    TalkingTask,
    launch_talking,
    launch_talking_backward,
    talking_plans,
)

#: Processes that share the plans of one program.
PARTS = 6


def plans(shape, backward):
    """Plans worth trying for a shape."""
    n = shape.windows.tokens if shape.windows else shape.tokens
    tile = min(tile_of(n), 256)
    if n < 2 * tile and n <= 272:
        counts = (4, 8, 16) if n > 144 else (1, 2, 4, 8)
        for block_q, warps, stages in itertools.product((16, 32, 64), counts, (1, 2)):
            if block_q <= power(n):
                few = backward and n <= 96 and stages == 2
                for registers in (0, 128, 168) if few else (0,):
                    yield Plan(block_q, tile, warps, stages, registers)
    if n > 96 and backward:
        for block, warps, stages in itertools.product((32, 64, 128), (4, 8), (1, 2, 3)):
            yield Plan(block, block, warps, stages, whole=False)
    if n > 96 and not backward:
        options = itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3))
        for block_q, block_k, warps, stages in options:
            yield Plan(block_q, block_k, warps, stages, whole=False)


def prepare_sweep(shape, batch, backward, part, patience=150.0):
    """Compiles a part of the plans worth trying; returns a function that measures them."""
    (qkv, scale, bias, *_), _, grad = arguments(shape, batch)
    windows = shape.windows or Windows(1, shape.tokens, 1, shape.tokens)
    seed = torch.randint(2**62, (1,), device="cuda") if shape.dropout else None
    factor = 1.0 if shape.local else shape.width**-0.5
    task = Task(shape.heads, factor, shape.local, shape.dropout, windows)
    qkv, scale, bias = (x if x is None else x.detach() for x in (qkv, scale, bias))
    out, lse = launch_forward(qkv, scale, bias, seed, task)
    graphs, failed, started = {}, {}, time.monotonic()
    for plan in list(plans(shape, backward))[part::PARTS]:
        if time.monotonic() - started > patience:
            failed["the rest"] = "not compiled in time"
            break

        def function(plan=plan):
            if not backward:
                return launch_forward(qkv, scale, bias, seed, task, plan)
            return launch_backward(
                grad, qkv, out, lse, scale, bias, seed, task, sloped=bias is not None, plan=plan
            )

        try:
            # The graph reads tensors that only the function keeps alive.
            graphs[plan] = capture(function, 4), function
        except Exception as error:
            failed[str(tuple(plan))] = f"{type(error).__name__}: {str(error)[:80]}"

    def measure():
        times = {str(tuple(plan)): milliseconds(graph, 4, 8) for plan, (graph, _) in graphs.items()}
        return {"ms": dict(sorted(times.items(), key=lambda item: item[1])), "failed": failed}

    return measure


def prepare_talking(shape, batch, kind, part, patience=150.0):
    """Compiles a part of the plans for a program of talking heads; returns what measures them."""
    (qkv, scale, _, before, after), _, grad = arguments(shape, batch)
    qkv, after = qkv.detach(), after.detach()
    before = (before * scale.view(-1, 1)).detach()
    task = TalkingTask(shape.heads, shape.local, shape.dropout)
    usual = talking_plans(shape.tokens, shape.heads, shape.width)
    _, lse = launch_talking(qkv, before, after, None, task, usual)
    blocks = itertools.product((16, 32, 64), (16, 32, 64), (2, 4, 8, 16), (1, 2))
    graphs, failed, started = {}, {}, time.monotonic()
    tried = []
    for plan in (Plan(*block) for block in blocks):
        whole, own = (plan.block_k, plan.block_q) if kind != "keys" else plan[:2]
        # Tiles that hold all other tokens, and programs that are neither tiny nor full of spills.
        fits = own * whole * shape.heads <= (1024 if kind == "whole" else 4096) * plan.warps
        if fits and whole == min(power(shape.tokens), 64):
            tried.append(plan)
    for plan in tried[part::PARTS]:
        if time.monotonic() - started > patience:
            failed["the rest"] = "not compiled in time"
            break
        plans = usual._replace(**{"whole": None, kind: plan})

        def function(plans=plans):
            if kind == "forward":
                return launch_talking(qkv, before, after, None, task, plans)
            return launch_talking_backward(grad, qkv, lse, before, after, None, task, plans)

        try:
            graphs[plan] = capture(function, 4), function
        except Exception as error:
            failed[str(tuple(plan))] = f"{type(error).__name__}: {str(error)[:80]}"

    def measure():
        times = {str(tuple(plan)): milliseconds(graph, 4, 8) for plan, (graph, _) in graphs.items()}
        return {"ms": dict(sorted(times.items(), key=lambda item: item[1])), "failed": failed}

    return measure


def prepare(shape, batch, kind, part):
    """Compiles a part of the plans for one program; returns what measures them."""
    if shape.talking:
        return prepare_talking(shape, batch, kind, part)
    return prepare_sweep(shape, batch, kind == "backward", part)


def kinds(shape):
    """The programs that a shape needs."""
    if not shape.talking:
        return ["forward", "backward"]
    whole = talking_plans(shape.tokens, shape.heads, shape.width).whole
    return ["forward", "whole"] if whole else ["forward", "queries", "keys"]


def sweep(names, batch):
    """Times every plan of some shapes, each program apart, and prints the best."""
    jobs = {
        f"{name} {batch} {kind}, part {part}": (SHAPES[name], batch, kind, part)
        for name in names
        for kind in kinds(SHAPES[name])
        for part in range(PARTS)
    }
    results = run_all(prepare, jobs)
    for label, found in results.items():
        best = list(found.get("ms", {}).items())
        print(label, "(block_q, block_k, warps, stages, registers, whole)", len(best), "plans")
        for plan, ms in best[:5]:
            print(f"    {ms:8.4f} {plan}")
        if isinstance(found.get("failed"), str) or not best:
            print("   ", str(found.get("failed"))[:1500])
    return results
