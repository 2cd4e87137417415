"""Trains a Flax model on the embedded dataset, with JAX and optax alone.

    python examples/train_flax.py --out runs/flax --epochs 20
    python examples/train_flax.py --out runs/flax --epochs 20     # interrupted? it goes on

The images lie on the device as bytes; each step gathers a batch, augments it, and updates, as one
compiled function. Several devices share each batch. Everything random is a function of (seed,
step), so a resumed run repeats what an uninterrupted one would have done.
"""

import argparse
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from smallvit.flax import augment, from_name, load, save

logger = logging.getLogger("train_flax")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained.

    Attributes:
        model: A name of `smallvit.flax.VARIANTS`, with its add-ons.
        options: Further fields of the module.
        epochs: Passes over the training images.
        batch: Images in a step, over all devices.
        lr: Peak learning rate, reached after the warm-up and followed by a cosine to zero.
        warmup: Share of the run that is linear warm-up.
        weight_decay: AdamW's, on every parameter.
        smoothing: Label smoothing.
        flip: Probability of a mirror image.
        padding: Of the padded crop.
        erasing: Probability of an erased rectangle.
        mixing: Probability of Mixup or CutMix.
        dtype: What is computed in; parameters stay float32.
        seed: Of the weights, the order and everything drawn.
    """

    model: str = "vit_9_p4+spt+lsa"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    epochs: int = 20
    batch: int = 100
    lr: float = 1e-3
    warmup: float = 0.1
    weight_decay: float = 0.05
    smoothing: float = 0.1
    flip: float = 0.5
    padding: int = 4
    erasing: float = 0.25
    mixing: float = 0.5
    dtype: str = "float32"
    seed: int = 0


class Data(NamedTuple):
    """Images as bytes (n, H, W, C) and labels, with the training images' mean and spread."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.train_labels.max()) + 1

    def normalised(self, images: jax.Array) -> jax.Array:
        """Numbers from 0 to 1 with the training images' mean taken off, over their spread."""
        values = self.train_images / np.float32(255)
        mean, std = values.mean((0, 1, 2)), values.std((0, 1, 2))
        return (images - mean) / std


def read(path: Path | None = None) -> Data:
    """Arrays images, labels and split ("train", "test") of an npz; by default fashion-mini."""
    source = path or files("smallvit") / "data" / "bundled" / "fashion-mini.npz"
    with source.open("rb") as file, np.load(file) as arrays:
        images, labels, split = (arrays[name] for name in ("images", "labels", "split"))
    images = images[..., None] if images.ndim == 3 else images
    return Data(*(part[split == half] for half in ("train", "test") for part in (images, labels)))


def learning_rate(recipe: Recipe, steps: int) -> optax.Schedule:
    """Linear warm-up and a cosine to zero; `steps` make an epoch."""
    total = recipe.epochs * steps
    return optax.warmup_cosine_decay_schedule(0.0, recipe.lr, round(recipe.warmup * total), total)


def make_model(recipe: Recipe, data: Data) -> Any:
    """The module for these images."""
    _, height, width, channels = data.train_images.shape
    return from_name(
        recipe.model,
        num_classes=data.classes,
        image_size=(height, width),
        in_channels=channels,
        dtype=jnp.dtype(recipe.dtype),
        **recipe.options,
    )


def make_state(recipe: Recipe, data: Data) -> TrainState:
    """Fresh weights and optimiser; the step is an array from the start, or jit compiles twice."""
    model = make_model(recipe, data)
    images = jnp.zeros((1, *data.train_images.shape[1:]))
    start = jax.jit(lambda key: model.init(key, images, deterministic=True))
    variables = start(jax.random.PRNGKey(recipe.seed))
    rate = learning_rate(recipe, len(data.train_labels) // recipe.batch)
    state = TrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax.adamw(rate, weight_decay=recipe.weight_decay),
    )
    return state.replace(step=jnp.zeros((), jnp.int32))


def order(recipe: Recipe, count: int, epoch: int) -> jax.Array:
    """An epoch's batches, as rows of the training images; what fills no batch waits its turn."""
    key = jax.random.fold_in(jax.random.PRNGKey(recipe.seed + 1), epoch)
    steps = count // recipe.batch
    rows = jax.random.permutation(key, count)[: steps * recipe.batch]
    return rows.reshape(steps, recipe.batch)


