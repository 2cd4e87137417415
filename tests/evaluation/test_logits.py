"""What a model says of images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from smallvit.devices import choose_device, images_per_pass
from smallvit.evaluation import logits_of
from smallvit.models import create_model

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
NORMAL = {"mean": MEAN, "std": STD}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return create_model("cct_2_3x2", num_classes=4, image_size=16, dropout=0.5)


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (11, 3, 16, 16), np.uint8)


def literal(model: nn.Module, pixels: np.ndarray) -> np.ndarray:
    mean, std = (np.array(values).reshape(3, 1, 1) for values in (MEAN, STD))
    images = torch.tensor((pixels / 255 - mean) / std, dtype=torch.float32)
    with torch.no_grad():
        return model.eval()(images).numpy()


@pytest.mark.parametrize("batch_size", [1, 4, 11, 100])
def test_logits_whatever_the_batch(model: nn.Module, pixels: np.ndarray, batch_size: int) -> None:
    logits = logits_of(model, pixels, **NORMAL, batch_size=batch_size)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, literal(model, pixels), rtol=1e-4, atol=1e-5)


def test_a_mapped_file_is_fine(model: nn.Module, pixels: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", pixels)
    mapped = np.load(tmp_path / "pixels.npy", mmap_mode="r")
    expected = logits_of(model, pixels, **NORMAL)
    np.testing.assert_array_equal(logits_of(model, mapped, **NORMAL), expected)


def test_flip_is_the_mean_of_both_probabilities(model: nn.Module, pixels: np.ndarray) -> None:
    found = logits_of(model, pixels, **NORMAL, batch_size=4, flip=True)
    pair = [literal(model, part) for part in (pixels, pixels[..., ::-1])]
    raised = [np.exp(part) / np.exp(part).sum(1, keepdims=True) for part in pair]
    np.testing.assert_allclose(np.exp(found), (raised[0] + raised[1]) / 2, rtol=1e-4)
    mirrored = logits_of(model, np.ascontiguousarray(pixels[..., ::-1]), **NORMAL, flip=True)
    np.testing.assert_allclose(found, mirrored, rtol=1e-4, atol=1e-5)


def test_every_part_of_the_model_keeps_its_mode(model: nn.Module, pixels: np.ndarray) -> None:
    model.train()
    frozen = next(iter(model.children())).eval()
    logits = logits_of(model, pixels, **NORMAL)
    assert model.training
    assert not frozen.training
    np.testing.assert_array_equal(logits, logits_of(model.eval(), pixels, **NORMAL))
    model.train()
    with pytest.raises(ValueError, match="expected images of 3×16×16"):
        logits_of(model, pixels[:, :1], mean=MEAN[:1], std=STD[:1])
    assert model.training


def test_half_precision_is_near(model: nn.Module, pixels: np.ndarray) -> None:
    full = logits_of(model, pixels, **NORMAL, precision="fp32")
    half = logits_of(model, pixels, **NORMAL, precision="bf16")
    assert half.dtype == np.float32
    assert (half != full).any()
    np.testing.assert_allclose(half, full, atol=0.05)


def test_a_diverged_model_is_named(model: nn.Module, pixels: np.ndarray) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="11 of 11 images have logits that are not finite"):
        logits_of(model, pixels, **NORMAL)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"mean": (0.5,)}, r"expected images of 1 channels.*\(11, 3, 16, 16\)"),
        ({"std": (0.5,)}, "with 1 standard deviations"),
        ({"batch_size": 0}, "batch_size is 0: allowed is 1 or more"),
        ({"precision": "int8"}, "precision is 'int8': allowed are fp32, bf16, fp16"),
    ],
)
def test_bad_options(model: nn.Module, pixels: np.ndarray, change: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        logits_of(model, pixels, **{**NORMAL, **change})


def test_no_images(model: nn.Module, pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected images of 3 channels"):
        logits_of(model, pixels[:0], **NORMAL)


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match=r"device is 'tpu': this machine has .*cpu"):
        choose_device("tpu")


def test_passes_are_small_on_a_cpu_unless_requested(model: nn.Module) -> None:
    many = np.zeros((150, 3, 16, 16), np.uint8)
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    logits_of(model, many, **NORMAL)
    assert seen == [64, 64, 22]
    seen.clear()
    logits_of(model, many, **NORMAL, batch_size=100)
    assert seen == [100, 50]
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [images_per_pass(cpu, (side, side)) for side in (96, 128, 224, 512)] == [56, 32, 10, 8]
    assert images_per_pass(gpu, (224, 224)) == 256
