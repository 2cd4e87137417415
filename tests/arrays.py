"""Modules and tensors as float64 arrays, for the oracles."""

import numpy as np
import torch
from torch import Tensor, nn


def scramble(module: nn.Module, seed: int = 0) -> nn.Module:
    """Gives every parameter and buffer of a module noticeable values, in float64."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            if not value.is_floating_point() or name.endswith("mask"):
                continue
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            around = 1.0 if name.endswith("running_var") else 0.0
            size = 0.1 if around else 0.4
            value.copy_(around + size * (noise.abs() if around else noise))
    return module


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    return {key: value.numpy() for key, value in module.state_dict().items()}


def noise(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def assert_equal(ours: Tensor, oracle: np.ndarray, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), oracle, rtol=tolerance, atol=tolerance)
