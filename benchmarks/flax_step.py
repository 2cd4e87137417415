"""A training step in PyTorch and in JAX, side by side on this machine.

    python benchmarks/flax_step.py --model vit_9_p4+spt+lsa --batch 64

Same model, same weights, same batch: forward in training mode, cross-entropy, backward, AdamW.
Rounds alternate between the sides, so that a busy machine slows both; the table gives medians. CPU
time, of the host where there is a GPU, does not count what other programs take.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
import torch.nn.functional as F

from smallvit import flax as port
from smallvit.interop.flax import to_flax
from smallvit.models import Backbone, create_model

CLASSES = 10
LR, DECAY = 1e-3, 0.05


def torch_steps(
    model: Backbone, images: np.ndarray, labels: np.ndarray, dtype: str, compiled: bool
) -> Callable[[int], float]:
    """A function that takes n steps and returns the last loss."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device).train()
    optimiser = torch.optim.AdamW(
        model.parameters(), LR, weight_decay=DECAY, fused=device.type == "cuda"
    )
    x = torch.tensor(images, device=device).permute(0, 3, 1, 2).contiguous()
    y = torch.tensor(labels, device=device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    forward = torch.compile(loss) if compiled else loss

    def run(steps: int) -> float:
        for _ in range(steps):
            optimiser.zero_grad()
            value = forward()
            value.backward()
            optimiser.step()
        return value.item()

    return run


def flax_steps(
    model: Any, variables: Any, images: np.ndarray, labels: np.ndarray
) -> Callable[[int], float]:
    """The same in JAX."""
    x, y = jax.device_put((images, labels))
    optimiser = optax.adamw(LR, weight_decay=DECAY)
    params = jax.device_put(variables["params"])
    state = (params, optimiser.init(params), jax.random.PRNGKey(0))

    @jax.jit
    def step(state: Any) -> Any:
        params, moments, key = state
        key, drop = jax.random.split(key)

        def loss(params: Any) -> jax.Array:
            logits = model.apply({"params": params}, x, rngs={"dropout": drop})
            return optax.softmax_cross_entropy_with_integer_labels(
                logits.astype(jnp.float32), y
            ).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, moments = optimiser.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments, key), value

    def run(steps: int) -> float:
        nonlocal state
        for _ in range(steps):
            state, value = step(state)
        return float(value)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="vit_9_p4+spt+lsa")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5, help="in one round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--compile", action="store_true", help="torch.compile on that side")
    args = parser.parse_args()

    draw = np.random.default_rng(0)
    images = draw.standard_normal((args.batch, args.image_size, args.image_size, 3), np.float32)
    labels = draw.integers(0, CLASSES, args.batch)
    sizes = {"num_classes": CLASSES, "image_size": args.image_size}
    torch.manual_seed(0)
    ours = create_model(args.model, **sizes)
    twin = port.from_name(args.model, **sizes, dtype=jnp.dtype(args.dtype))
    sides = {
        "flax": flax_steps(twin, to_flax(ours), images, labels),
        "torch": torch_steps(ours, images, labels, args.dtype, args.compile),
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    busy: dict[str, list[float]] = {side: [] for side in sides}
    first: dict[str, float] = {}
    for side, run in sides.items():
        began = time.perf_counter()
        run(1)
        first[side] = time.perf_counter() - began
        run(2)
    for _ in range(args.rounds):
        for side, run in sides.items():
            began, cpu = time.perf_counter(), time.process_time()
            run(args.steps)
            times[side].append((time.perf_counter() - began) / args.steps)
            busy[side].append((time.process_time() - cpu) / args.steps)

    where = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"torch {torch.__version__} on {where} with {torch.get_num_threads()} threads,", end=" ")
    print(f"jax {jax.__version__} on {jax.devices()[0].platform}")
    print(f"{args.model}, {args.image_size} px, batch {args.batch}, {args.dtype}")
    print("| side | ms a step | images/s | CPU ms a step | first step, s |\n|---|--:|--:|--:|--:|")
    for side in sides:
        median = statistics.median(times[side])
        cells = [side, f"{1e3 * median:.0f}", f"{args.batch / median:.0f}"]
        cells += [f"{1e3 * statistics.median(busy[side]):.0f}", f"{first[side]:.1f}"]
        print(f"| {' | '.join(cells)} |")
    for what, taken in (("time", times), ("CPU time", busy)):
        ratios = [a / b for a, b in zip(taken["flax"], taken["torch"], strict=True)]
        print(f"flax over torch, {what}: {statistics.median(ratios):.2f} (of {args.rounds} rounds)")


if __name__ == "__main__":
    main()
