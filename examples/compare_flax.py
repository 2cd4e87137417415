"""The same training in JAX and in PyTorch: do both sides reach the same accuracy?

    python examples/compare_flax.py --seeds 3

For each seed both start from the same weights and see the same augmented batches, drawn by the same
functions (`train_flax.augmented`); stochastic depth is each side's own. The PyTorch loop is plain:
our model, AdamW, the same schedule. Seconds are of whole runs: compilation, augmentation and a test
after every epoch included; CPU seconds tell more than the clock on a shared machine.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from train_flax import (
    Data,
    Recipe,
    augmented,
    draws,
    learning_rate,
    make_accuracy,
    make_state,
    order,
    read,
    train,
)

from smallvit.interop.flax import to_torch
from smallvit.models import Backbone, create_model

#: Small enough for one core: the paper's ViT with both parts, narrower and shallower.
OPTIONS = {"dim": 64, "depth": 4, "heads": 4, "mlp_dim": 128}


def make_torch(recipe: Recipe, data: Data) -> Backbone:
    """The PyTorch model with the weights that the Flax run starts from."""
    options = dict(recipe.options)
    options["num_heads"] = options.pop("heads")
    options["mlp_ratio"] = options.pop("mlp_dim") / options["dim"]
    _, height, width, channels = data.train_images.shape
    model = create_model(
        recipe.model,
        num_classes=data.classes,
        image_size=(height, width),
        in_channels=channels,
        **options,
    )
    model.load_state_dict(to_torch(make_state(recipe, data).params))
    return model


def channels_first(images: jax.Array) -> torch.Tensor:
    """A batch as PyTorch takes it."""
    return torch.tensor(np.asarray(images)).permute(0, 3, 1, 2).contiguous()


@torch.no_grad()
def torch_accuracy(model: Backbone, data: Data) -> float:
    """The share of test images that the model gets right."""
    model.eval()
    logits = model(channels_first(data.normalised(data.test_images / np.float32(255))))
    return float((logits.argmax(1).numpy() == data.test_labels).mean())


def train_torch(recipe: Recipe, data: Data) -> float:
    """Trains the PyTorch model and returns its accuracy."""
    torch.manual_seed(recipe.seed)
    model = make_torch(recipe, data)
    count = len(data.train_labels)
    steps = count // recipe.batch
    rate = learning_rate(recipe, steps)
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=recipe.weight_decay)
    images, labels = jnp.asarray(data.train_images), jnp.asarray(data.train_labels.astype(int))
    batch = jax.jit(
        lambda step, rows: augmented(
            recipe, data, draws(recipe, step)[0], images[rows], labels[rows]
        )
    )
    accuracy = 0.0
    for epoch in range(recipe.epochs):
        model.train()
        for i, rows in enumerate(order(recipe, count, epoch)):
            step = epoch * steps + i
            x, targets = batch(step, rows)
            for group in optimiser.param_groups:
                group["lr"] = float(rate(step))
            optimiser.zero_grad()
            loss = F.cross_entropy(model(channels_first(x)), torch.tensor(np.asarray(targets)))
            loss.backward()
            optimiser.step()
        accuracy = torch_accuracy(model, data)
    return accuracy


def train_flax(recipe: Recipe, data: Data) -> float:
    """The same in JAX, by the example's own loop."""
    with tempfile.TemporaryDirectory() as folder:
        state = train(recipe, data, Path(folder))
    return make_accuracy(data, state)(state.params)


def main() -> None:
    """Trains each side with each seed and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="npz with images, labels, split")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    data = read(args.data)
    sides: dict[str, Callable[[Recipe, Data], float]] = {"flax": train_flax, "torch": train_torch}
    reached: dict[str, list[float]] = {side: [] for side in sides}
    lines = ["| side | seed | accuracy % | seconds | CPU seconds |", "|---|---|---|---|---|"]
    for seed in range(args.seeds):
        recipe = Recipe(options=OPTIONS, epochs=args.epochs, lr=2e-3, seed=seed)
        for side, run in sides.items():
            clock, cpu = time.perf_counter(), time.process_time()
            reached[side].append(100 * run(recipe, data))
            clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
            lines.append(f"| {side} | {seed} | {reached[side][-1]:.1f} | {clock:.0f} | {cpu:.0f} |")
            print(lines[-1], flush=True)  # noqa: T201
    print("\n".join(["", *lines]))  # noqa: T201
    for side, values in reached.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{side}: {statistics.mean(values):.2f} ± {spread:.2f}")  # noqa: T201


if __name__ == "__main__":
    main()