def draws(recipe: Recipe, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The keys of a step: for augmentation, for dropout."""
    key = jax.random.fold_in(jax.random.PRNGKey(recipe.seed + 2), step)
    augment_key, drop_key = jax.random.split(key)
    return augment_key, drop_key


def augmented(
    recipe: Recipe, data: Data, key: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Bytes and labels to normalised, augmented images and soft targets."""
    flip_key, crop_key, erase_key, mix_key = jax.random.split(key, 4)
    x = augment.flip(flip_key, images / 255.0, recipe.flip)
    x = data.normalised(augment.crop(crop_key, x, recipe.padding))
    x = augment.erase(erase_key, x, recipe.erasing)
    targets = optax.smooth_labels(jax.nn.one_hot(labels, data.classes), recipe.smoothing)
    return augment.mix(mix_key, x, targets, recipe.mixing)


def make_step(recipe: Recipe, data: Data, mesh: Mesh) -> Callable[..., Any]:
    """The compiled step: (state, images, labels, order) to (state, loss)."""
    whole = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec("batch"))

    def step(state: TrainState, images: Any, labels: Any, order: Any) -> Any:
        augment_key, drop_key = draws(recipe, state.step)
        rows = order[state.step % len(order)]
        batch = augmented(recipe, data, augment_key, images[rows], labels[rows])
        x, targets = jax.lax.with_sharding_constraint(batch, split)

        def loss(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, x, rngs={"dropout": drop_key})
            return optax.softmax_cross_entropy(logits.astype(jnp.float32), targets).mean()

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    return jax.jit(step, donate_argnums=0, out_shardings=(whole, whole))


def make_accuracy(data: Data, state: TrainState, chunk: int = 500) -> Callable[..., float]:
    """The share of test images that parameters get right."""

    @jax.jit
    def right(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        x = data.normalised(images / 255.0)
        logits = state.apply_fn({"params": params}, x, deterministic=True)
        return (logits.argmax(-1) == labels).sum()

    def accuracy(params: Any) -> float:
        parts = range(0, len(data.test_labels), chunk)
        hits = [
            right(params, data.test_images[i : i + chunk], data.test_labels[i : i + chunk])
            for i in parts
        ]
        return float(sum(hits)) / len(data.test_labels)

    return accuracy


def train(
    recipe: Recipe,
    data: Data,
    out: Path,
    stop_after: int | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> TrainState:
    """Trains, or goes on where the folder's last whole epoch ended.

    Args:
        out: Where `recipe.json`, `state.safetensors`, `log.jsonl` and at the end
            `weights.safetensors` (the model's variables) are written.
        stop_after: Ends after that many epochs, as an interruption would.
        devices: Which share each batch; by default all.
    """
    mesh = Mesh(np.array(devices or jax.devices()), ("batch",))
    whole = NamedSharding(mesh, PartitionSpec())
    if recipe.batch % mesh.size:
        raise ValueError(f"batch {recipe.batch} does not divide over {mesh.size} devices")
    out.mkdir(parents=True, exist_ok=True)
    note, file = out / "recipe.json", out / "state.safetensors"
    described = json.dumps(dataclasses.asdict(recipe), indent=1)
    if note.exists() and note.read_text() != described:
        raise ValueError(f"{out} holds a run of another recipe; choose another --out")
    note.write_text(described)

    state = make_state(recipe, data)
    if file.exists():
        state = load(file, like=state)
    state = jax.device_put(state, whole)
    images, labels = jax.device_put((data.train_images, data.train_labels.astype(int)), whole)
    step, accuracy = make_step(recipe, data, mesh), make_accuracy(data, state)
    steps = len(labels) // recipe.batch
    for epoch in range(int(state.step) // steps, min(recipe.epochs, stop_after or recipe.epochs)):
        began = time.perf_counter()
        batches = jax.device_put(order(recipe, len(labels), epoch), whole)
        losses = []
        for _ in range(steps):
            state, loss = step(state, images, labels, batches)
            losses.append(loss)
        mean = float(np.mean(losses))
        if not np.isfinite(mean):
            raise FloatingPointError(f"the loss is {mean} in epoch {epoch}; lower the lr")
        row = {
            "epoch": epoch + 1,
            "loss": mean,
            "accuracy": accuracy(state.params),
            "seconds": time.perf_counter() - began,
        }
        with (out / "log.jsonl").open("a") as log:
            log.write(json.dumps(row) + "\n")
        logger.info(
            "epoch %(epoch)d  loss %(loss).4f  accuracy %(accuracy).4f  %(seconds).1f s", row
        )
        save(state, file.with_suffix(".new"))
        os.replace(file.with_suffix(".new"), file)
    if int(state.step) == recipe.epochs * steps:
        save({"params": state.params}, out / "weights.safetensors")
    return state


def main() -> None:
    """The command line: a recipe field is an option."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--data", type=Path, help="npz with images, labels, split")
    parser.add_argument("--stop-after", type=int, help="end after that many epochs")
    for field in dataclasses.fields(Recipe):
        kind = json.loads if field.name == "options" else field.type
        default = {} if field.name == "options" else field.default
        parser.add_argument("--" + field.name.replace("_", "-"), type=kind, default=default)
    given = vars(parser.parse_args())
    out, path, stop_after = (given.pop(name) for name in ("out", "data", "stop_after"))
    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO)
    train(Recipe(**given), read(path), out, stop_after)


if __name__ == "__main__":
    main()
