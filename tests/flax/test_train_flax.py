"""The training example: it learns, resumes exactly, compiles once, and shares out its batches."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from smallvit.flax import load

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_flax.py"


def _example():
    spec = importlib.util.spec_from_file_location("train_flax", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_flax"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


example = _example()
RECIPE = example.Recipe(
    options={"dim": 16, "depth": 1, "heads": 2, "mlp_dim": 16},
    epochs=6,
    batch=20,
    lr=5e-3,
    mixing=0.2,
    padding=1,
    flip=0.0,
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """The runs of this file compile the same step: once is enough."""
    options = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("cache")),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Grey images whose class is the bright quadrant."""
    draw = np.random.default_rng(0)
    labels = np.tile(np.arange(4), 50)
    images = draw.integers(0, 100, (200, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[row : row + 4, column : column + 4] += 150
    path = tmp_path_factory.mktemp("data") / "quadrants.npz"
    split = np.where(np.arange(200) < 160, "train", "test")
    np.savez(path, images=images, labels=labels, split=split)
    return path


@pytest.fixture(scope="module")
def uninterrupted(archive, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    example.train(RECIPE, example.read(archive), out)
    return out


def test_it_learns(uninterrupted):
    rows = [json.loads(line) for line in (uninterrupted / "log.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, 7))
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["accuracy"] > 0.7


def test_a_resumed_run_is_the_uninterrupted_one(archive, uninterrupted, tmp_path):
    data = example.read(archive)
    example.train(RECIPE, data, tmp_path, stop_after=1)
    assert not (tmp_path / "weights.safetensors").exists()
    example.train(RECIPE, data, tmp_path)
    expected = load(uninterrupted / "weights.safetensors")
    found = load(tmp_path / "weights.safetensors")
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    with pytest.raises(ValueError, match="another recipe"):
        example.train(example.Recipe(), data, tmp_path)


def test_no_step_but_the_first_compiles(archive):
    data = example.read(archive)
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    whole = NamedSharding(mesh, PartitionSpec())
    state = jax.device_put(example.make_state(RECIPE, data), whole)
    images, labels = jax.device_put((data.train_images, data.train_labels), whole)
    epochs = [jax.device_put(example.order(RECIPE, 160, epoch), whole) for epoch in range(2)]
    step = example.make_step(RECIPE, data, mesh)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    state, _ = step(state, images, labels, epochs[0])
    assert len(compiled) == 1
    assert state.step.sharding.device_set == set(jax.devices())
    for batches in epochs:
        for _ in range(4):
            state, loss = step(state, images, labels, batches)
    assert np.isfinite(loss)
    assert len(compiled) == 1


def test_one_device_does_what_two_do(archive, uninterrupted, tmp_path):
    assert jax.device_count() == 2
    example.train(RECIPE, example.read(archive), tmp_path, devices=jax.devices()[:1])
    expected = load(uninterrupted / "weights.safetensors")
    found = load(tmp_path / "weights.safetensors")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), found, expected)
    one, two = (
        json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["loss"]
        for folder in (tmp_path, uninterrupted)
    )
    assert one == pytest.approx(two, rel=1e-4)
    with pytest.raises(ValueError, match="does not divide over 2 devices"):
        example.train(example.Recipe(batch=21), example.read(archive), tmp_path)


def test_the_example_needs_no_torch():
    code = f"""
import sys
sys.modules["torch"] = None
sys.argv = ["train_flax.py", "--help"]
import runpy
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--weight-decay" in done.stdout
